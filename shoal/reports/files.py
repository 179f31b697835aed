"""Finished runs and comparisons as files: ``summary.json`` or a table, pictures and the report."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aggregator.ports import Blobs
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import Summary
from shoal.asked import NOW
from shoal.reports.comparison_page import comparison_page, grid_page
from shoal.reports.comparison_pictures import draw_comparison, draw_grid
from shoal.reports.pictures import draw_accuracy, draw_confusion, draw_map, draw_similarity
from shoal.reports.run_page import Extras, run_page
from shoal.reports.tables import flat_rows
from simulation.comparison.grid_table import GridTables


def slug(name: str) -> str:
    """Return a name in a form that is allowed in file names and run ids."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:64]


def write_report(
    out: Path,
    summary: Summary,
    records: Sequence[RoundRecord],
    blobs: Blobs,
    extras: Extras = Extras(),  # noqa: B008  # frozen
) -> list[Path]:
    """Write the summary, the pictures and the report of a run into `out`; return the paths."""
    file, page = out / "summary.json", out / "report.html"
    file.write_text(json.dumps(msgspec.to_builtins(summary), indent=1) + "\n")
    pictures = [draw_accuracy(out / "accuracy.png", summary)]
    pictures += draw_similarity(out, summary, records, blobs)
    if extras.confusion is not None:
        matrices = {"all devices": extras.confusion}
        if len(extras.group_confusions) > 1:
            matrices |= {f"group {n}": counts for n, counts in extras.group_confusions.items()}
        pictures.append(draw_confusion(out / "confusion.png", matrices, extras.classes))
    if extras.distances:
        ids, apart = extras.surveyed, extras.distances
        groups = {d: device.group for d, device in summary.devices.items()}
        pictures.append(draw_map(out / "map.png", apart, ids, groups, "group"))
    for name in ("similarity.png", "confusion.png", "map.png"):  # those of an earlier run
        if out / name not in pictures:
            (out / name).unlink(missing_ok=True)
    page.write_text(run_page(summary, records, blobs, extras))
    return [file, *pictures, page]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, with their nested fields as columns NAME.FIELD."""
    flat = flat_rows(rows)
    names = list(dict.fromkeys(name for row in flat for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(flat)


def write_comparison(
    out: Path, results: Sequence[dict[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """Write a comparison into `out`, and return the paths of the files.

    They are ``compare.json``, ``compare.csv``, ``compare.png`` and ``report.html``.
    """
    files = _files(out)
    files[0].write_text(json.dumps(rows, indent=1) + "\n")
    write_csv(files[1], rows)
    draw_comparison(files[2], results, rows)
    files[3].write_text(comparison_page(results, rows, NOW.get()))
    return files


def write_grid(out: Path, tables: GridTables) -> list[Path]:
    """Write a grid into the same files as a comparison, and return their paths."""
    files = _files(out)
    cells = [{**cell._asdict(), "algorithms": rows} for cell, rows in tables.cells.items()]
    missing = [{**cell._asdict(), "why": why} for cell, why in tables.left_out.items()]
    files[0].write_text(
        json.dumps({"overall": tables.overall, "cells": cells, "left_out": missing}, indent=1)
        + "\n"
    )
    write_csv(files[1], tables.lines())
    draw_grid(files[2], tables.cells, tables.overall)
    files[3].write_text(grid_page(tables, NOW.get()))
    return files


def _files(out: Path) -> list[Path]:
    return [out / name for name in ("compare.json", "compare.csv", "compare.png", "report.html")]
