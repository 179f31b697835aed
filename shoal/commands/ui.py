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
        typer.Argument(help="Where runs are, such as runs; folders in it are looked through too."),
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of this machine's own address; 0: any that is free."
        ),
    ] = 8099,
) -> None:
    """Show the runs of a folder in a browser, and compare them.

    Only this machine is answered; nothing is changed.
    """
    from aggregator.http.server import HttpServer
    from shoal.reports.site import Library, Site

    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: expected a folder with runs; `shoal simulate --out {folder}/try` makes one"
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
