"""Hostile plans and bundles through a live agent: it never dies, never works on the same plan for
ever, and never sends what its policy forbids."""

import random
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import DeviceState
from edge_client.work.plan import Done
from simulation.datasets.windows import FleetData
from tests.edge_client.device import NOW_S, Device
from tests.edge_client.hostile import hostile_bundles, packed
from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays.tensors import encode_tensors
from wire.bundle import Bundle, Graph
from wire.codec import decode_update, digest, encode

CLIP_NORM = 0.01
POLICY = m.Policy(max_clip_norm=CLIP_NORM, max_epochs=2.0, min_windows=2)
GRAPHS = ("step", "evaluate", "survey", "predict", "other", "")


class Fuzz:
    """Plans and bundles at random; `seed` makes them repeatable."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device, self.rng = device, random.Random(seed)
        self.models = [
            device.model,
            b"junk",
            encode_tensors({}),
            encode_tensors({"x": np.ones((3, 2, 32), np.float32)}),
        ]
        self.bundles = [device.bundle.payload] * 40 + list(hostile_bundles(device.bundle).values())
        self.number = 0

    def verb(self) -> m.Verb:
        rng = self.rng
        graph, share, report = (
            rng.choice(GRAPHS),
            rng.choice((0.0, 0.0, 0.1, 0.5, 0.98)),
            rng.random() < 0.7,
        )
        batch, some = rng.choice((2, 7, 8, 16, 64, 4096)), digest(rng.choice(self.models))
        match rng.randrange(9):
            case 0 | 1:
                steps = rng.choice((None, None, 1, 3, 2**31))
                hyper = rng.choice(({}, {"lr": 1e38}, {"lr": -1.0}, {"other": 1.0}, {"lr": 0.0}))
                return m.Train(
                    batch,
                    rng.choice((1, 1, 2, 10_000)),
                    steps,
                    hyper,
                    rng.choice(("step", "step", graph)),
                    report,
                    share,
                )
            case 2 | 3:
                split, model = (
                    rng.choice(("train", "test", "holdout")),
                    rng.choice(("received", "initial")),
                )
                return m.Evaluate(split, graph, model, share, report)  # type: ignore[arg-type]
            case 4:
                return m.Choose((some,) * rng.choice((1, 2)), graph)
            case 5:
                return m.Annotate(graph, rng.choice(("weight", "x", "y")))
            case 6:
                return m.Apply(graph)
            case 7:
                return m.Respond(some, graph)
        return self.protect()

    def protect(self) -> m.Protect:
        return m.Protect(
            self.rng.choice((CLIP_NORM, CLIP_NORM / 2, 1.0, 1e30)),
            self.rng.choice((0.0, 0.0, 1e-6, 1e300)),
        )

    def plan(self) -> bytes:
        rng = self.rng
        self.number += rng.choice((1, 1, 1, 0, 5))
        verbs = tuple(self.verb() for _ in range(rng.choice((0, 1, 1, 2, 3))))
        if rng.random() < 0.5:
            verbs += (m.Protect(CLIP_NORM),)
        plan = m.Plan(
            rng.choice(("r", "r", "s")),
            rng.choice((1, 1, 1, 0)) + self.number // 1000,
            self.number + 1,
            rng.choice((0, 0, 1)),
            rng.choice(("d0",) * 20 + ("d1",)),
            digest(rng.choice(self.bundles)),
            digest(self.models[0] if rng.random() < 0.8 else rng.choice(self.models)),
            verbs,
            rng.randrange(2**40),
            rng.choice((NOW_S + 100,) * 20 + (NOW_S - 100, -1.0, 1e300)),
        )
        payload = encode(plan)
        return payload if rng.random() < 0.9 else self.damaged(payload)

    def damaged(self, payload: bytes) -> bytes:
        at = self.rng.randrange(len(payload))
        match self.rng.randrange(3):
            case 0:
                return payload[:at]
            case 1:
                return payload[:at] + bytes([self.rng.randrange(256)]) + payload[at + 1 :]
        return (
            payload[:at]
            + self.rng.choice((b"\n", b"1e999", b"null", b"[[[[", b"\\ud800", b'"'))
            + payload[at:]
        )

    def bundle(self) -> bytes:
        """One of the hostile ones, or a good one whose bytes or graphs are changed."""
        rng, good = self.rng, self.device.bundle
        if rng.random() < 0.3:
            return rng.choice(self.bundles)
        if rng.random() < 0.5:
            return self.damaged(good.payload)
        name = rng.choice(tuple(good.manifest.graphs))
        return packed(good, graphs={**good.manifest.graphs, name: self.graph(good, name)})

    def graph(self, good: Bundle, name: str) -> Graph:
        rng, graph = self.rng, good.manifest.graphs[name]
        outputs = list(graph.outputs)
        at = rng.randrange(len(outputs))
        outputs[at] = rng.choice(
            (
                rng.choice(outputs),
                "next/statistic/more",
                "next/shared/",
                "metric/loss_sum",
                "metric/more",
                "",
                "next/private/p",
            )
        )
        if rng.random() < 0.2:
            rng.shuffle(outputs)
        file = (
            rng.choice([g.file for g in good.manifest.graphs.values()])
            if rng.random() < 0.2
            else graph.file
        )
        responses = rng.choice((graph.responses, (), (("more", (1,)),)))
        return msgspec.structs.replace(
            graph, outputs=tuple(outputs), file=file, responses=responses
        )


def storm(
    device: Device, plans: int, seed: int, until_s: float = float("inf")
) -> tuple[int, int, int]:
    """Send so many plans; how many were sent, and how many updates and declines they made."""
    fuzz, updates, declines = Fuzz(device, seed), 0, 0
    device.turn()
    count, made = 0, plans_of_updates(device)
    while count < plans and time.monotonic() < until_s:
        count += 1
        if count % 10 == 1:
            fuzz.bundles[0] = fuzz.bundle()  # so that among the good ones there is another one
            if count % 500 == 1:
                device.broker.retained = {
                    k: v for k, v in device.broker.retained.items() if "/blob/" not in k
                }
                device.offer(*fuzz.models, *fuzz.bundles)
            if fuzz.bundles[0]:
                device.offer(fuzz.bundles[0])
        device.broker.publish(device.topics.device("d0", "plan"), fuzz.plan(), False)
        if fuzz.rng.random() < 0.05:
            device.finish(
                bundle=digest(fuzz.rng.choice(fuzz.bundles)),
                model=digest(fuzz.rng.choice(fuzz.models)),
                epoch=fuzz.number // 1000 + 1,
            )
        if fuzz.rng.random() < 0.5:
            device.reply(m.Acknowledge("d0", device.agent.session.update or "0" * 64))
        device.turn()
        assert device.agent.session.tries <= 1
        for payload in device.sent("update"):
            updates += 1
            _check_protected(device, made[digest(payload)], decode_update(payload)[1])
        declines += device.agent.session.stage == "declined"
    return count, updates, declines


def plans_of_updates(device: Device) -> dict[str, m.Plan]:
    """Return the plan of each update by the update's digest; the dict fills as updates are made."""
    made: dict[str, m.Plan] = {}
    encode_update = device.agent._encode

    def noting(plan: m.Plan, outcome: Done) -> bytes:
        payload = encode_update(plan, outcome)
        made[digest(payload)] = plan
        return payload

    device.agent._encode = noting  # type: ignore[method-assign]
    return made


