"""`shoal download`: public data sets, from where their authors publish them."""

from pathlib import Path

from rich.console import Console

from shoal.folders import prepare_folder
from simulation.datasets.download import download as fetch


def download(name: str, to: Path) -> None:
    """Carry out `shoal download`."""
    console = Console()
    with console.status(f"downloading {name}"):
        path = fetch(name, prepare_folder(to, "--to"))
    console.print(f"written: {path}; use it with SHOAL_DATA={to} and --data {name}", soft_wrap=True)
