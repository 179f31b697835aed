"""The user's own line in errors that were raised below it."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from algorithms.outside import is_users
from wire.errors import ShoalError


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
        users = [each for each in frames if is_users(each[0])]
        if users and users[-1] is not frames[-1]:
            code, line = users[-1][0].f_code, users[-1][1]
            error.add_note(f"From {code.co_filename}, line {line}, in {code.co_qualname}")
        raise
