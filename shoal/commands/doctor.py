"""`shoal doctor`: is everything in a service's folder as it should be?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from aggregator.doctor.examine import examine
from aggregator.identity import lock_service
from wire.errors import ConfigError


def doctor(
    folder: Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")],
    bundle: Annotated[Path | None, typer.Option(help="Folder that `shoal export` wrote: trust.pem checks the voucher.")] = None,
    database: Annotated[str, typer.Option(help="As `shoal serve --database`.")] = "",
    blobs: Annotated[str, typer.Option(help="As `shoal serve --blobs`.")] = "",
    mend: Annotated[bool, typer.Option("--mend", help="Mend what can be mended; no service may have the folder.")] = False,
) -> None:
    """Check everything in a service's folder, and mend what can be mended. The status is 0 if all is well or mended, else 1."""
    if mend and (database or blobs):
        raise ConfigError("--mend: only a folder with its own database and blobs is mended; others have tools of their own for that")
    held = lock_service(folder) if mend and folder.is_dir() else None
    try:
        verdicts = set()
        for finding in examine(folder, bundle, mend, database, blobs):
            print(finding)
            verdicts.add(finding.verdict)
    finally:
        if held is not None:
            os.close(held)
    raise typer.Exit(1 if "wrong" in verdicts else 0)
