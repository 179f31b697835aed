"""Every reason for which an update is refused, by example and through the inbox with whatever bytes
arrive."""

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator.aggregation.admission import Refusal, check_tensors, norms_of
from aggregator.fleet import events as e
from aggregator.ports import BlobLost, StorageFailed
from aggregator.service.inbox import BUSY_S
from aggregator.view.round_record import RoundRecord
from algorithms.core.contract import USUAL_PASSES
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.inbox_cases import InboxBench
from tests.support.settings import SETTINGS
from tests.wire import quantised_vectors
from wire import messages as m
from wire.arrays import names
from wire.arrays.quantised import decoded, encoded
from wire.arrays.tensors import decode_tensors
from wire.codec import digest, encode, encode_update
from wire.links.port import Delivery


@pytest.fixture
def bench(fleet: FleetData) -> InboxBench:
    return InboxBench(fleet)


def test_good_update_is_acknowledged_and_the_same_again_counts_once(bench: InboxBench) -> None:
    payload = encode_update(bench.update, bench.tensors)
    assert bench.verdict(payload) == m.Acknowledge("a", digest(payload))
    assert bench.verdict(payload) == m.Acknowledge("a", digest(payload))
    assert list(bench.received) == ["a"]


@pytest.mark.parametrize(
    ("change", "tensors", "reason"),
    [
        ({"device_id": "b"}, {}, "wrong-device"),
        ({"run_id": "other"}, {}, "unknown-run"),
        ({"round": 2}, {}, "wrong-round"),
        ({"attempt": 0}, {}, "wrong-round"),
        ({"attempt": 7}, {}, "wrong-round"),
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
        ({}, {"delta/head.bias": np.full(3, 3e38, np.float32)}, "norm-too-large"),
        (
            {},
            {"statistic/extractor.norm1.running_mean": np.full(32, 3e38, np.float32)},
            "norm-too-large",
        ),
        ({}, {"response/x": np.zeros(2**21, np.float32)}, "too-large"),
    ],
)
def test_refused_with_the_reason(
    bench: InboxBench, change: dict[str, Any], tensors: dict[str, np.ndarray], reason: str
) -> None:
    update = msgspec.structs.replace(bench.update, **change)
    verdict = bench.verdict(encode_update(update, {**bench.tensors, **tensors}))
    assert isinstance(verdict, m.Refuse)
    assert verdict.reason == reason
    assert bench.inbox.refused == {reason: 1}
    assert not bench.received


@pytest.mark.parametrize(
    "case", json.loads(quantised_vectors.FILE.read_text())["refused"], ids=lambda case: case["name"]
)
def test_a_hostile_update_in_int8_is_refused_with_the_reason(
    fleet: FleetData, case: dict[str, Any]
) -> None:
    bench = InboxBench(fleet, settings={"reported": {"step": (("delta/w", "float32", (300,)),)}})
    tensors = {name: quantised_vectors.array(held) for name, held in case["tensors"].items()}
    verdict = bench.verdict(encode_update(bench.update, tensors))
    assert isinstance(verdict, m.Refuse)
    assert verdict.reason == case["reason"]
    assert not bench.received


def in_int8(bench: InboxBench | Bench, seed: int, size: float = 0.01) -> dict[str, np.ndarray]:
    """The tensors of an update in int8 whose change is drawn by the seed."""
    rng = np.random.default_rng(seed)
    change = {
        n: rng.normal(0, size, v.shape).astype(np.float32)
        for n, v in bench.tensors.items()
        if names.role_of(n) == names.DELTA
    }
    return encoded({**bench.tensors, **change}, "int8", seed, "a")


def test_a_change_in_int8_is_bounded_by_its_norm(bench: InboxBench) -> None:
    assert (
        bench.verdict(encode_update(bench.update, in_int8(bench, 0, size=10.0))).reason
        == "norm-too-large"
    )


CHANGED = (
    "delta/log_variance.weight",
    "delta/my_running_var",
    "delta/variance.running_var",
    "statistic/norm.running_mean",
)
MEASURED = ("mean.norm", "mean.running_var", "change.variance.weight", "mean_variance")


def judged(key: str) -> Refusal | None:
    """The verdict on an update of a training and a survey in which the tensor `key` alone is
    negative."""
    trained = tuple((name, "float32", (2,)) for name in (*CHANGED, "statistic/norm.running_var"))
    surveyed = tuple(
        (f"response/survey.{name}", "float32", (2,)) for name in (*MEASURED, "variance.norm")
    )
    verbs = (m.Train(8, 1), m.Evaluate("train", "survey"))
    settings = msgspec.structs.replace(
        SETTINGS, reported={"step": trained}, responses={"survey": surveyed}
    )
    tensors = {name: np.ones(2, np.float32) for name, _, _ in (*trained, *surveyed)}
    tensors |= {key: np.array([1, -0.5], np.float32)}
    return check_tensors(settings, verbs, tensors, norms_of(tensors))


