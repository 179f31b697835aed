"""A comparison as files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.comparison_picture import draw_comparison
from shoal.comparison_tables import write_csv


def write_comparison(out: Path, results: Sequence[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write ``compare.json``, ``compare.csv`` and ``compare.png``; returns the files."""
    files = [out / f"compare.{ending}" for ending in ("json", "csv", "png")]
    files[0].write_text(json.dumps(rows, indent=1) + "\n")
    write_csv(files[1], rows)
    draw_comparison(files[2], results, rows)
    return files
