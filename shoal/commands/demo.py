"""The command `shoal demo`: the whole product on this machine, on real data.

It runs a broker, the aggregator and one process per device.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from host.files import prepare_folder
from shoal.asked import NOW
from shoal.command import Options, command, warn
from shoal.commands import options as opt
from simulation.settings import SimulationSettings
from wire.errors import ConfigError, ShoalError

if TYPE_CHECKING:
    from rich.console import Console

    from aggregator.view.round_record import RoundRecord
    from aggregator.view.summary import Summary
    from algorithms.composition import AlgorithmSpec
    from export.publish import Publication
    from simulation.datasets.windows import FleetData
    from simulation.local.fleet import LocalFleet
    from wire.identity.keys import PrivateKey


FLEET = "demo"
POISON = "sign-flip:scale=9"
"""Attack of poisoners: an update that is almost as loud as the service's bounds allow."""


@command(loads="simulation.simulate")
def demo(
    *,
    data: opt.Data = "watch",
    words: Annotated[
        dict[str, Any],
        Options(
            (SimulationSettings,), only=("algorithm", "devices", "rounds", "local_epochs", "seed")
        ),
    ],
    out: opt.Out = Path("runs/demo"),
    phones: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of devices that are Kotlin phones with ExecuTorch, on this machine's "
            "Java.",
        ),
    ] = 0,
    poisoners: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of devices that send minus nine times their change in every round.",
        ),
    ] = 0,
    secret: Annotated[
        bool,
        typer.Option(
            "--secret",
            help="Secret mode: the aggregator learns only sums, which three helpers open. The "
            "algorithm is distfl+uniform unless another one is named.",
        ),
    ] = False,
) -> Summary:
    """Train twenty real smartwatches over MQTT, find their groups, and compare with FedAvg.

    The broker, the aggregator and the devices are processes on this machine. A device that is
    killed is started again, as a board's or a phone's operating system does.
    """
    from rich.console import Console

    from aggregator.http.pages.words import percent
    from aggregator.maintenance.database import read_view
    from aggregator.storage.blob_folder import BlobFolder
    from aggregator.view.summary import EdgeSummary, PhonesSummary
    from algorithms.composition import read_algorithm
    from algorithms.spec import DEFAULT_ALGORITHM
    from algorithms.sums import check_in_sums
    from edge_client.core.sums import LEAST_SUM
    from export.describe import MIN_BATCH
    from export.publish import TRUST_FILE, own_key
    from export.runtimes import ONNX
    from shoal.beside import (
        comparison_of,
        model_of_the_group,
        run_in_clear_mode,
        run_simulations,
    )
    from shoal.reports.files import slug, write_report
    from shoal.reports.run_page import Extras
    from shoal.reports.tables import device_table
    from shoal.reports.words import verdict
    from shoal.secret import accuracy_here, campaign_of, groups_text, stored_table
    from shoal.waiting import steps
    from simulation.datasets.catalog import load_data
    from simulation.datasets.doubts import doubts
    from simulation.datasets.windows import able_to_train, check_trainable, select_devices
    from simulation.engine.workers.attacks import make_attack, read_attack, summary_of
    from simulation.engine.workers.processes import process_pool
    from simulation.local.broker import EmbeddedBroker
    from simulation.local.fleet import LocalFleet, phone_command
    from simulation.local.secret import SecretParties, eavesdrop
    from wire.bundle import EXECUTORCH

    console, spec = Console(), read_algorithm(words["algorithm"])
    if secret:
        if phones or poisoners:
            raise ConfigError("--secret has neither --phones nor --poisoners; leave them out")
        if spec == read_algorithm(DEFAULT_ALGORITHM):
            spec = read_algorithm("distfl+uniform")
        check_in_sums(spec)
    devices, rounds, seed = words["devices"], words["rounds"], words["seed"]
    local_epochs = words["local_epochs"]
    fleet = select_devices(load_data(data), devices)
    check_trainable(fleet, MIN_BATCH)
    for warning in doubts(fleet):
        warn(warning)
    attack_text = f"{POISON}:count={poisoners}" if poisoners else ""
    attack = make_attack(read_attack(attack_text), fleet, seed) if attack_text else None
    honest = sorted(fleet.devices.keys() - (attack.attackers if attack else set()))
    if phones > len(honest):
        raise ConfigError(
            f"--phones must be at most {len(honest)}, the number of "
            f"{'honest ' if attack else ''}devices, got {phones}"
        )
    chosen = honest[:phones]
    if chosen:
        with steps(console, "compiling the phone client"):
            phone_command()  # a missing tool is reported before anything begins
    runtimes = (ONNX, EXECUTORCH) if chosen else (ONNX,)
    prepare_folder(out)
    for old in ("aggregator", "devices", "bundle", "parties"):  # of an earlier run
        shutil.rmtree(out / old, ignore_errors=True)
    (out / "aggregator.log").unlink(missing_ok=True)
    others = len(fleet.devices) - len(chosen)
    console.print(
        f"[bold]{len(fleet.devices)} devices[/bold] with the data of '{fleet.name}': "
        f"{_processes(others, chosen)}.",
        soft_wrap=True,
    )
    settings = SimulationSettings(
        algorithm=spec, rounds=rounds, local_epochs=local_epochs, seed=seed
    )
    with ExitStack() as stack:
        # an export keeps one core busy, so the simulations have another one
        pool = stack.enter_context(process_pool(1))
        beside = partial(run_simulations, fleet, settings, attack_text)
        if secret:
            beside = partial(run_in_clear_mode, fleet, settings)
        simulations = pool.submit(beside)
        with steps(console, f"exporting {spec}") as say:
            folder = prepare_folder(out / "bundle")
            key = own_key(folder)
            published = _publish(fleet, spec, seed, key, runtimes, say)
            published.write(folder, key)
            bundle, error = published.bundle, published.parity.step_error
        size = f"{len(bundle.payload) / 1000:.0f} KB"
        console.print(
            f"bundle: {size}, signed; one step differs from float64 by {error:.0e} of a tensor's "
            "scale",
            soft_wrap=True,
        )
        broker = stack.enter_context(EmbeddedBroker())
        signal.signal(
            signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT)
        )  # after the broker, whose process would inherit the handler
        trainers = len(able_to_train(fleet, MIN_BATCH))
        parties, payloads = None, list[bytes]()
        if secret:
            parties = SecretParties(
                out / "parties",
                FLEET,
                fleet.devices,
                lambda device_id: out / "devices" / device_id / "state",
                key,
                folder / TRUST_FILE,
                broker.url,
                min(LEAST_SUM, trainers),
            )
            stack.enter_context(parties)
            payloads = stack.enter_context(eavesdrop(broker.url))
            console.print(
                f"helpers {', '.join(parties.names)} log to {out}/parties/NAME.log; in a fleet, "
                "other parties run them",
                soft_wrap=True,
            )
        edges = stack.enter_context(
            LocalFleet(
                fleet,
                out / "devices",
                broker.url,
                FLEET,
                folder / TRUST_FILE,
                chosen,
                edge_options=parties.options if parties is not None else (),
                attack=attack,
            )
        )
        console.print(
            f"broker: {broker.url}; aggregator and devices log to {out}/aggregator.log and "
            f"{out}/devices/ID/edge.log",
            soft_wrap=True,
        )
        if chosen:
            phone_processes = ", ".join(f"{edges.processes[d].pid} ({d})" for d in chosen)
            console.print(
                f"phones are processes {phone_processes}; one that you kill -9 starts again and "
                "resumes",
                soft_wrap=True,
            )
        options = {
            "--rounds": rounds,
            "--local-epochs": local_epochs,
            "--seed": seed,
            "--min-devices": trainers,
            "--folder": out / "aggregator",
            "--broker": broker.url,
            "--fleet": FLEET,
            "--bundle": folder,
        }
        if parties is not None:
            options |= {"--min-sum": parties.min_sum, "--helpers": parties.helpers}
        summary, records = _serve(console, out, spec, options, edges, rounds)
        edge = EdgeSummary(
            processes=others, max_rss_bytes=edges.max_rss_bytes(), torch_loaded=edges.torch_loaded()
        )
        phone = PhonesSummary(devices=chosen, max_rss_bytes=edges.max_rss_bytes(phones=True))
        names = "the same in clear mode" if secret else "FedAvg, training alone, and two newcomers"
        with steps(console, f"beside it, simulated: {names}"):
            comparison, joined = simulations.result()
    if parties is not None:
        campaign = campaign_of(out / "aggregator", slug(str(spec)))
        blobs = BlobFolder(out / "aggregator" / "blobs" / slug(str(spec)))
        with steps(console, "searching what everybody has stored"):
            table = stored_table(
                fleet,
                bundle,
                campaign,
                blobs,
                {"the aggregator": [out / "aggregator"]}
                | {f"helper {name}": [parties.folder_of(name)] for name in parties.names},
                payloads,
                next(record.round for record in records if record.phase == "training"),
            )
            accuracy = accuracy_here(fleet, bundle, campaign, blobs)
        console.print(table)
        console.print(groups_text(fleet, summary), soft_wrap=True)
        console.print(
            f"mean accuracy {percent(accuracy)}, computed by this command, which has the test "
            f"windows; simulated in clear mode: {percent(comparison['clear'].mean)}",
            style="bold",
            soft_wrap=True,
        )
        return summary
    if spec == read_algorithm("fedavg"):
        comparison = {"fedavg": comparison_of(summary)} | comparison
    if group := model_of_the_group(summary, records):
        comparison["group model"] = group
    summary = msgspec.structs.replace(
        summary, edge=edge, phones=phone, comparison=comparison, command=NOW.get().command
    )
    if attack:
        summary = msgspec.structs.replace(summary, attack=summary_of(attack, POISON, summary))
    blobs = BlobFolder(out / "aggregator" / "blobs" / slug(str(spec)))
    files = write_report(
        out, summary, records, blobs, Extras(recipe=spec.recipe, settings=NOW.get().settings)
    )
    console.print(device_table(summary))
    console.print(verdict(summary), style="bold", soft_wrap=True)
    for line in joined:
        console.print(line, soft_wrap=True)
    if attack:
        pulls = read_view(out / "aggregator").campaigns[slug(str(spec))].pulls
        names = ", ".join(pull.device_id for pull in pulls) or "nobody"
        poisoning = ", ".join(sorted(attack.attackers))
        console.print(f"poisoned by {poisoning}; the service names {names}", soft_wrap=True)
    for device_id, kills in sorted(edges.kills.items()):
        times = "once" if kills == 1 else f"{kills} times"
        count = sum(r.phase == "training" and device_id in r.evaluated for r in records)
        console.print(
            f"{device_id} was killed {times}; its updates count in {count} of {rounds} rounds",
            soft_wrap=True,
        )
    traffic = f"{summary.bytes.up / 1e6:.1f} MB from devices, {summary.bytes.down / 1e6:.1f} MB to"
    if chosen:
        console.print(
            f"a phone needs {phone.max_rss_bytes / 2**20:.0f} MiB, Java included",
            soft_wrap=True,
        )
    rss = edge.max_rss_bytes / 2**20
    console.print(
        f"traffic {traffic}; a process of shoal-edge needs {rss:.0f} MiB, "
        f"{'with' if edge.torch_loaded else 'without'} torch",
        soft_wrap=True,
    )
    console.print(f"written: {', '.join(str(f) for f in files)}", soft_wrap=True)
    console.print(f"Open {out / 'report.html'} in a browser.", soft_wrap=True)
    return summary


