"""The command `shoal ui`, which shows the runs of a folder in a browser."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from shoal.command import command
from wire.errors import ConfigError

HOST = "127.0.0.1"
"""The only address: the runs are shown only to people at this machine."""


@command(in_json=False)
def ui(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder with runs, also in folders below it."),
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port at 127.0.0.1; 0: any free one."),
    ] = 8099,
) -> None:
    """Show the runs of a folder in a browser, and compare them.

    The pages are for this machine only, and change nothing.
    """
    from aggregator.http.server import HttpServer
    from shoal.reports.site import Library, Site

    if not folder.is_dir():
        raise ConfigError(
            f"No folder {folder}. `shoal simulate --out {folder}/try` makes it, with a run."
        )
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    library = Library(folder.resolve())
    count = len(library.entries())
    with HttpServer(HOST, port) as server:
        server.serve(Site(library))
        print(
            f"{count} run{'' if count == 1 else 's'} of {folder} at "
            f"http://{HOST}:{server.address[1]}; Ctrl-C ends this",
            flush=True,
        )
        stopped.wait()
