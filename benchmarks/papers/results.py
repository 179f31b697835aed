"""What was measured, as benchmarks/results/papers.json has it: by a table's key, whether it is a night's run, and its rows by column."""

import json
import platform
from pathlib import Path
from typing import Any

from host.files import write_atomically


class Results:
    """The results, read from a file and written to it whenever something is kept."""

    def __init__(self, path: Path) -> None:
        """An absent file has no results yet."""
        self.path = path
        self._held: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def keep(self, key: str, measured: dict[str, Any], night: bool) -> None:
        """Keep what was measured in the place of what was there."""
        machine = f"{platform.machine()}, {platform.processor() or platform.system()}"
        self._held[key] = {"night": night, "machine": machine, "measured": measured}
        write_atomically(self.path, (json.dumps(self._held, indent=1) + "\n").encode())

    def of(self, key: str) -> dict[str, Any]:
        """What was measured under a key; nothing where it has not been run."""
        found: dict[str, Any] = self._held.get(key, {}).get("measured", {})
        return found