def test_of_statistics_the_change_from_the_received_model_is_measured(bench: InboxBench) -> None:
    name = "statistic/extractor.norm1.running_var"
    received = names.of_role(bench.initial, names.STATISTIC)
    bench.verdict(
        encode_update(
            bench.update, {**bench.tensors, **received, name: received[name] + np.float32(0.5)}
        )
    )
    assert bench.received["a"].norms[names.STATISTIC] == pytest.approx(
        0.5 * received[name].size ** 0.5
    )


@pytest.mark.parametrize("key", [*CHANGED, *(f"response/survey.{name}" for name in MEASURED)])
def test_what_is_no_variance_may_be_negative_whatever_its_name_is(key: str) -> None:
    assert judged(key) is None


@pytest.mark.parametrize("key", ["statistic/norm.running_var", "response/survey.variance.norm"])
def test_a_negative_variance_is_refused(key: str) -> None:
    assert judged(key) == Refusal("not-finite", f"tensor {key!r} holds negative variances")


def test_an_update_of_an_earlier_epoch_counts(bench: InboxBench) -> None:
    update = msgspec.structs.replace(bench.update, epoch=0)
    assert isinstance(bench.verdict(encode_update(update, bench.tensors)), m.Acknowledge)


def test_the_same_update_again_is_acknowledged_after_its_round_has_closed(
    bench: InboxBench,
) -> None:
    payload = bench.payload("a")
    bench.verdict(payload)
    bench.verdict(bench.payload("b"), "b")
    assert bench.campaign.phase == "aggregating"
    assert bench.verdict(payload) == m.Acknowledge("a", digest(payload))


def test_an_update_of_an_assignment_whose_time_is_over_is_admitted(bench: InboxBench) -> None:
    payload = bench.payload("a")
    bench.clock.now_s += 100
    bench.take(e.Tick(at_s=bench.clock(), keys=("a", "b", "")))
    assert bench.work("a").lapsed
    assert bench.verdict(payload) == m.Acknowledge("a", digest(payload))
    assert bench.device("a").assignment is None


def test_an_update_of_a_model_that_is_not_on_offer_any_more_is_refused(bench: InboxBench) -> None:
    payload = bench.payload("a")
    bench.blobs.clear()
    assert bench.verdict(payload).reason == "wrong-round"


@pytest.mark.parametrize("error", [BlobLost("0" * 64, "damaged"), StorageFailed("no disk")])
def test_an_update_of_a_model_that_cannot_be_read_now_is_asked_for_again(
    bench: InboxBench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_digest: str) -> bytes:
        raise error

    monkeypatch.setattr(bench.inbox, "_offered", fail)
    payload = bench.payload("a")
    assert bench.send("a", "update", payload) == [m.Busy("a", digest(payload), BUSY_S)]
    assert not bench.work("a").lapsed


def test_an_update_of_an_earlier_assignment_of_the_device_is_refused(bench: InboxBench) -> None:
    payload = bench.payload("a")
    bench.send(
        "a", "decline", encode(m.Decline("r", 1, 1, bench.work("a").serial, "a", "data", ""))
    )
    bench.clock.now_s += 60
    bench.take(e.Tick(at_s=bench.clock(), keys=("a", "")))
    assert not bench.work("a").lapsed
    assert bench.verdict(payload).reason == "wrong-round"
    assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)


def test_a_device_weighs_no_more_than_it_checked_in(bench: InboxBench) -> None:
    bench.verdict(
        encode_update(msgspec.structs.replace(bench.update, num_train=2**53), bench.tensors)
    )
    assert bench.received["a"].num_train == 10


def test_steps_count_as_far_as_the_plan_can_have_made_them(bench: InboxBench) -> None:
    bench.verdict(
        encode_update(msgspec.structs.replace(bench.update, num_steps=2**53), bench.tensors)
    )
    assert bench.received["a"].num_steps == USUAL_PASSES, (
        "passes over ten windows, in batches of 32"
    )


def test_second_different_update_is_a_duplicate(bench: InboxBench) -> None:
    bench.verdict(encode_update(bench.update, bench.tensors))
    other = bench.verdict(
        encode_update(msgspec.structs.replace(bench.update, num_steps=3), bench.tensors)
    )
    assert other.reason == "duplicate"


def test_device_without_a_plan_is_refused(bench: InboxBench) -> None:
    bench.send("c", "check-in", encode(m.CheckIn("c", 0, 4)))
    update = msgspec.structs.replace(bench.update, device_id="c")
    assert bench.verdict(encode_update(update, bench.tensors), "c").reason == "not-in-cohort"


def test_garbage_is_refused_as_malformed(bench: InboxBench) -> None:
    assert bench.verdict(b"garbage").reason == "malformed"


