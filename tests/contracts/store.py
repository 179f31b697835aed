"""What every store and blob store must do; subclassed once per adapter. `again` opens the same place anew."""

import pytest

from aggregator.core.ports import Blobs, Store
from aggregator.core.record import RoundRecord
from aggregator.core.state import DeviceCheckedIn, Resumed, RunSettings, Started
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
)
PROGRAMS: Programs = {"": (Evaluate(), Train(32)), "closing": (Evaluate(),)}
STARTED = Started(0.0, SETTINGS, {"initial": "1" * 64}, "2" * 64, PROGRAMS)


def record(number: int, accuracy: int = 1) -> RoundRecord:
    return RoundRecord(number, "training", 0.0, 1.0, {"d": Metrics(2, 1.0, accuracy)}, Metrics(), {"d": "0"}, 10, 20, {"p": 0.5})


class StoreContract:
    def test_new_store_is_empty(self, store: Store) -> None:
        assert store.load() is None
        assert store.rounds() == []

    def test_load_replays_the_log(self, store: Store) -> None:
        for event in (STARTED, DeviceCheckedIn(1.0, "d", 5, 2)):
            store.append(event)
        state = store.load()
        assert state is not None
        assert (state.round, sorted(state.devices)) == (1, ["d"])

    def test_snapshot_and_later_events(self, store: Store) -> None:
        store.append(STARTED)
        state = store.load()
        assert state is not None
        store.snapshot(state)
        store.append(DeviceCheckedIn(1.0, "d", 5, 2))
        store.append(Resumed(2.0))
        after = store.load()
        assert after is not None
        assert sorted(after.devices) == ["d"]

    def test_records_are_replaced_by_round_and_ordered(self, store: Store) -> None:
        for r in (record(2), record(1), record(2, accuracy=0)):
            store.put_round(r)
        assert store.rounds() == [record(1), record(2, accuracy=0)]


class BlobsContract:
    def test_blob_comes_back_by_its_hash(self, blobs: Blobs) -> None:
        name = blobs.put(b"payload")
        assert name == digest(b"payload")
        assert blobs.put(b"payload") == name
        assert blobs.get(name) == b"payload"

    def test_unknown_blob_is_a_key_error(self, blobs: Blobs) -> None:
        with pytest.raises(KeyError):
            blobs.get("0" * 64)

    def test_keep_forgets_the_others(self, blobs: Blobs) -> None:
        one, two = blobs.put(b"1"), blobs.put(b"2")
        blobs.keep({two})
        assert blobs.get(two) == b"2"
        with pytest.raises(KeyError):
            blobs.get(one)
