"""`shoal ui`: the runs of a folder in a browser."""

import signal
import threading
from pathlib import Path

from aggregator.http.server import HttpServer
from shoal.reports.library import Library
from shoal.reports.site import Site
from wire.errors import ConfigError

HOST = "127.0.0.1"
"""The only address: runs are for whoever sits at the machine."""


def ui(folder: Path, port: int) -> None:
    """Carry out `shoal ui`, until Ctrl-C or SIGTERM."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: expected a folder with runs; `shoal simulate --out {folder}/try` makes one"
        )
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    library = Library(folder.resolve())
    found = len(library.entries())
    with HttpServer(HOST, port) as server:
        server.serve(Site(library).app)
        print(
            f"{found} run{'' if found == 1 else 's'} of {folder} at "
            f"http://{HOST}:{server.address[1]}; Ctrl-C ends this",
            flush=True,
        )
        stopped.wait()
