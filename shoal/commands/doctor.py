"""`shoal doctor`: is everything in a service's folder as it should be?"""

from pathlib import Path
from typing import Annotated

import typer

from shoal.commands import options as opt
from shoal.dispatch import handled_by


@handled_by("doctor")
def doctor(
    folder: Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")],
    bundle: Annotated[
        Path | None,
        typer.Option(help="Folder that `shoal export` wrote: trust.pem checks the voucher."),
    ] = None,
    database: Annotated[str, typer.Option(help="As `shoal serve --database`.")] = "",
    blobs: Annotated[str, typer.Option(help="As `shoal serve --blobs`.")] = "",
    mend: Annotated[
        bool,
        typer.Option("--mend", help="Mend what can be mended; no service may have the folder."),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Check everything in a service's folder, and mend what can be mended. The status is 0 if all
    is well or mended, else 1."""
