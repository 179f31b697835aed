"""The commands and what they call."""

from collections.abc import Callable
from importlib import import_module

import typer

from shoal.cli import COMMANDS


def functions(name: str) -> dict[str, Callable[..., None]]:
    """The functions of a command: one, or the callback of a group and its commands, by the words
    that name them."""
    command = getattr(import_module(f"shoal.commands.{name}"), name)
    if not isinstance(command, typer.Typer):
        return {name: command}
    callback = (
        []
        if command.registered_callback is None
        else [(name, command.registered_callback.callback)]
    )
    named = [
        (f"{name} {each.name or each.callback.__name__}", each.callback)
        for each in command.registered_commands
        if each.callback
    ]
    return {words: function for words, function in [*callback, *named] if function is not None}


FUNCTIONS = {words: function for name in COMMANDS for words, function in functions(name).items()}


class Missing:
    """A finder for which one module does not exist."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse the module; leave all others to the finders that follow."""
        if name == self.name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
