"""From a command to what carries it out.

A module of `shoal.commands` has the options of a command and nothing else, so that its help and its
usage errors come at once. The function of the same name in `shoal.handlers` carries the command
out. It is imported when the command is called, with all that it needs.
"""

import inspect
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, ParamSpec, TextIO

import typer

from shoal.cli import naming_extra

P = ParamSpec("P")

_MODULES: dict[Callable[..., None], str] = {}
"""By command, the module of its handler."""


SaidJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="As JSON: an object with what came of it, or with `said`, the lines for people.",
    ),
]
IN_JSON = inspect.Parameter(
    "in_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=SaidJson
)
"""What commands have that print for people alone."""


def handled_by(
    module: str, loads: str = "", says: bool = True
) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorates the options of a command: its handler, in this module of `shoal.handlers`, is given
    the value of each by name.

    The callback of a group of commands, which has the parameter `context` (a `typer.Context`), is
    for where no command of the group is named. Its handler is not given the context.

    `loads`: what the handler loads that takes seconds, torch for one. The command says so before
    anything else, unless it prints JSON.

    `says`: a command that does not print JSON itself (`as_json`) has ``--json`` from here. It then
    prints what the handler returns, or ``said``, the lines that it printed; those of a handler that
    `loads` go to standard error meanwhile, since it takes long.

    Raises (when the command is called):
        ConfigError: a package that the handler needs is not installed.
    """

    def decorate(command: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(command)

        @wraps(command)
        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            in_json = kwargs.pop(IN_JSON.name, False)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            context = given.arguments.pop("context", None)
            if context is None or context.invoked_subcommand is None:
                quiet = in_json or given.arguments.get("as_json")
                with _said(f"shoal {module}: loading {loads}" if loads and not quiet else ""):
                    handler = handler_of(call)
                if in_json:
                    _print_in_json(
                        lambda: handler(**given.arguments), sys.stderr if loads else None
                    )
                else:
                    handler(**given.arguments)

        if says and "as_json" not in signature.parameters:
            parameters = [*signature.parameters.values(), IN_JSON]
            call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
            call.__annotations__ = {**command.__annotations__, IN_JSON.name: SaidJson}
        _MODULES[call] = module
        return call

    return decorate


class _Lines(io.StringIO):
    """Keeps what is printed, and passes it on to where people see it."""

    def __init__(self, beside: TextIO | None) -> None:
        super().__init__()
        self._beside = beside

    def write(self, text: str) -> int:
        if self._beside is not None:
            self._beside.write(text)
        return super().write(text)


def _print_in_json(act: Callable[[], Any], beside: TextIO | None) -> None:
    """Print what a handler returns, or the lines that it printed; also where it ends the command by
    its answer."""
    from shoal.printing import print_json  # not for `--help`

    lines, made, end = _Lines(beside), None, None
    with redirect_stdout(lines):
        try:
            made = act()
        except typer.Exit as answered:
            end = answered
    print_json({"said": lines.getvalue().splitlines()} if made is None else made)
    if end is not None:
        raise end


@contextmanager
def _said(text: str) -> Iterator[None]:
    """Say what takes a while: a line, which goes away in a terminal when it is over."""
    there = bool(text) and sys.stdout.isatty()
    if text:
        print(text, end="" if there else "\n", flush=True)
    try:
        yield
    finally:
        if there:
            print("\r\x1b[K", end="", flush=True)


def handler_of(command: Callable[..., None]) -> Callable[..., Any]:
    """What carries a command out.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    with naming_extra(command.__module__.rpartition(".")[2]):
        handlers = import_module(f"shoal.handlers.{_MODULES[command]}")
    handler: Callable[..., Any] = getattr(handlers, command.__name__)
    return handler
