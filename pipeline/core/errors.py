"""Every error a user can cause, each kind with its exit code. The words say where, what, the limit and the way out."""

from __future__ import annotations

import errno
from collections.abc import Sequence

BUG_EXIT_CODE = 70
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)


class PipelineError(Exception):
    """A problem to be told in a readable line or two; a traceback is shown only with --debug."""

    exit_code = BUG_EXIT_CODE  # each kind has its own; only a red gate ends with 1


class GateRed(PipelineError):
    """The gate's verdict is red; everything has been written."""

    exit_code = 1


class UsageError(PipelineError):
    """Wrong usage: an option, an unknown id, a missing input file, a missing optional package."""

    exit_code = 2


class ParamsError(UsageError):
    """params.yaml, an assets file or an -S override does not hold what it should; names the key path."""


class MissingInput(UsageError):
    """A file or folder named by the user is not there."""


class DataError(PipelineError):
    """Not one readable row, or a damaged file under data.on_damaged_file: fail."""

    exit_code = 3


class ModelError(PipelineError):
    """The checkpoint, its tokenizer or its template cannot be used; names file, tensor or key."""

    exit_code = 4


class VerificationFailed(PipelineError):
    """A file is not what its manifest says."""

    exit_code = 5


class OutOfResources(PipelineError):
    """Disk or memory ran out after progress was saved."""

    exit_code = 6


class Interrupted(PipelineError):
    """Ctrl-C (130), SIGTERM (143) or SIGHUP (129), after progress was saved."""

    exit_code = 130

    def __init__(self, message: str, signal_number: int = 2) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def some_of(names: Sequence[str], most: int = 5) -> str:
    """Names for one line of text: the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def outcome(error: BaseException) -> tuple[int, str]:
    """Exit code and words of what ended a command or a stage. Foreign words that might quote a row are left out."""
    if isinstance(error, PipelineError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; the same command goes on from what was saved"
    if isinstance(error, MemoryError):
        return OutOfResources.exit_code, "out of memory; what was finished is saved: free some memory and run the same command again"
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        where = f"{error.filename}: " if error.filename else ""
        return OutOfResources.exit_code, f"{where}no space left; what was finished is saved: free some and run the same command again"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        code = OutOfResources.exit_code if error.errno in NOT_ALLOWED else UsageError.exit_code
        return code, f"{where}{error.strerror or error}; check the path and its permissions"
    return BUG_EXIT_CODE, f"{type(error).__name__} (a bug; `pipeline --debug` shows where)"
