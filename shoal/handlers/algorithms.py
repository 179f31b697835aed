"""`shoal algorithms`: every name that may stand in an algorithm."""

from rich.console import Console
from rich.table import Table

from algorithms.registry import listing
from shoal.printing import print_json


def algorithms(as_json: bool) -> None:
    """Carry out `shoal algorithms`."""
    rows = listing()
    if as_json:
        print_json(rows)
        return
    table = Table(header_style="bold")
    for heading in ("choice", "name", "options", "from"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        options = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        table.add_row(row["choice"], row["name"], options, row["citation"])
    Console().print(table)