def _publish(
    fleet: FleetData,
    algorithm: AlgorithmSpec,
    seed: int,
    key: PrivateKey,
    runtimes: tuple[str, ...],
    say: Callable[[str], None],
) -> Publication:
    from export.publish import publish
    from simulation.objective import objective_for_fleet

    return publish(
        *(
            objective_for_fleet(fleet, algorithm, seed),
            fleet.window,
            fleet.classes,
            fleet.sample(),
            key,
        ),
        name=fleet.name,
        runtimes=runtimes,
        on_progress=lambda text: say(f"exporting {algorithm}: {text}"),
    )


def _serve(
    console: Console,
    out: Path,
    algorithm: AlgorithmSpec,
    options: dict[str, Any],
    edges: LocalFleet,
    rounds: int,
) -> tuple[Summary, list[RoundRecord]]:
    """Run one aggregator to the end of its campaign, showing progress.

    Return its summary and the records of its rounds.

    Raises:
        ShoalError: the aggregator or a device has stopped.
    """
    from aggregator.maintenance.database import read_view, read_whole
    from aggregator.view.summary import summarize
    from shoal.reports.files import slug
    from shoal.waiting import rounds as rounds_shown
    from simulation.local.broker import free_port
    from simulation.local.fleet import ONE_THREAD, start_process, stop_processes

    port, name = free_port(), str(algorithm)
    options = {**options, "--algorithm": name, "--run": slug(name), "--port": port}
    arguments = [part for name, value in options.items() for part in (name, str(value))]
    arguments += ["--secret"] if "--helpers" in options else []
    process = start_process(
        ["-m", "shoal", "serve", *arguments], out / "aggregator.log", ONE_THREAD
    )
    opened_s = time.monotonic()
    try:
        with rounds_shown(console, name, rounds) as told_of:
            while True:
                time.sleep(0.25)
                if process.poll() is not None:
                    raise ShoalError(
                        f"The aggregator stopped with status {process.returncode}; see "
                        f"{out / 'aggregator.log'}"
                    )
                for device_id in edges.revive():
                    console.print(f"{device_id} was killed, and is started again")
                run = _get(port, "/run")
                if run is None:
                    continue
                closed = _get(port, "/rounds") or []
                if run["round"] <= 1 and not closed:
                    opened_s = time.monotonic()
                finished = run["phase"] == "finished"
                trained = sum(each["phase"] == "training" for each in closed)
                told_of(
                    rounds if finished else trained,
                    _progress_text(run, closed, len(edges.data.devices)),
                )
                if finished:
                    break
        wall_s = time.monotonic() - opened_s
        records = read_whole(out / "aggregator").records[slug(name)]
        view = read_view(out / "aggregator")
        return summarize(view, slug(name), records, wall_s), records
    finally:
        stop_processes([process])


def _processes(num_edges: int, phones: list[str]) -> str:
    alone = (
        f"{num_edges} processes of shoal-edge, no torch in them"
        if phones
        else "one process each, no torch in them"
    )
    return (
        f"{alone}; {len(phones)} Kotlin phones with ExecuTorch, each a process of Java"
        if phones
        else alone
    )


def _progress_text(run: dict[str, Any], closed: list[dict[str, Any]], num_devices: int) -> str:
    from aggregator.http.pages.words import percent

    accuracy = closed[-1]["accuracy"]["mean"] if len(closed) > 1 else None
    if run["phase"] == "waiting":
        return f"{run['online']} of {num_devices} devices online"
    groups = "1 group" if run["groups"] == 1 else f"{run['groups']} groups"
    text = f"{run['received']} of {run['cohort']} updates, {groups}"
    if accuracy is not None:  # in secret mode, no device reports one
        text += f", mean accuracy of group models {percent(accuracy)}"
    return text


def _get(port: int, path: str) -> Any:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return json.load(response)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None
