"""`shoal simulate`: a fleet on one machine, before anything is rolled out."""

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from aggregator.core.summary import Heterogeneity, Summary
from algorithms.blame import blaming
from shoal.api.callbacks import CsvLog
from shoal.api.progress import Models, progress_of
from shoal.api.result import Result
from shoal.api.settings import engine_options, make_settings
from shoal.api.written import why_left_out
from shoal.asked import NOW
from shoal.choices import hyper_given
from shoal.folders import prepare_folder
from shoal.handlers.run_extras import extras_of
from shoal.reports.files import device_table, newcomer_table, write_report
from shoal.reports.pictures import draw_holdings
from shoal.reports.words import time_text, verdict
from shoal.waiting import rounds as rounds_shown
from shoal.waiting import steps
from shoal.warn import warn
from simulation import simulate as simulation
from simulation.datasets.doubts import doubts
from simulation.engine.progress import RunProgress
from simulation.heterogeneity import measure
from simulation.objective import suited
from simulation.partition import make_fleet, read_partition
from simulation.scenario import check_scenario
from wire.errors import ConfigError

MODELS = ("auto", "all", "groups", "none")


FEW = 20
"""Of so many devices at most the models are written where nobody says."""


SHOWN = 1000
"""Of a larger fleet so many devices are measured and drawn."""


@blaming()
def simulate(
    data: str,
    seed: int,
    rounds: int,
    out: Path,
    partition: str,
    devices: int | None,
    hyper: list[str] | None,
    backend: str,
    workers: int,
    checkpoint: Path | None,
    cluster: str,
    device: str,
    bf16: bool,
    models: str,
    **others: Any,
) -> Summary:
    """Carry out `shoal simulate`; `others` are those of `make_settings`."""
    console = Console()
    if models not in MODELS:
        raise ConfigError(f"--models {models}: expected {', '.join(MODELS)}")
    engine = engine_options(backend, workers, checkpoint, cluster, device, bf16)
    settings = make_settings(rounds=rounds, seed=seed, hyper=hyper_given(hyper), **others)
    assigned = read_partition(partition)
    check_scenario(settings.scenario, assigned)
    with steps(console, f"reading {data}") as say:
        fleet = make_fleet(data, assigned, devices, seed)
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
        console, f"{settings.algorithm} on {fleet.name}, {len(fleet.devices)} devices", rounds
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
