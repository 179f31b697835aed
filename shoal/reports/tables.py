"""Devices of a run, and the algorithms of a comparison, as tables for a terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from aggregator.http.pages.words import number, percent
from aggregator.view.summary import Newcomers, Summary
from algorithms.personalisation.kept import NOT_TOLD, kept_text

MOST_ROWS = 100
"""Maximum number of rows of a table of devices."""
WIDEST_ID = 24
"""Width up to which a device's name stays on one line, in characters."""


def device_table(summary: Summary) -> Table:
    """Return a table with a row for each device, by group; devices without a group come first.

    Its caption counts the personal models: in a row there is no room for one. Beside a comparison
    there is no room for the numbers of windows either.
    """
    width = min(WIDEST_ID, max(map(len, summary.devices), default=0))
    counts: tuple[str, ...] = () if summary.comparison else ("training", "test")
    table = _table("device", ("group", *counts, "accuracy"), min_width=width)
    if summary.macro_f1:
        table.add_column("macro F1", justify="right")
    if summary.auc:
        table.add_column("AUC", justify="right")
    for name in summary.mae or {}:
        table.add_column(f"error of {name}", justify="right")
    if summary.accuracy_is:
        table.add_column("loss", justify="right")
    for name in summary.comparison:
        table.add_column(name, justify="right")
    is_placed = any(device.placed for device in summary.devices.values())
    if is_placed:
        table.add_column("certainty", justify="right")
    rows = sorted(
        summary.devices.items(),
        key=lambda item: (-1 if item[1].group is None else item[1].group, item[0]),
    )
    captions = []
    if len(rows) > MOST_ROWS:
        captions.append(f"{len(rows) - MOST_ROWS:,} more are in summary.json")
    if summary.personal_models:
        models = summary.personal_models
        devices = {**models.candidates, NOT_TOLD: models.not_told}
        captions.append("Personal models, by number of devices:")
        captions += [f"{count:4} {name}" for name, count in devices.items() if count]
    table.caption, table.caption_justify = "\n".join(captions) or None, "left"
    for device_id, device in rows[:MOST_ROWS]:
        group = "-" if device.group is None else str(device.group)
        cells = [percent(device.macro_f1)] if summary.macro_f1 else []
        cells += [percent(device.auc)] if summary.auc else []
        cells += [number((device.mae or {}).get(name)) for name in summary.mae or {}]
        cells += [number(device.loss)] if summary.accuracy_is else []
        cells += [percent(other.devices.get(device_id)) for other in summary.comparison.values()]
        cells += [percent(device.placed.sure) if device.placed else ""] if is_placed else []
        table.add_row(
            device_id,
            group,
            *([str(device.num_train), str(device.num_test)] if counts else []),
            percent(device.accuracy),
            *cells,
        )
    return table


def newcomer_table(came: Newcomers, keeps: bool) -> Table:
    """Return a table with a row for each newcomer.

    `keeps`: True if devices choose a personal model.
    """
    width = min(WIDEST_ID, max(map(len, came.devices), default=0))
    columns = ("group", "certainty", "farther out than", "accuracy")
    table = _table("newcomer", columns, min_width=width)
    if keeps:
        table.add_column("personal model")
    for device_id, accuracy in list(came.devices.items())[:MOST_ROWS]:
        cells = [kept_text(came.personal_models[device_id])] if keeps else []
        placed = came.placed[device_id]
        table.add_row(
            device_id,
            placed.group,
            percent(placed.sure),
            percent(placed.nearer) if placed.neighbours else "",
            percent(accuracy),
            *cells,
        )
    return table


Cell = Callable[[Mapping[str, Any]], str]
"""A function from a row to the text of one of its cells."""
_WORST_AND_F1: Mapping[str, Cell] = {
    "worst %": lambda r: _percent(r["accuracy"]["worst"]),
    "tenth %": lambda r: _percent(r["accuracy"]["worst_tenth"]),
    "F1 %": lambda r: _percent(r["macro_f1"]["mean"]),
}
FEWEST = 3
"""Minimum number of values of which a table shows the interval of their mean.

Student's t makes that of two values 12.7 standard errors wide.
"""
GAP = 2
"""Characters between the columns of a table."""


def flat_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their nested fields as NAME.FIELD.

    A row in which such a field is None has none of these.
    """
    nested = {name for row in rows for name, value in row.items() if isinstance(value, dict)}
    flat_lines: list[dict[str, Any]] = []
    for row in rows:
        flat: dict[str, Any] = {}
        for name, value in row.items():
            flat |= (
                {f"{name}.{key}": v for key, v in (value or {}).items()}
                if name in nested
                else {name: value}
            )
        flat_lines.append(flat)
    return flat_lines


Columns = Mapping[str, Sequence[str]]
"""Cells of the rows by heading, without columns that have no value in any row."""


def comparison_columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of a comparison."""
    cells: dict[str, Cell] = {
        "accuracy %": _accuracy,
        **_WORST_AND_F1,
        **_of_the_task(rows),
        **_against(rows),
        "groups": lambda r: _number(r["groups"]["count"], "g"),
        "ARI": lambda r: _number(r["groups"]["ari"], ".2f"),
        "MB up": lambda r: f"{r['bytes']['up'] / 1e6:.1f}",
        "MB down": lambda r: f"{r['bytes']['down'] / 1e6:.1f}",
        "to " + percent(rows[0]["target"]): lambda r: _number(r["rounds_to_target"], "g"),
        "hours": lambda r: (
            "-" if r["time_to_target_s"] is None else f"{r['time_to_target_s'] / 3600:.3g}"
        ),
        "epsilon": lambda r: _number(r["epsilon"], ".2f"),
        "attack %": lambda r: _percent(r["attack"]["success_rate"]) if "attack" in r else "-",
        "apart": lambda r: f"{r['attack']['told_apart']}/{r['seeds']}" if "attack" in r else "-",
        "newcomers %": lambda r: _percent(r["newcomers"]["mean"]) if "newcomers" in r else "-",
        "personal model": _keeps,
        "time s": lambda r: _number(r["wall_s"], ".0f"),
    }
    return _columns(rows, cells)


