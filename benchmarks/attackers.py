"""One attacker among ten devices, inside every bound of the service. ``python -m
benchmarks.attackers``.

A run is made by the service's own functions (the machine, admission, `aggregate`) with the
settings that `shoal serve` has by default; messages alone are left out. The attacker knows what the
others send: its norm is the largest that the bounds let through. Every grouping of the registry
meets every mean. Writes ``benchmarks/results/attackers.json`` and a section of RESULTS.md.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aggregator.aggregation.admission import admit, norms_of
from aggregator.aggregation.apply import aggregate
from aggregator.aggregation.bounds import FLOOR
from aggregator.aggregation.orders import start_campaign
from aggregator.fleet import events as e
from aggregator.fleet.plan import plan_of
from aggregator.fleet.records import AdmittedUpdate, Campaign, Fleet
from aggregator.fleet.step import step
from aggregator.service.start import run_settings
from aggregator.service_settings import ServeSettings
from aggregator.storage.memory import MemoryBlobs
from aggregator.transfer.offered import needed
from aggregator.view.round_record import records_of
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Probe
from algorithms.core.probe import make_probe
from algorithms.objectives.supervised import Supervised
from algorithms.registry import CHOICES
from benchmarks.results.report import describe_machine, keep
from edge_client.core.ports import Windows
from export.describe import describe_bundle
from host.native.arithmetic import NativeArithmetic
from host.threads import one_thread
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.native import NativeGraphs
from simulation.engine.workers.attacks import Attack, flipped_classes
from simulation.engine.workers.device_host import DeviceHost, DeviceHostSpec, DeviceResult
from simulation.engine.workers.private_store import MappedStore
from simulation.objective import objective_for_fleet
from wire.arrays import names
from wire.arrays.tensors import Tensors, decode_tensors
from wire.bundle import Bundle, Window
from wire.codec import encode_update
from wire.links.mqtt import BrokerAddress
from wire.messages import CheckIn, Metrics, Plan, Update

OUT = Path(__file__).parents[1] / "benchmarks" / "results" / "attackers.json"
DEVICES, ROUNDS, EPOCHS, TRAIN, TEST, NOISE = 10, 20, 3, 96, 60, 0.7
ATTACKER = "d3"
CLAIMED = 10**6
"""Windows that an attacker says it has."""
MARGIN = 0.05
ATTACKS = {
    "labels": "flips its labels (0-3 and 1-4, 2-5)",
    "sign": "sends its change the other way, as loud as the bound on norms allows",
    "noise": "sends Gaussian noise as loud as the bound allows",
    "statistics": "moves BatchNorm's statistics as far as the bound allows",
    "weight": "flips its labels, and says that it has a million windows",
}
ROBUST = ("robust", "median", "trimmed", "krum", "multi-krum", "gra", "irls", "credit")
"""The means that are meant to withstand one attacker of ten."""
WHY = (
    "- `weighted` and `uniform` are averages: they withstand noise, and flipped labels of a "
    "device that weighs no more than others. The",
    "  bounds keep their models finite, and end a single loud update; a device that is ten times "
    "as loud as the others in every round",
    "  still decides where an average goes. Some groupings part the attacker from most others "
    "(two groups): AutoCFL",
    "  and CFL under *weight*, FL+HC under *sign*.",
    "- No round was set aside, and few were given up: an attacker that is there from the first "
    "round leaves no good models to return to.",
    "- `krum` keeps one device's model and learns as slowly as a device by itself, with or "
    "without an attacker. With `individual`",
    "  (`--min-group 1`) no device meets another's model.",
)
"""Reading of the results."""


@dataclass(frozen=True)
class Field:
    """A fleet, and what a service of it is made of."""

    data: FleetData
    objective: Supervised
    bundle: Bundle
    probe: Probe
    graphs: NativeGraphs


@cache
def make_field(seed: int = 0) -> Field:
    """Ten devices with equal data: six classes that differ in frequency, in noise."""
    rng = np.random.default_rng(seed)
    axis = np.arange(32)

    def windows(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count) % 6
        phase = rng.uniform(0, 6.28, (count, 2, 1))
        x = np.sin((y[:, None, None] + 1) * 0.25 * axis + phase) + rng.normal(
            0, NOISE, (count, 2, 32)
        )
        return x.astype(np.float32), y.astype(np.int64)

    devices = {f"d{i}": Windows(*windows(TRAIN), *windows(TEST)) for i in range(DEVICES)}
    data = FleetData("ten-alike", Window(("a", "b"), 32, 32), tuple("abcdef"), devices)
    objective = objective_for_fleet(data, read_algorithm("fedavg"), seed)
    bundle = describe_bundle(objective, name=data.name, classes=data.classes, window=data.window)
    graphs = NativeGraphs(objective, data.window.shape, ["step"])
    return Field(data, objective, bundle, make_probe(objective.model, data.window.shape), graphs)


class Service:
    """A run by the service's functions, and devices that carry out its plans. `attack`: one of
    `ATTACKS`; empty for none."""

    def __init__(self, name: str, attack: str, rounds: int = ROUNDS) -> None:
        field, spec = make_field(), read_algorithm(name)
        self.attack, self.blobs, self.probe = attack, MemoryBlobs(), field.probe
        asked = ServeSettings(
            folder=Path(),
            bundle=Path(),
            broker=BrokerAddress("nowhere", 1883),
            algorithm=spec,
            rounds=rounds,
            local_epochs=EPOCHS,
            min_devices=DEVICES,
            min_group=1 if spec.grouping.name == "individual" else 2,
        )
        settings = msgspec.structs.replace(
            run_settings(asked, field.bundle, "attackers"), min_updates=DEVICES // 2
        )
        self.algorithm = make_algorithm(spec, arithmetic=NativeArithmetic())
        flips = attack in ("labels", "weight")
        attackers = (
            Attack("label-flip", frozenset([ATTACKER]), 1.0, flipped_classes(6)) if flips else None
        )
        graphs, devices = field.graphs, field.data.devices
        hosted = DeviceHostSpec(
            settings, field.bundle, self.algorithm, lambda: graphs, field.data.devices, attackers
        )
        self.host = DeviceHost(
            hosted,
            graphs,
            MappedStore(None, list(devices), (w.num_train for w in devices.values())),
        )
        self.notes: list[Mapping[str, Any]] = []
        self.finite = True
        self.fleet, self.commands = Fleet(), list[e.Command]()
        begun = (settings, self.algorithm, self.probe, field.bundle.initial, self.blobs, 0.0)
        self.name = settings.name
        self.feed(start_campaign(*begun))
        for device_id, windows in field.data.devices.items():
            claimed = CLAIMED if self._claims(device_id) else windows.num_train
            facts = CheckIn(device_id, claimed, windows.num_test)
            self.feed(e.CheckedIn(at_s=0.0, device_id=device_id, facts=facts))

    @property
    def campaign(self) -> Campaign:
        """The campaign, as it is now."""
        return self.fleet.campaigns[self.name]

    def feed(self, event: e.Event) -> None:
        """Take in an event, and keep the commands that follow."""
        before = self.fleet
        self.fleet, commands = step(before, event)
        self.notes += [record.notes for _, record in records_of(before, [(event, self.fleet)])]
        self.commands += commands

    def run(self) -> float:
        """Run to the end; the mean accuracy over honest devices of the models that they are
        given."""
        while self.campaign.phase != "finished":
            commands, self.commands = self.commands, []
            self._answer([command for command in commands if isinstance(command, e.SendPlan)])
            if any(isinstance(command, e.Aggregate) for command in self.commands):
                parts = (self.algorithm, self.probe, self.blobs, lambda: self.fleet.at_s)
                self.feed(aggregate(self.campaign, *parts))
                self._check()
            self.feed(e.Tick(at_s=self.fleet.at_s, keys=("",)))
        updates = self.campaign.updates.items()
        return statistics.fmean(u.evaluated.accuracy for d, u in updates if d != ATTACKER)

    def _answer(self, commands: Sequence[e.SendPlan]) -> None:
        """Carry out plans, attack, and send the updates through admission."""
        settings, epoch = self.campaign.settings, self.fleet.epoch
        plans = [plan_of(settings, c.assignment, c.device_id, epoch, ()) for c in commands]
        models = {
            digest: decode_tensors(self.blobs.get(digest))[0]
            for digest in self.campaign.models.values()
        }
        results = {plan.device_id: self.host.carry_out(plan, models) for plan in plans}
        trains = self.campaign.phase == "training"
        for plan in plans:
            result = results[plan.device_id]
            assert not result.problem, f"{plan.device_id}: {result.problem}"
            tensors = result.tensors
            if plan.device_id == ATTACKER and trains:
                tensors = self._tampered(
                    tensors,
                    models[result.model],
                    [(r.tensors, models[r.model]) for d, r in results.items() if d != ATTACKER],
                )
            self._send(plan, result, tensors, lambda model: models[model])

    def _send(
        self, plan: Plan, result: DeviceResult, tensors: Tensors, offered: Callable[[str], Tensors]
    ) -> None:
        num_train = CLAIMED if self._claims(plan.device_id) else result.num_train
        update = Update(
            *(plan.run_id, plan.epoch, plan.round, plan.attempt, plan.device_id, result.model),
            *(
                num_train,
                result.num_steps,
                result.evaluated,
                result.trained if result.num_steps else Metrics(),
            ),
        )
        payload = encode_update(update, tensors)
        verdict = admit(
            self.fleet,
            plan.device_id,
            update,
            tensors,
            self.blobs.put(payload)[0],
            len(payload),
            offered,
        )
        assert isinstance(verdict, AdmittedUpdate), (
            f"the attacker is to stay inside the bounds: {verdict}"
        )
        answer: dict[str, Any] = {"device_id": plan.device_id, "serial": plan.attempt}
        self.feed(e.Updated(at_s=self.fleet.at_s + 1, update=verdict, **answer))

    def _tampered(
        self, tensors: Tensors, received: Tensors, others: Sequence[tuple[Tensors, Tensors]]
    ) -> Tensors:
        """Return the update that the attacker sends. `others`: the updates of the other devices,
        each with the model it received."""
        role = names.STATISTIC if self.attack == "statistics" else names.DELTA
        if self.attack not in ("sign", "noise", "statistics"):
            return tensors
        bound = self._largest(role, [norms_of(*other) for other in others])
        rng = np.random.default_rng([self.campaign.round, 7])
        noise = self.attack == "noise"
        false = {}
        for name, array in names.of_role(tensors, role).items():
            if noise:
                false[name] = np.asarray(rng.standard_normal(array.shape), np.float32)
            else:  # the other way; a variance cannot be negative, so it grows
                change = array - received.get(name, np.float32(0))
                false[name] = abs(change) if names.is_variance(name) else -change
        own = norms_of(false).get(role, 0.0)
        factor = np.float32(bound / own if own else 0.0)
        return tensors | {
            name: received.get(name, np.float32(0)) + factor * change
            for name, change in false.items()
        }

    def _largest(self, role: str, norms: Sequence[Mapping[str, float]]) -> float:
        """A norm just inside the bound, from those of all other devices."""
        settings, before = self.campaign.settings, self.campaign.norms
        known = [norm[role] for norm in norms] + ([before[role]] if role in before else [])
        return 0.999 * max(FLOOR, settings.norm_cap * statistics.median_low([*known, float("inf")]))

    def _claims(self, device_id: str) -> bool:
        return self.attack == "weight" and device_id == ATTACKER

    def _check(self) -> None:
        """Look at every model that is offered, and forget blobs as the runner does."""
        for digest in self.campaign.models.values():
            model = decode_tensors(self.blobs.get(digest))[0]
            self.finite &= all(
                np.isfinite(array).all() for array in model.values() if array.dtype.kind == "f"
            )
        self.blobs.keep(needed(self.campaign, self.fleet))


def measure(case: tuple[str, str, str], rounds: int = ROUNDS) -> dict[str, Any]:
    """One run: its honest accuracy, whether every offered model was finite, and how many rounds
    were set aside or given up."""
    grouping, mean, attack = case
    with one_thread():
        service = Service(f"{grouping}+{mean}" if grouping != "none" else mean, attack, rounds)
        accuracy = service.run()
    return {
        "grouping": grouping,
        "mean": mean,
        "attack": attack,
        "accuracy": round(accuracy, 4),
        "finite": bool(service.finite),
        "rounds": service.campaign.trained,
        "set_aside": sum("set_aside" in notes for notes in service.notes),
        "rolled_back": sum("rolled_back" in notes for notes in service.notes),
        "left_out": sum("left_out" in notes for notes in service.notes),
        "too_far": sum("too_far" in notes for notes in service.notes),
        "groups": len({m.group for m in service.campaign.members.values() if m.group}),
    }


def cases() -> list[tuple[str, str, str]]:
    """Every grouping with every mean, without an attacker and under each attack."""
    return [*product(CHOICES["grouping"], CHOICES["mean"], ("", *ATTACKS))]


def falls(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Return the loss of honest accuracy against a fleet without the attacker, by grouping, mean
    and attack."""
    accuracy = {(run["grouping"], run["mean"], run["attack"]): run["accuracy"] for run in runs}
    return {case: accuracy[*case[:2], ""] - value for case, value in accuracy.items() if case[2]}


