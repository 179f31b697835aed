"""`shoal resume`: the operator's word to go on."""

from pathlib import Path
from typing import Annotated

import typer

from aggregator.identity import RESUME, is_served
from host.files import write_atomically
from wire.errors import ConfigError


def resume(folder: Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")]) -> None:
    """End a pause of a service, once its cause is gone. /ready, /run and the service's log say why it is paused."""
    if not is_served(folder):
        raise ConfigError(f"folder {folder}: no service runs here, so nothing is paused; `shoal serve` goes on by itself")
    try:
        write_atomically(folder / RESUME, b"")
    except OSError as error:
        raise ConfigError(f"folder {folder}: {error.strerror}") from None
    print(
        f"the service in {folder} is told: it goes on within seconds if it is paused, unless the cause is still there; its log says which"
    )