def _of_the_task(rows: Sequence[Mapping[str, Any]]) -> dict[str, Cell]:
    """Return the columns of the AUC of several labels and of each quantity's mean absolute error.

    A quantity has a column if a row has its error.
    """

    def error_of(name: str) -> Cell:
        return lambda r: _number(r.get("mae", {}).get(name), ".3g")

    quantities = dict.fromkeys(name for row in rows for name in row.get("mae", {}))
    errors = {f"error of {name}": error_of(name) for name in quantities}
    return {"AUC %": lambda r: _percent(r["auc"]["mean"]) if "auc" in r else "-", **errors}


def cell_columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of a cell of a grid."""
    cells: dict[str, Cell] = {
        "accuracy %": _accuracy,
        **_WORST_AND_F1,
        **_of_the_task(rows),
        "below": lambda r: _percent(r["below_best"]),
        **_against(rows),
        "personal model": _keeps,
    }
    return _columns(rows, cells)


def overall_columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the columns of all cells of a grid together."""
    cells: dict[str, Cell] = {
        "mean %": lambda r: _percent(r["accuracy"]["mean"]),
        "tenth %": lambda r: _percent(r["accuracy"]["worst_tenth"]),
        "F1 %": lambda r: _percent(r["macro_f1"]["mean"]),
        "below": lambda r: _percent(r["below_best"]),
        "most below": lambda r: _percent(r["most_below_best"]),
        "best in": lambda r: f"{r['near_best']}/{r['cells']}",
        **_against(rows),
    }
    return _columns(rows, cells)


def _columns(rows: Sequence[Mapping[str, Any]], cells: Mapping[str, Cell]) -> Columns:
    columns = {heading: [cell_of(row) for row in rows] for heading, cell_of in cells.items()}
    return {
        heading: column
        for heading, column in columns.items()
        if any(cell != "-" for cell in column)
    }


def _keeps(row: Mapping[str, Any]) -> str:
    """Return the candidate that most devices choose, with its share of the devices."""
    candidate, share = next(iter(row.get("personal_models", {}).items()), ("-", None))
    return candidate if share is None else f"{candidate} ({percent(share)})"


def _accuracy(row: Mapping[str, Any]) -> str:
    """Return the mean with the half width of its interval, from `FEWEST` seeds on."""
    accuracy = row["accuracy"]
    return _percent(accuracy["mean"]) + _half_width(accuracy["ci95"], row["seeds"])


def _half_width(value: float | None, count: int) -> str:
    """Return an interval's half width; "" for fewer values than `FEWEST`, as it says nothing."""
    return "" if value is None or count < FEWEST else f" ±{100 * value:.1f}"


def _against(rows: Sequence[Mapping[str, Any]]) -> dict[str, Cell]:
    """Return the columns of the paired test; none if nothing was tested."""
    reference = next((row["against"]["reference"] for row in rows if row.get("against")), None)
    if reference is None:
        return {}
    return {
        "gain": _gain,
        "p": lambda r: f"{r['against']['p']:.2g}" if r.get("against") else "-",
    }


def _gain(row: Mapping[str, Any]) -> str:
    test = row.get("against")
    if not test:
        return "-"
    return f"{100 * test['difference']:+.1f}" + _half_width(test["ci95"], test["pairs"])


def tables(rows: Sequence[Mapping[str, Any]], columns: Columns, width: int) -> list[Table]:
    """Return the algorithms' rows as tables of at most `width` characters.

    Columns that do not fit go into further tables.
    """
    names = [row["algorithm"] for row in rows]
    name_width = min(max(map(len, ["algorithm", *names])), width // 4)
    parts: list[dict[str, Sequence[str]]] = []
    room = 0
    for heading, column in columns.items():
        needed = GAP + max(map(len, (heading, *column)))
        if needed > room:
            parts.append({})
            room = width - name_width
        parts[-1][heading] = column
        room -= needed
    tables = [_table("algorithm", shown, width=name_width) for shown in parts]
    for table, shown in zip(tables, parts, strict=True):
        for cells in zip(names, *shown.values(), strict=True):
            table.add_row(*cells)
    return tables


def _table(
    first: str, numbers: Iterable[str], width: int | None = None, min_width: int | None = None
) -> Table:
    """Return a table without rows.

    Its first column may be folded; the others, with these headings, are for numbers.
    """
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),  # the box adds 1
        header_style="bold",
    )
    table.add_column(first, overflow="fold", width=width, min_width=min_width)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
