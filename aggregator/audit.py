"""What people did to a fleet: one line of JSON each, in the service's folder."""

import json
import logging
import os
import time
from pathlib import Path

log = logging.getLogger("shoal.aggregator")

AUDIT = "audit.log"


def note(folder: Path, by: str, what: str, outcome: str, **details: str) -> None:
    """Add a line to the folder's audit log, which is on the disk when this returns: when (Unix seconds), who, what, and what came of it. A
    log that cannot be written is said in the service's own log: an operator must be able to act on a full disk."""
    line = json.dumps({"at_s": round(time.time(), 3), "by": by, "what": what, "outcome": outcome, **details}) + "\n"
    try:
        with (folder / AUDIT).open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        log.error("audit: %s: %s; the line was %s", folder / AUDIT, error.strerror, line.strip())
