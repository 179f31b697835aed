"""Every reason for which an update is refused, by example and through the runner with whatever bytes arrive."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator.adapters.memory import MemoryBlobs, MemoryStore
from aggregator.core.admission import Refused, check_tensors
from aggregator.core.state import RunSettings
from aggregator.fleet import Fleet
from aggregator.runner import Runner
from algorithms.core.probe import make_probe
from algorithms.registry import make_algorithm, read_algorithm
from export.describe import describe_bundle
from simulation.datasets.windows import FleetData
from simulation.engine.messages import VirtualClock
from simulation.objective import objective_for_fleet
from tests.contracts.store import SETTINGS
from wire import messages as m
from wire.codec import decode, encode, encode_update
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.topics import Topics


class Bench:
    """A runner with two devices in its first round, and what it answers."""

    def __init__(self, fleet: FleetData) -> None:
        self.topics, broker = Topics("f"), InProcessBroker()
        self.device = broker.connect("tester")
        self.device.subscribe("shoal/1/f/device/+/reply", "shoal/1/f/device/+/plan")
        objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
        bundle = describe_bundle(objective, name=fleet.name, classes=fleet.classes, window=fleet.window)
        self.blobs = MemoryBlobs()
        link = Fleet(broker.connect("aggregator"), self.topics, "boot")
        probe = make_probe(objective.model, fleet.window.shape)
        self.runner = Runner(make_algorithm(read_algorithm("fedavg")), bundle, probe, MemoryStore(), self.blobs, link, VirtualClock())
        layout = bundle.manifest.reported("step")
        self.runner.start_or_resume(
            RunSettings(
                run_id="r",
                algorithm="fedavg",
                data="x",
                bundle=bundle.digest,
                rounds=5,
                min_devices=2,
                deadline_s=100.0,
                grace_s=1.0,
                reported={"step": layout},
                responses={"evaluate": ()},
                max_update_norm=100.0,
            )
        )
        self.tensors = {name: np.zeros(shape, dtype) for name, dtype, shape in layout}
        for device_id in ("a", "b"):
            self.send(device_id, "check-in", encode(m.CheckIn(device_id, 10, 4)))
        plan = next(p for p in self.answers() if isinstance(p, m.Plan) and p.device_id == "a")
        self.update = m.Update("r", 1, "a", plan.model, 10, 2, m.Metrics(4, 1.0, 2), m.Metrics(10, 2.0, 5))

    def send(self, device_id: str, kind: Any, payload: bytes) -> None:
        self.runner.handle(Delivery(self.topics.device(device_id, kind), payload))

    def answers(self) -> list[Any]:
        found = []
        while (event := self.device.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery):
                found.append(decode(event.payload, m.Plan | m.Acknowledge | m.Refuse | m.Finish))
        return found

    def verdict(self, payload: bytes, device_id: str = "a") -> Any:
        self.answers()
        self.send(device_id, "update", payload)
        return self.answers()[-1]


@pytest.fixture
def bench(fleet: FleetData) -> Bench:
    return Bench(fleet)


def test_good_update_is_acknowledged_and_the_same_again_counts_once(bench: Bench) -> None:
    payload = encode_update(bench.update, bench.tensors)
    assert bench.verdict(payload) == m.Acknowledge("r", 1)
    assert bench.verdict(payload) == m.Acknowledge("r", 1)
    assert bench.runner.state is not None
    assert list(bench.runner.state.received) == ["a"]


@pytest.mark.parametrize(
    ("change", "tensors", "reason"),
    [
        ({"device_id": "b"}, {}, "wrong-device"),
        ({"run_id": "other"}, {}, "unknown-run"),
        ({"round": 2}, {}, "wrong-round"),
        ({"model": "0" * 64}, {}, "wrong-layout"),
        ({}, {"delta/head.bias": np.zeros(4, np.float32)}, "wrong-layout"),
        ({}, {"delta/head.bias": np.zeros(3, np.int64)}, "wrong-layout"),
        ({}, {"delta/other": np.zeros(3, np.float32)}, "wrong-layout"),
        ({}, {"delta/head.bias": np.array([0, np.nan, 0], np.float32)}, "not-finite"),
        ({}, {"response/x": np.array([1.0], np.float32)}, "wrong-layout"),
        ({}, {"statistic/extractor.norm1.running_var": np.full(32, -1, np.float32)}, "not-finite"),
        ({"trained": m.Metrics(10, 1e300, 5)}, {}, "malformed"),
        ({"evaluated": m.Metrics(3, 1.0, 4)}, {}, "malformed"),
        ({}, {"delta/head.bias": np.full(3, 1e3, np.float32)}, "norm-too-large"),
        ({}, {"response/x": np.zeros(2**21, np.float32)}, "too-large"),
    ],
)
def test_refused_with_the_reason(bench: Bench, change: dict[str, Any], tensors: dict[str, np.ndarray], reason: str) -> None:
    update = msgspec.structs.replace(bench.update, **change)
    verdict = bench.verdict(encode_update(update, {**bench.tensors, **tensors}))
    assert isinstance(verdict, m.Refuse)
    assert verdict.reason == reason
    assert bench.runner.refused == {reason: 1}
    assert bench.runner.state is not None
    assert not bench.runner.state.received


CHANGED = ("delta/log_variance.weight", "delta/my_running_var", "delta/variance.running_var", "statistic/norm.running_mean")
MEASURED = ("mean.norm", "mean.running_var", "change.variance.weight", "mean_variance")


def judged(key: str) -> Refused | None:
    """The verdict on an update of a training and a survey in which the tensor `key` alone is negative."""
    trained = tuple((name, "float32", (2,)) for name in (*CHANGED, "statistic/norm.running_var"))
    surveyed = tuple((f"response/survey.{name}", "float32", (2,)) for name in (*MEASURED, "variance.norm"))
    verbs = (m.Train(8, 1), m.Evaluate("train", "survey"))
    settings = msgspec.structs.replace(SETTINGS, reported={"step": trained}, responses={"survey": surveyed})
    tensors = {name: np.ones(2, np.float32) for name, _, _ in (*trained, *surveyed)}
    return check_tensors(settings, verbs, tensors | {key: np.array([1, -0.5], np.float32)})


@pytest.mark.parametrize("key", [*CHANGED, *(f"response/survey.{name}" for name in MEASURED)])
def test_what_is_no_variance_may_be_negative_whatever_its_name_is(key: str) -> None:
    assert judged(key) is None


@pytest.mark.parametrize("key", ["statistic/norm.running_var", "response/survey.variance.norm"])
def test_a_negative_variance_is_refused(key: str) -> None:
    assert judged(key) == Refused("not-finite", f"tensor {key!r} holds negative variances")


def test_second_different_update_is_a_duplicate(bench: Bench) -> None:
    bench.verdict(encode_update(bench.update, bench.tensors))
    other = bench.verdict(encode_update(msgspec.structs.replace(bench.update, num_steps=3), bench.tensors))
    assert other.reason == "duplicate"


def test_device_without_a_plan_is_refused(bench: Bench) -> None:
    bench.send("c", "check-in", encode(m.CheckIn("c", 10, 4)))
    update = msgspec.structs.replace(bench.update, device_id="c")
    assert bench.verdict(encode_update(update, bench.tensors), "c").reason == "not-in-cohort"


def test_garbage_is_refused_as_malformed(bench: Bench) -> None:
    assert bench.verdict(b"garbage").reason == "malformed"


def test_unknown_topic_is_counted(bench: Bench) -> None:
    bench.runner.handle(Delivery("some/other/topic", b"x"))
    assert bench.runner.refused == {"unknown-topic": 1}


def test_blobs_that_are_not_on_offer_cannot_be_fetched(bench: Bench) -> None:
    bench.verdict(payload := encode_update(bench.update, bench.tensors))
    private = bench.blobs.put(payload)
    bench.answers()
    bench.send("b", "fetch", encode(m.Fetch("b", private)))
    assert bench.answers()[-1].reason == "unknown-blob"


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topic=st.one_of(
        st.builds(
            lambda d, k: f"shoal/1/f/device/{d}/{k}",
            st.sampled_from(["a", "b", "zz"]),
            st.sampled_from(["update", "check-in", "fetch", "status", "plan"]),
        ),
        st.text(max_size=40),
    ),
    payload=st.one_of(st.binary(max_size=200), st.sampled_from([b"{}", b'{"type":"check-in"}', b"[]", b"\xff" * 20])),
)
def test_nothing_that_arrives_crashes_or_changes_what_is_safe(bench: Bench, topic: str, payload: bytes) -> None:
    assert bench.runner.state is not None
    before = bench.runner.state.received
    bench.runner.handle(Delivery(topic, payload))
    assert bench.runner.state.received == before


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_mutated_update_is_counted_whole_or_refused(bench: Bench, data: st.DataObject) -> None:
    payload = bytearray(encode_update(bench.update, bench.tensors))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    bench.send("a", "update", bytes(payload))
    assert bench.runner.state is not None
    assert set(bench.runner.state.received) <= {"a"}
