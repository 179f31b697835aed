"""`shoal doctor`: is everything in a service's folder as it should be?"""

import os
from pathlib import Path

import typer

from aggregator.doctor.examine import examine
from aggregator.identity import lock_service
from wire.errors import ConfigError


def doctor(folder: Path, bundle: Path | None, database: str, blobs: str, mend: bool) -> None:
    """Carry out `shoal doctor`."""
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
