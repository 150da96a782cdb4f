"""Strings and token ids; no torch."""
