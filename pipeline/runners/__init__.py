"""Finishing a long job: store, local chain, verify, trace, compare, plan, night."""
