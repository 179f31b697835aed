"""`shoal doctor`: is everything in a service's folder as it should be?"""

import os
from pathlib import Path

import typer

from aggregator.leadership.identity import lock_service
from aggregator.maintenance.examine import examine
from shoal.printing import print_json
from wire.errors import ConfigError


def doctor(
    folder: Path, bundle: Path | None, database: str, blobs: str, mend: bool, as_json: bool
) -> None:
    """Carry out `shoal doctor`."""
    if mend and (database or blobs):
        raise ConfigError(
            "--mend: only a folder with its own database and blobs is mended; others have tools "
            "of their own for that"
        )
    held = lock_service(folder) if mend and folder.is_dir() else None
    try:
        findings = []
        for finding in examine(folder, bundle, mend, database, blobs):
            findings.append(finding)
            if not as_json:
                print(finding)
    finally:
        if held is not None:
            os.close(held)
    if as_json:
        print_json(findings)
    raise typer.Exit(1 if any(finding.verdict == "wrong" for finding in findings) else 0)
