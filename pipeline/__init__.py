"""Nightly batch inference: rows in, answers, scores, bad cases and a manifest out. Driven by DVC or by itself."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Results", "__version__", "load_results", "run"]


def __getattr__(name: str) -> Any:
    """The Python API, loaded at its first use so that commands start fast."""
    if name in ("Results", "load_results", "run"):
        import importlib

        return getattr(importlib.import_module("pipeline.api"), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
