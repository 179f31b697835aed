"""`shoal download`: public data sets, from where their authors publish them; those that come with a
package, as folders of devices."""

from pathlib import Path

from rich.console import Console

from shoal.folders import prepare_folder
from shoal.waiting import steps
from simulation.datasets.catalog import PACKAGED, load_data
from simulation.datasets.download import download as fetch
from simulation.local.fleet import write_device_folder


def download(name: str, to: Path) -> None:
    """Carry out `shoal download`."""
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
