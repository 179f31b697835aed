"""The command `shoal algorithms`, which lists every name that an algorithm may contain."""

from shoal.command import command, print_json
from shoal.commands import options as opt


@command()
def algorithms(
    as_json: opt.Json = False,
) -> None:
    """List the choices of an algorithm: objectives, groupings, means, privacy, tasks.

    An algorithm is one or more of them, joined with +.
    """
    from rich.console import Console
    from rich.table import Table

    from algorithms.composition import listing

    rows = listing()
    if as_json:
        print_json(rows)
        return
    table = Table(header_style="bold")
    for heading in ("choice", "name", "options", "source"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        options = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        table.add_row(row["choice"], row["name"], options, row["citation"])
    Console().print(table)