def _check_protected(device: Device, plan: m.Plan, tensors: dict[str, Any]) -> None:
    """Changes by training are clipped, as one vector, to the norm that the policy permits; plans
    alone ask for noise."""
    start = device.bundle.initial
    parts = [v for k, v in tensors.items() if k.startswith("delta/")]
    parts += [v - start[k] for k, v in tensors.items() if k.startswith("statistic/")]
    if parts:
        last = plan.verbs[-1]
        assert isinstance(last, m.Protect)
        assert last.clip_norm <= CLIP_NORM
        if last.noise_std == 0:
            flat = np.concatenate([np.asarray(part, np.float64).ravel() for part in parts])
            assert not np.linalg.norm(flat) > CLIP_NORM * (1 + 1e-3)


class Caching(OnnxGraphs):
    """Graphs loaded once per file, because the test has many bundles of few files."""

    loaded: ClassVar[dict[tuple[str, str, int], Any]] = {}

    def _load(self, graph: str) -> Any:
        described = self._bundle.manifest.graphs.get(graph)
        key = (
            (self._bundle.manifest.files.get(described.file, ""), graph, len(described.outputs))
            if described
            else ("", graph, 0)
        )
        if key not in Caching.loaded:
            Caching.loaded[key] = super()._load(graph)
        return Caching.loaded[key]


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    device = Device(fleet, exported, tmp_path / "state", policy=POLICY)
    device.load_graphs = Caching
    device.start(DeviceState())
    return device


def check(device: Device, count: int, updates: int, declines: int) -> None:
    """The storm was one, and afterwards the device takes an honest plan."""
    print(
        f"{count} plans, {updates} updates, {declines} times declined, "
        f"{device.agent.incidents.counts.total()} incidents"
    )
    assert updates > count / 100
    assert declines > count / 10
    causes = [
        cause
        for cause in device.agent.incidents.counts
        if cause.startswith(("failed event", "failed work", "failed retry"))
    ]
    assert causes == []  # nothing came as far as the outermost ring
    device.offer()
    device.send_plan(10**9, epoch=10**9, verbs=(m.Train(8), m.Protect(CLIP_NORM)))
    device.turn()
    assert [update.round for update, _ in device.updates()][-1:] == [10**9]


def test_hostile_plans_and_bundles(device: Device) -> None:
    check(device, *storm(device, 50_000, seed=1, until_s=time.monotonic() + 5))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 7))
def test_fifty_thousand_hostile_plans_and_bundles(device: Device, seed: int) -> None:
    check(device, *storm(device, 10_000, seed))