def test_unknown_topic_is_counted(bench: InboxBench) -> None:
    bench.inbox.read(Delivery("some/other/topic", b"x"), bench.fleet)
    assert bench.inbox.refused == {"unknown-topic": 1}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topic=st.one_of(
        st.builds(
            lambda d, k: f"shoal/1/f/device/{d}/{k}",
            st.sampled_from(["a", "b", "zz"]),
            st.sampled_from(["update", "check-in", "fetch", "status", "plan"]),
        ),
        st.text(max_size=40),
    ),
    payload=st.one_of(
        st.binary(max_size=200),
        st.sampled_from([b"{}", b'{"type":"check-in"}', b"[]", b"\xff" * 20]),
    ),
)
def test_nothing_that_arrives_crashes_or_changes_what_is_safe(
    bench: InboxBench, topic: str, payload: bytes
) -> None:
    with bench.is_unchanged():
        bench.take(*bench.inbox.read(Delivery(topic, payload), bench.fleet).events)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_mutated_update_is_counted_as_it_came_or_refused(
    fleet: FleetData, data: st.DataObject
) -> None:
    bench = InboxBench(fleet)
    payload = bytearray(
        encode_update(
            bench.update, in_int8(bench, 0) if data.draw(st.booleans()) else bench.tensors
        )
    )
    header = 8 + int.from_bytes(payload[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(header, len(payload) - 1))] = data.draw(st.integers(0, 255))
    answer = bench.verdict(bytes(payload))
    if isinstance(answer, m.Acknowledge):
        assert bench.blobs[bench.received["a"].blob] == payload
    else:
        assert (answer.update, bench.received) == (digest(bytes(payload)), {})
        assert bench.work("a").lapsed


HEADER = b'{"a":{"dtype":"F32","shape":"\\ud800","data_offsets":[0,0]}}'
SURROGATE = struct.pack("<Q", len(HEADER)) + HEADER


@pytest.mark.parametrize("device_id", ["a", "nobody"])
def test_a_refusal_of_what_cannot_be_written_down_is_written_down(
    bench: InboxBench, device_id: str
) -> None:
    answer = bench.verdict(SURROGATE, device_id)
    assert (answer.reason, answer.about, answer.update) == (
        "malformed",
        "update",
        digest(SURROGATE),
    )
    assert "surrogate" in answer.detail


def test_a_reader_that_fails_refuses(bench: InboxBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of it\nINFO forged")

    monkeypatch.setattr("aggregator.service.inbox.decode_update", fail)
    answer = bench.verdict(encode_update(bench.update, bench.tensors))
    assert (answer.reason, answer.detail) == (
        "malformed",
        "ZeroDivisionError: nobody thought of it\\nINFO forged",
    )


def test_a_decoded_change_is_clipped_again(fleet: FleetData) -> None:
    bench = Bench(fleet, algorithm="fedavg+gaussian:clip_norm=0.5:noise_multiplier=0")
    before = decode_tensors(bench.blobs.get(bench.update.model))[0]
    for seed, device_id in enumerate("ab"):
        floats = bench.tensors
        bench.tensors = in_int8(bench, seed) | names.of_role(before, names.STATISTIC)
        bench.verdict(bench.payload(device_id), device_id)
        bench.tensors = floats
    assert bench.campaign.round == 2
    after = decode_tensors(bench.blobs.get(bench.work("a").model))[0]
    moved = sum(
        float(np.square(value - before[name], dtype=np.float64).sum())
        for name, value in after.items()
    )
    assert 0.1 < moved**0.5 < 0.5


def test_updates_in_int8_make_the_models_that_what_they_stand_for_makes(fleet: FleetData) -> None:
    made = []
    for as_float in (False, True):
        bench = Bench(fleet)
        layout = [(name, str(value.dtype), value.shape) for name, value in bench.tensors.items()]
        floats = bench.tensors
        for seed, device_id in enumerate("ab"):
            tensors = in_int8(bench, seed)
            bench.tensors = decoded(tensors, layout) if as_float else tensors
            payload = bench.payload(device_id)
            for _ in range(2):
                assert bench.verdict(payload, device_id) == m.Acknowledge(
                    device_id, digest(payload)
                )
            bench.tensors = floats
        assert bench.campaign.round == 2
        made.append(bench.campaign.models)
    assert made[0] == made[1]


def test_counts_that_sum_to_more_than_can_be_read_do_not_spoil_the_record(fleet: FleetData) -> None:
    bench = Bench(fleet)
    for device_id in ("a", "b"):
        trained = m.Metrics(2**53, 1.0, 2**53)
        bench.verdict(bench.payload(device_id, trained=trained), device_id)
    (record,) = bench.store.rounds("run-1")
    again = msgspec.json.decode(msgspec.json.encode(record), type=RoundRecord)
    assert again.trained.num_examples == 2**53
