"""The command `shoal simulate`: a fleet on one machine, before any real device takes part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.command import Options, command
from shoal.commands import options as opt
from simulation.settings import EngineSettings, SimulationSettings

if TYPE_CHECKING:
    from aggregator.view.summary import Summary
    from simulation.engine.progress import RunProgress


@command(loads="shoal.api.run")
def simulate(
    *,
    data: opt.Data = "watch",
    words: Annotated[dict[str, Any], Options((SimulationSettings, EngineSettings))],
    out: opt.Out = Path("runs/simulate"),
    models: Annotated[
        str,
        typer.Option(
            help="Models that are written to OUT/models (.safetensors, .pt, .onnx): groups, all "
            "(of devices too), none, or auto: all, but only groups with more than 20 devices."
        ),
    ] = "auto",
) -> Summary:
    """Simulate a fleet on this machine.

    The aggregator's mathematics and the devices' executor are the real ones. All cores of this
    machine work, or those of a cluster.
    """
    from rich.console import Console

    from shoal.api import run
    from shoal.reports.tables import device_table, newcomer_table
    from shoal.reports.words import backend_text, time_text, verdict
    from shoal.waiting import working

    console = Console()
    about = f"{words['algorithm']} on {data}"
    with working(console) as say:

        def show(event: RunProgress | str) -> None:
            if isinstance(event, str):
                say(event)
                return
            if event.privacy:
                console.print(f"privacy: {event.privacy}", soft_wrap=True)
                return
            if event.trained and not event.records and words["backend"] != "messages":
                text = f"{words['checkpoint']} has {event.trained} rounds"
                console.print(f"{text}; the run continues after them", soft_wrap=True)
            hour = f", hour {event.at_s / 3600:.1f}" if event.at_s else ""
            begins = "the first round also compiles and compares devices"
            groups = f"{event.groups} group{'' if event.groups == 1 else 's'}"
            beside = f"{groups}{hour}" if event.records else begins
            say(about, event.trained, words["rounds"], beside)

        result = run.simulate(data, **words, out=out, models=models, on_progress=show)
    summary = result.summary
    skew = msgspec.to_builtins(summary.heterogeneity)
    numbers = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in skew.items())
    console.print(f"heterogeneity of the devices' data: {numbers}", soft_wrap=True)
    console.print(device_table(summary))
    if summary.newcomers:
        console.print(newcomer_table(summary.newcomers, keeps=summary.personal_models is not None))
    console.print(backend_text(summary), soft_wrap=True)
    if summary.time is not None:
        console.print(time_text(summary.time), soft_wrap=True)
    console.print(verdict(summary), soft_wrap=True)
    console.print(f"written: {', '.join(map(str, result.files))}", soft_wrap=True)
    console.print(
        f"Open {out / 'report.html'} in a browser. `shoal ui {out.parent}` lists all runs.",
        soft_wrap=True,
    )
    return summary
