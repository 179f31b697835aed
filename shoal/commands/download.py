"""`shoal download`: public data sets, from where their authors publish them; those that come with a
package, as folders of devices."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.dispatch import handled_by


@handled_by("download")
def download(
    name: Annotated[
        str,
        typer.Argument(
            help="uci-har, mnist, fashion-mnist, cifar10; or watch, watch-session: a folder for "
            "each device"
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            envvar="SHOAL_DATA", help="Folder to write to; SHOAL_DATA names it afterwards."
        ),
    ],
) -> None:
    """Download a public data set and check it against its SHA-256; or write those of the watches as
    folders of devices. Nothing else in Shoal downloads anything."""
