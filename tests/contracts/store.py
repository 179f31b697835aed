"""What every store and blob store of an aggregator must do; subclassed once per adapter."""

import msgspec
import pytest

from aggregator.core.ports import BlobLost, Blobs, Store
from aggregator.core.record import RoundRecord
from aggregator.core.round.machine import step
from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.state import DeviceCheckedIn, DeviceHeard, Resumed, Started
from aggregator.storage.blob_bucket import check_blobs
from algorithms.core.contract import Programs
from wire.codec import digest
from wire.messages import Evaluate, Metrics, Train

SETTINGS = RunSettings(
    run_id="run-1",
    algorithm="fedavg",
    data="x",
    bundle="0" * 64,
    rounds=3,
    min_devices=1,
    deadline_s=10.0,
    grace_s=1.0,
    reported={"step": ()},
    responses={},
    **ADMIT_ALL,
)
PROGRAMS: Programs = {"": (Evaluate(), Train(32)), "closing": (Evaluate(),)}
STARTED = Started(0.0, SETTINGS, {"initial": "1" * 64}, "2" * 64, PROGRAMS)


def record(number: int, accuracy: int = 1) -> RoundRecord:
    return RoundRecord(
        number,
        "training",
        0.0,
        1.0,
        {"d": Metrics(2, 1.0, accuracy)},
        Metrics(),
        {"d": "0"},
        10,
        20,
        {"p": 0.5},
    )


class StoreContract:
    def test_new_store_is_empty(self, store: Store) -> None:
        assert store.load() is None
        assert store.rounds() == []

    def test_load_replays_the_log(self, store: Store) -> None:
        store.commit([STARTED])
        store.commit([DeviceCheckedIn(1.0, "d", 5, 2), DeviceHeard(1.5, "d")])
        state = store.load()
        assert state is not None
        assert (state.round, sorted(state.devices)) == (1, ["d"])

    def test_snapshot_and_later_events(self, store: Store) -> None:
        store.commit([STARTED])
        before = store.load()
        assert before is not None
        state, _ = step(before, DeviceCheckedIn(1.0, "c", 5, 2))
        store.commit([DeviceCheckedIn(1.0, "c", 5, 2)], snapshot=state)
        assert store.load() == state
        store.commit([DeviceCheckedIn(1.0, "d", 5, 2)])
        store.commit([Resumed(2.0, 7)])
        after = store.load()
        assert after is not None
        assert (sorted(after.devices), after.epoch) == (["c", "d"], 7)

    def test_a_snapshot_alone_is_the_whole_log(self, store: Store) -> None:
        store.commit([STARTED])
        state = store.load()
        assert state is not None
        moved = msgspec.structs.replace(state, epoch=9)
        store.commit([], snapshot=moved)
        assert store.load() == moved

    def test_what_can_be_written_is_checked_without_a_trace(self, store: Store) -> None:
        store.commit([STARTED])
        before = store.load()
        store.check()
        assert store.load() == before

    def test_records_are_replaced_by_round_and_ordered(self, store: Store) -> None:
        store.commit([], [record(2), record(1)])
        store.commit([], [record(2, accuracy=0)])
        assert store.rounds() == [record(1), record(2, accuracy=0)]
        assert (store.rounds(after=2**40), store.rounds(until=2**40)) == ([], store.rounds())
        assert (store.rounds(after=1), store.rounds(after=2), store.rounds(until=1)) == (
            [record(2, accuracy=0)],
            [],
            [record(1)],
        )


class BlobsContract:
    def test_blob_comes_back_by_its_hash(self, blobs: Blobs) -> None:
        (name,) = blobs.put(b"payload")
        assert name == digest(b"payload")
        assert blobs.put(b"payload", b"other") == [name, digest(b"other")]
        assert blobs.get(name) == b"payload"

    def test_unknown_blob_is_lost(self, blobs: Blobs) -> None:
        with pytest.raises(BlobLost, match="000000000000: it is not kept here"):
            blobs.get("0" * 64)

    def test_what_can_be_written_is_checked_without_a_trace(self, blobs: Blobs) -> None:
        (name,) = blobs.put(b"payload")
        check_blobs(blobs)
        assert blobs.get(name) == b"payload"

    def test_keep_forgets_the_others(self, blobs: Blobs) -> None:
        one, two = blobs.put(b"1", b"2")
        blobs.keep({two})
        assert blobs.get(two) == b"2"
        with pytest.raises(BlobLost):
            blobs.get(one)
