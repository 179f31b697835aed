"""`shoal simulate`: a fleet on one machine, before anything is rolled out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from host.files import prepare_folder
from shoal.asked import NOW
from shoal.command import Options, command, warn
from shoal.commands import options as opt
from simulation.settings import EngineSettings, SimulationWords
from wire.errors import ConfigError

if TYPE_CHECKING:
    from aggregator.core.summary import Summary
    from algorithms.composition import AlgorithmSpec
    from shoal.reports.run_page import Extras
    from simulation.datasets.windows import FleetData
    from simulation.engine.progress import RunProgress
    from simulation.simulate import SimulationResult


MODELS = ("auto", "all", "groups", "none")


FEW = 20
"""Of so many devices at most the models are written where nobody says."""


SHOWN = 1000
"""Of a larger fleet so many devices are measured and drawn."""


@command(loads="shoal.api.run")
def simulate(
    *,
    data: opt.Data = "watch",
    words: Annotated[dict[str, Any], Options((SimulationWords, EngineSettings))],
    out: opt.Out = Path("runs/simulate"),
    models: Annotated[
        str,
        typer.Option(
            help="Of what OUT/models has files (.safetensors, .pt, .onnx): groups, all (each "
            "device's too), none; auto: all, and of more "
            "than 20 devices the groups alone."
        ),
    ] = "auto",
) -> Summary:
    """Simulate a fleet: the aggregator's mathematics and the devices' executor. All cores of this
    machine work, or those of a cluster."""
    from rich.console import Console

    from aggregator.core.summary import Heterogeneity
    from shoal.api.callbacks import CsvLog
    from shoal.api.model_files import why_left_out
    from shoal.api.progress import Models, progress_of
    from shoal.api.result import Result
    from shoal.api.settings import engine_options, make_settings
    from shoal.reports.files import write_report
    from shoal.reports.pictures import draw_holdings
    from shoal.reports.tables import device_table, newcomer_table
    from shoal.reports.words import time_text, verdict
    from shoal.waiting import rounds as rounds_shown
    from shoal.waiting import steps
    from simulation import simulate as simulation
    from simulation.datasets.doubts import doubts
    from simulation.heterogeneity import measure
    from simulation.objective import suited
    from simulation.partition import make_fleet, read_partition
    from simulation.scenario import check_scenario

    console = Console()
    if models not in MODELS:
        raise ConfigError(f"--models {models}: expected {', '.join(MODELS)}")
    engine = engine_options(words)
    settings = make_settings(words, words["algorithm"])
    devices, checkpoint = words["devices"], words["checkpoint"]
    assigned = read_partition(words["partition"])
    check_scenario(settings.scenario, assigned)
    with steps(console, f"reading {data}") as say:
        fleet = make_fleet(data, assigned, devices, settings.seed)
        settings = msgspec.structs.replace(settings, algorithm=suited(settings.algorithm, fleet))
        held = simulation.scene_of(fleet, settings).some(SHOWN)
        say("measuring how much devices differ")
        holdings = draw_holdings(prepare_folder(out) / "holdings.png", held)
        heterogeneity = measure(held)
    for said in doubts(held, settings.algorithm.has_classes):
        warn(said)
    console.print(
        "heterogeneity: "
        + ", ".join(f"{name} {value:.3g}" for name, value in heterogeneity.items()),
        soft_wrap=True,
    )
    with rounds_shown(
        console,
        f"{settings.algorithm} on {fleet.name}, {len(fleet.devices)} devices",
        settings.rounds,
    ) as told_of:

        def show(run: RunProgress) -> None:
            if run.trained and not run.records and engine.backend != "messages":
                console.print(
                    f"{checkpoint} has {run.trained} rounds; the run goes on after them",
                    soft_wrap=True,
                )
            hour = f", hour {run.at_s / 3600:.1f}" if run.at_s else ""
            told_of(
                run.trained,
                f"groups {run.groups}{hour}"
                if run.records
                else "the first round also compiles and compares devices",
            )

        outcome = simulation.simulate(fleet, settings, show, engine=engine)
    told = {"heterogeneity": Heterogeneity(**heterogeneity), "command": NOW.get().command}
    summary = msgspec.structs.replace(outcome.summary, **told)
    with steps(console, "writing the report"):
        extras = extras_of(outcome, settings.algorithm, held)
        files = [
            holdings,
            *write_report(out, summary, outcome.records, outcome.blobs, extras),
            out / "rounds.csv",
        ]
        CsvLog(out / "rounds.csv").on_round(
            progress_of(
                outcome.records, Models(outcome.models, outcome.data.devices), lambda: outcome.data
            )
        )
    if models != "none":
        with steps(console, "writing models"):
            ids: list[str] | None = (
                []
                if models == "groups" or (models == "auto" and len(outcome.data.devices) > FEW)
                else None
            )
            written = Result(outcome).save(out / "models", ids)
        warn(why_left_out(written))
        files.append(out / "models")
    console.print(device_table(summary))
    if summary.newcomers:
        console.print(newcomer_table(summary.newcomers, keeps=summary.kept is not None))
    reason = f" ({summary.backend_reason})" if summary.backend_reason else ""
    console.print(
        f"backend: {summary.backend}{reason}; {summary.updates_per_s:.0f} updates/s", soft_wrap=True
    )
    if summary.time is not None:
        console.print(time_text(summary.time), soft_wrap=True)
    console.print(verdict(summary), soft_wrap=True)
    console.print(f"written: {', '.join(str(f) for f in files)}", soft_wrap=True)
    return summary


def extras_of(outcome: SimulationResult, spec: AlgorithmSpec, held: FleetData) -> Extras:
    """The extras of a finished simulation; `held`: what devices had of the data, newcomers and
    all."""
    import numpy as np

    from shoal.api.result import Result
    from shoal.reports.pictures import class_counts
    from shoal.reports.run_page import Extras
    from simulation.cost import count
    from wire.tasks import CLASSIFICATION, SEQUENCE

    data, result, objective = outcome.data, Result(outcome), outcome.models.objective
    asked = sorted(data.devices)[:SHOWN]
    confusion = None
    if objective.task.of in (CLASSIFICATION, SEQUENCE):
        confusion = np.sum([result.confusion(device_id) for device_id in asked], axis=0)
    verbs = [verb for program in outcome.state.programs.values() for verb in program]
    return Extras(
        recipe=spec.recipe,
        confusion=confusion,
        confused=len(asked),
        classes=data.classes,
        holdings={
            d: class_counts(w.train_y, len(held.classes), held.window.steps)
            for d, w in held.devices.items()
        },
        counted=count(outcome.records, verbs, objective, data.window.shape),
        settings=NOW.get().settings,
    )
