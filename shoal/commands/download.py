"""`shoal download`: public data sets, from where their authors publish them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shoal.folders import prepare_folder
from simulation.datasets.download import SOURCES
from simulation.datasets.download import download as fetch


def download(
    name: Annotated[str, typer.Argument(help=", ".join(SOURCES))],
    to: Annotated[Path, typer.Option(envvar="SHOAL_DATA", help="Folder that SHOAL_DATA names afterwards.")],
) -> None:
    """Download a public data set and check it against its SHA-256. Nothing else in Shoal downloads anything."""
    console = Console()
    with console.status(f"downloading {name}"):
        path = fetch(name, prepare_folder(to, "--to"))
    console.print(f"written: {path}; use it with SHOAL_DATA={to} and --data {name}", soft_wrap=True)
