"""The user's own line in errors that were raised below it."""

from collections.abc import Iterator
from contextlib import contextmanager
from sysconfig import get_path
from traceback import walk_tb
from types import FrameType

from shoal import PACKAGES
from wire.errors import ShoalError

LIBRARIES = tuple(get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of Python's own code and of installed libraries."""


@contextmanager
def pointing() -> Iterator[None]:
    """Run calls of user code, and add the user's own line to an error that was raised below it.

    As a decorator it is a frame between a function and its caller (`stacklevel` of warnings).
    """
    try:
        yield
    except Exception as error:  # the user's code may raise anything
        cause = error.__cause__ if isinstance(error, ShoalError) else error
        frames = [*walk_tb(cause.__traceback__ if cause else None)]
        users = [each for each in frames if _is_users(each[0])]
        if users and users[-1] is not frames[-1]:
            code, line = users[-1][0].f_code, users[-1][1]
            error.add_note(f"From {code.co_filename}, line {line}, in {code.co_qualname}")
        raise


def _is_users(frame: FrameType) -> bool:
    """Return whether the frame is of a user's code, not of Shoal, Python or a library."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    file = frame.f_code.co_filename
    return package not in PACKAGES and not file.startswith(("<", *LIBRARIES))
