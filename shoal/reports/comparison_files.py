"""A comparison as files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.asked import NOW
from shoal.reports.comparison_page import comparison_page, grid_page
from shoal.reports.comparison_picture import draw_comparison
from shoal.reports.comparison_tables import write_csv
from shoal.reports.grid_picture import draw_grid
from simulation.comparison.grid_table import GridTables, place_of


def write_comparison(
    out: Path, results: Sequence[dict[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """Write ``compare.json``, ``compare.csv``, ``compare.png`` and ``report.html``; returns the
    files."""
    files = _files(out)
    files[0].write_text(json.dumps(rows, indent=1) + "\n")
    write_csv(files[1], rows)
    draw_comparison(files[2], results, rows)
    files[3].write_text(comparison_page(results, rows, NOW.get()))
    return files


def write_grid(out: Path, tables: GridTables) -> list[Path]:
    """Write the same files of a grid; returns them."""
    files = _files(out)
    found = [{**place_of(cell), "algorithms": rows} for cell, rows in tables.cells.items()]
    missing = [{**place_of(cell), "why": why} for cell, why in tables.left_out.items()]
    files[0].write_text(
        json.dumps({"overall": tables.overall, "cells": found, "left_out": missing}, indent=1)
        + "\n"
    )
    write_csv(files[1], tables.lines())
    draw_grid(files[2], tables.cells, tables.overall)
    files[3].write_text(grid_page(tables, NOW.get()))
    return files


def _files(out: Path) -> list[Path]:
    return [out / name for name in ("compare.json", "compare.csv", "compare.png", "report.html")]
