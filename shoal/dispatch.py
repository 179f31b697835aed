"""From a command to what carries it out.

A module of `shoal.commands` has the options of a command and nothing else, so that its help and its usage errors come at once. The
function of the same name in `shoal.handlers` carries the command out. It is imported when the command is called, with all that it needs.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import ParamSpec

from shoal.cli import naming_extra

P = ParamSpec("P")

_MODULES: dict[Callable[..., None], str] = {}
"""By command, the module of its handler."""


def handled_by(module: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorates the options of a command: its handler, in this module of `shoal.handlers`, is given the value of each by name.

    The callback of a group of commands, which has the parameter `context` (a `typer.Context`), is for where no command of the group is
    named. Its handler is not given the context.

    Raises (when the command is called):
        ConfigError: a package that the handler needs is not installed.
    """

    def decorate(command: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(command)

        @wraps(command)
        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            context = given.arguments.pop("context", None)
            if context is None or context.invoked_subcommand is None:
                handler_of(call)(**given.arguments)

        _MODULES[call] = module
        return call

    return decorate


def handler_of(command: Callable[..., None]) -> Callable[..., None]:
    """What carries a command out.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    with naming_extra(command.__module__.rpartition(".")[2]):
        handlers = import_module(f"shoal.handlers.{_MODULES[command]}")
    handler: Callable[..., None] = getattr(handlers, command.__name__)
    return handler
