"""`shoal`: the commands, and the one place where an error becomes a line and an exit status."""

import sys
from collections.abc import Callable
from importlib import import_module

import typer
from rich.console import Console
from rich.markup import escape

from wire.errors import ConfigError, ShoalError

COMMANDS = {
    "simulate": "simulation",
    "compare": "simulation",
    "algorithms": "aggregator",
    "download": "simulation",
    "demo": "simulation",
    "export": "simulation",
    "serve": "aggregator",
}
"""Each command and the extra that installs what it needs."""

app = typer.Typer(
    name="shoal",
    help="On-device federated learning: finds which devices share a data distribution and gives each the model that fits it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _command(name: str, extra: str) -> Callable[..., None] | typer.Typer:
    try:
        command: Callable[..., None] | typer.Typer = getattr(import_module(f"shoal.commands.{name}"), name)
    except ModuleNotFoundError as error:
        missing = error.name

        def unavailable() -> None:
            raise ConfigError(f"shoal {name} needs the package {missing}: pip install 'shoal[{extra}]'")

        unavailable.__doc__ = f"(needs pip install 'shoal[{extra}]')"
        return unavailable
    return command


for _name, _extra in COMMANDS.items():
    _made = _command(_name, _extra)
    if isinstance(_made, typer.Typer):
        app.add_typer(_made, name=_name)
    else:
        app.command(_name)(_made)


def main() -> None:
    """Run a command. A `ShoalError` is printed as one line and ends with status 2, Ctrl-C with 130."""
    try:
        app()
    except ShoalError as error:
        Console(stderr=True).print("[red]error:[/red]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
