"""`shoal init`: a configuration file for a service."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("init")
def init(
    path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")] = Path(
        "serve.toml"
    ),
    tls: Annotated[
        str,
        typer.Option(
            help="Names and addresses by which devices reach this machine, with commas: make an "
            "authority and a broker's folder."
        ),
    ] = "",
    folder: Annotated[Path, typer.Option(help="The service's folder.")] = Path("runs/served"),
    bundle: Annotated[Path, typer.Option(help="The folder that `shoal export` wrote.")] = Path(
        "runs/bundle"
    ),
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "default",
    broker_folder: Annotated[
        Path | None,
        typer.Option(help="Folder for Mosquitto, with --tls; FOLDER/broker when not given."),
    ] = None,
    broker_port: Annotated[
        int, typer.Option(min=1, max=65535, help="The broker's port, with --tls.")
    ] = 8883,
    broker_plugin: Annotated[
        Path | None,
        typer.Option(
            help="Mosquitto's plugin for dynamic security where the broker runs; looked for here "
            "when not given."
        ),
    ] = None,
) -> None:
    """Write a TOML file with every setting of `shoal serve`, its default and its meaning; set up
    TLS."""
