"""The command `shoal doctor`, which checks the content of a service's folder."""

import os
from pathlib import Path
from typing import Annotated

import typer

from shoal.command import command, print_json
from shoal.commands import options as opt
from wire.errors import ConfigError


@command()
def doctor(
    folder: Annotated[Path, typer.Argument(help="Folder of `shoal serve --folder`.")],
    bundle: Annotated[
        Path | None,
        typer.Option(help="Folder that `shoal export` wrote; its trust.pem checks the voucher."),
    ] = None,
    database: Annotated[str, typer.Option(help="Database of `shoal serve --database`.")] = "",
    blobs: Annotated[str, typer.Option(help="Blobs of `shoal serve --blobs`.")] = "",
    mend: Annotated[
        bool,
        typer.Option("--mend", help="Mend what can be mended; no service may run there."),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Check everything in a service's folder, and mend what can be mended.

    The exit status is 0 if all is well or mended, else 1.
    """
    from aggregator.leadership.identity import lock_service
    from aggregator.maintenance.examine import examine

    if mend and (database or blobs):
        raise ConfigError(
            "--mend is only for a folder with its own database and blobs; leave --database and "
            "--blobs out, or mend these with their own tools"
        )
    lock = lock_service(folder) if mend and folder.is_dir() else None
    try:
        findings = []
        for finding in examine(folder, bundle, mend, database, blobs):
            findings.append(finding)
            if not as_json:
                print(finding)
    finally:
        if lock is not None:
            os.close(lock)
    if as_json:
        print_json(findings)
    raise typer.Exit(1 if any(finding.verdict == "wrong" for finding in findings) else 0)
