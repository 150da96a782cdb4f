"""Nightly batch inference: rows in, answers, scores, bad cases and a manifest out. Driven by DVC or by itself."""

__version__ = "0.1.0"
