"""Measurements in benchmarks/results/papers.json: by a table's key, if it is a night's run, and its
rows by column."""

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
        """Keep what was measured in the place of what was there. A row of a table that was not
        measured now, or over fewer seeds, stays as it was if it was trained as much: a night may be
        made in parts."""
        before = self.of(key)
        for column, rows in measured.items():
            if isinstance(rows, list):
                measured = {**measured, column: _joined(before.get(column, []), rows)}
        machine = f"{platform.machine()}, {platform.processor() or platform.system()}"
        self._held[key] = {"night": night, "machine": machine, "measured": measured}
        write_atomically(self.path, (json.dumps(self._held, indent=1) + "\n").encode())

    def of(self, key: str) -> dict[str, Any]:
        """Return the measurements under a key, or nothing if it has not been run."""
        found: dict[str, Any] = self._held.get(key, {}).get("measured", {})
        return found


def _joined(before: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a column, one for each algorithm; the earlier ones if none was made."""
    found = {row["algorithm"]: row for row in made}
    stays = {
        row["algorithm"]: row
        for row in before
        if _outweighs(row, found.get(row["algorithm"]), made)
    }
    return list((found | stays).values()) if made else before


def _outweighs(
    row: dict[str, Any], made: dict[str, Any] | None, column: list[dict[str, Any]]
) -> bool:
    """Return True if an earlier row is worth more than the new results of its algorithm."""
    if made is not None:
        return row["seeds"] > made["seeds"] and _amount(row) == _amount(made)
    return any(_amount(row) == _amount(other) for other in column)


def _amount(row: dict[str, Any]) -> str:
    """Return the amount of training, without the number of seeds."""
    return str(row["trained"]).rpartition(", ")[0]
