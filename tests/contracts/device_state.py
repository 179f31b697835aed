"""Contract of every device state; subclassed for a folder and for memory. `again` opens the same
place anew."""

import numpy as np

from edge_client.core.ports import Current
from edge_client.core.session import ModelOffer, Session
from edge_client.storage.state import BLOBS, CHECKPOINT, PART, TRAFFIC, UPDATE, DeviceState
from tests.support.plans import plan
from wire.codec import digest
from wire.pieces import cut, place


class DeviceStateContract:
    def again(self, state: DeviceState) -> DeviceState:
        """The state after a restart of the device."""
        return state

    def test_new_device_has_a_new_session(self, state: DeviceState) -> None:
        assert state.load() == Session()
        assert (
            state.files.read(UPDATE),
            state.current(),
            state.before(),
            state.document(TRAFFIC, dict[int, int]),
        ) == (
            None,
            None,
            None,
            None,
        )
        assert state.private("r", 1) == {}

    def test_session_and_update_survive(self, state: DeviceState) -> None:
        offer = ModelOffer(1, "r", "a" * 64, "b" * 64, 7, "g", 1, "no")
        session = Session(
            plan(3), "as it came", "pending", 2, "a" * 64, versions={"b": 1}, offer=offer
        )
        state.save(session)
        state.put_update("r", 3, b"update", {})
        after = self.again(state)
        assert after.load() == session
        assert after.files.read(UPDATE) == b"update"
        after.files.delete(UPDATE)
        assert self.again(after).files.read(UPDATE) is None

    def test_the_model_in_use_and_the_traffic_survive(self, state: DeviceState) -> None:
        models = [Current("a" * 64, name * 64, "", "r", 7, 1.5) for name in "bcd"]
        for model in models:
            state.put_current(model, b"onnx")
        state.files.write(TRAFFIC, b'{"5":6}')
        assert (self.again(state).before(), self.again(state).current()) == (models[1], models[2])
        assert self.again(state).document(TRAFFIC, dict[int, int]) == {5: 6}

    def test_a_repeated_round_starts_from_the_same_private_tensors(
        self, state: DeviceState
    ) -> None:
        for number in (1, 2, 3):
            state.put_update("r", number, b"", {"private/b": np.full(2, number, np.float32)})
        after = self.again(state)
        assert after.private("r", 4)["private/b"].tolist() == [3, 3]
        assert after.private("r", 3)["private/b"].tolist() == [2, 2]
        assert after.private("other", 4) == {}

    def test_the_last_checkpoint_survives_until_it_is_dropped(self, state: DeviceState) -> None:
        assert state.checkpoint() is None
        state.files.delete(CHECKPOINT)
        for payload in (b"one", b"two"):
            state.put_checkpoint(payload)
        after = self.again(state)
        assert after.checkpoint() == b"two"
        after.files.delete(CHECKPOINT)
        assert self.again(after).checkpoint() is None

    def test_blobs(self, state: DeviceState) -> None:
        one, two = digest(b"1"), digest(b"2")
        state.put_blob(one, b"1")
        state.put_blob(two, b"2")
        state.keep_blobs({two})
        after = self.again(state)
        assert (after.files.size(BLOBS + one), after.blob(one)) == (0, None)
        assert (after.files.size(BLOBS + two), after.blob(two)) == (1, b"2")

    def test_a_blob_that_came_in_pieces(self, state: DeviceState) -> None:
        payload = bytes(range(256)) * 2048
        pieces = cut(len(payload), lambda offset, size: payload[offset : offset + size])
        part = state.files.part(f"{BLOBS}{pieces.digest}{PART}", pieces)
        assert not part.put(0, b"other bytes")
        for index in list(part.missing):
            offset, size = place(pieces, index)
            assert part.put(index, payload[offset : offset + size])
        assert part.is_whole()
        state.files.finish(part, BLOBS + pieces.digest)
        assert self.again(state).blob(pieces.digest) == payload
