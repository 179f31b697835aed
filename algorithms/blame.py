"""Errors of classes and models that a user wrote: one error that names the file, the line and the
function, in place of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType

from algorithms import outside
from algorithms.user_code import model_files
from wire.errors import ConfigError, ShoalError


@contextmanager
def blaming() -> Iterator[None]:
    """Run what calls code of a user's own. The error that the code raised is the cause of the one
    that is raised here.

    Raises:
        ConfigError: the code raised, or something that it called did.
    """
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:  # the user's code may raise anything
        if told := _told(error):
            raise ConfigError(told) from error
        raise


def _told(error: BaseException) -> str:
    """Where in a user's own code an error, or what it followed from, was raised, and what it says;
    empty if it was not raised there."""
    files = model_files | {
        str(module.__file__) for module in outside.modules() if getattr(module, "__file__", None)
    }
    met: BaseException | None = error
    while met is not None:
        own: list[tuple[FrameType, int]] = [
            (f, line) for f, line in walk_tb(met.__traceback__) if f.f_code.co_filename in files
        ]
        if own:
            frame, line = own[-1]
            code = frame.f_code
            return (
                f"{code.co_filename}, line {line}, in {code.co_qualname}: {type(met).__name__}: "
                f"{met}"
            ).removesuffix(": ")
        met = met.__cause__ or met.__context__
    return ""