def table(results: Mapping[str, Any]) -> str:
    """The results as Markdown: a summary by mean, and every run."""
    runs, fell = results["runs"], falls(results["runs"])
    bad = sum(not run["finite"] or run["rounds"] < results["rounds"] for run in runs)
    lines = [
        f"Machine: {results['machine']}. {len(runs)} runs of {results['rounds']} rounds took "
        f"{results['seconds'] / 60:.1f} minutes.",
        "",
        f"{DEVICES} devices with equal data, one of which attacks in every round, inside every "
        "bound of `shoal serve` (weight cap",
        "10, norm cap 10, the others by default). It knows what the others send. Numbers are the "
        "mean accuracy of the honest devices'",
        f"final models; one in bold is more than {100 * MARGIN:.0f} points below the same run "
        "without the attacker.",
        f"Runs that did not end, or offered a model that was not finite: {bad}.",
        "",
        *(f"- *{name}*: the attacker {what}." for name, what in ATTACKS.items()),
        "",
        *WHY,
        "",
        "| mean | attacked runs within 5 points | largest fall | where |",
        "|---|---|---|---|",
    ]
    for mean in CHOICES["mean"]:
        own = {case: fall for case, fall in fell.items() if case[1] == mean}
        worst = max(own, key=own.__getitem__)
        within = sum(fall <= MARGIN for fall in own.values())
        lines.append(
            f"| {mean} | {within} of {len(own)} | {100 * own[worst]:.1f} | {worst[0]}, {worst[2]} |"
        )
    lines += [
        "",
        f"| grouping | mean | no attacker | {' | '.join(ATTACKS)} | rounds set aside | given up |",
        "|---" * (5 + len(ATTACKS)) + "|",
    ]
    for grouping, mean in product(CHOICES["grouping"], CHOICES["mean"]):
        own_runs = {
            run["attack"]: run for run in runs if (run["grouping"], run["mean"]) == (grouping, mean)
        }
        values = [f"{100 * own_runs['']['accuracy']:.1f}"]
        for attack in ATTACKS:
            text = f"{100 * own_runs[attack]['accuracy']:.1f}"
            values.append(f"**{text}**" if fell[grouping, mean, attack] > MARGIN else text)
        counts = [
            str(sum(run[what] for run in own_runs.values()))
            for what in ("set_aside", "rolled_back")
        ]
        lines.append(f"| {' | '.join([grouping, mean, *values, *counts])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make every run, by several processes; write the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        runs = [*pool.map(partial(measure, rounds=options.rounds), cases())]
    seconds = round(time.perf_counter() - began)
    results = {
        "machine": describe_machine(),
        "rounds": options.rounds,
        "seconds": seconds,
        "runs": runs,
    }
    text = table(results)
    keep(results, options.out, OUT, "attackers", f"## One attacker among ten\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
