"""`shoal download`: public data sets, from where their authors publish them."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("download")
def download(
    name: Annotated[str, typer.Argument(help="uci-har, mnist, fashion-mnist, cifar10")],
    to: Annotated[Path, typer.Option(envvar="SHOAL_DATA", help="Folder that SHOAL_DATA names afterwards.")],
) -> None:
    """Download a public data set and check it against its SHA-256. Nothing else in Shoal downloads anything."""
