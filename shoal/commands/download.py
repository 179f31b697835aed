"""The command `shoal download`: public data sets, from where their authors publish them.

It also writes the data sets that a package contains as folders of devices.
"""

from pathlib import Path
from typing import Annotated

import typer

from host.files import prepare_folder
from shoal.command import command


@command()
def download(
    name: Annotated[
        str,
        typer.Argument(
            help="uci-har, mnist, fashion-mnist, cifar10; or watch, watch-session, which become a "
            "folder for each device."
        ),
    ],
    to: Annotated[
        Path,
        typer.Option(
            envvar="SHOAL_DATA", help="Folder to write to; set SHOAL_DATA to it afterwards."
        ),
    ],
) -> None:
    """Download a public data set, or write the watches' data as folders of devices.

    Downloads are checked against their SHA-256. No other command downloads anything.
    """
    from rich.console import Console

    from shoal.waiting import steps
    from simulation.datasets.catalog import PACKAGED, load_data
    from simulation.datasets.download import download as fetch
    from simulation.local.fleet import write_device_folder

    console = Console()
    if name in PACKAGED:
        with steps(console, f"writing the devices of {name}"):
            fleet = load_data(name)
            for device_id in fleet.devices:
                write_device_folder(fleet, device_id, prepare_folder(to / device_id, "--to"))
        one, *others = fleet.devices
        console.print(
            f"written: {to / one} and {len(others)} others; a device takes one: --data {to / one}",
            soft_wrap=True,
        )
        return
    with steps(console, f"downloading {name}"):
        path = fetch(name, prepare_folder(to, "--to"))
    console.print(f"written: {path}; use it with SHOAL_DATA={to} and --data {name}", soft_wrap=True)
