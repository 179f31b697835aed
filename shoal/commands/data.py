"""The command `shoal data`, which shows what Shoal reads in files of data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.command import Options, command, print_json
from shoal.commands import options as opt
from simulation.settings import SimulationSettings

data = typer.Typer(
    rich_markup_mode=None,
    help="Show what is read in files of data, and what was taken for what.",
    no_args_is_help=True,
)


@data.command("show")
@command(loads="simulation.datasets.catalog")
def show(
    source: Annotated[
        str, typer.Argument(help="Data as `--data` takes them: a name, or the path of a folder.")
    ],
    as_json: opt.Json = False,
    *,
    words: Annotated[dict[str, Any], Options((SimulationSettings,), only=opt.CUTS)],
) -> None:
    """Show columns with their roles, rates, gaps, and the windows of each device and class."""
    from simulation.datasets.catalog import Cuts, load_data
    from simulation.datasets.description import column_rows, described, device_rows, labels_line
    from simulation.datasets.doubts import doubts

    fleet = load_data(source, Cuts(**words))
    if not as_json:
        print(described(fleet))
        return
    columns, devices = (
        [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        for rows in (column_rows(fleet), device_rows(fleet))
    )
    print_json(
        {
            "channels": fleet.window.channels,
            "classes": fleet.classes,
            "labels": labels_line(fleet).removeprefix("labels: "),
            "length": fleet.window.length,
            "stride": fleet.window.stride,
            "rate_hz": fleet.window.rate_hz,
            "columns": columns,
            "devices": devices,
            "warnings": doubts(fleet),
        }
    )
