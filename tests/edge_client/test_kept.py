"""Personal models of a device: the model that each belongs to, how long it stays, and damage to its
file."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.kept import MOST_KEPT, PersonalModel, kept_of, why_alone, with_kept
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, other_model, take_up
from tests.edge_client.kept_cases import answer, keep, train
from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays.tensors import Tensors
from wire.codec import decode, digest


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state")


MODELS = ["a" * 64, "b" * 64, "c" * 64, "d" * 64, "e" * 64]


@pytest.fixture
def plain(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    """Return the device without any personal model."""
    return Device(fleet, exported, tmp_path / "plain")


def checked_in(device: Device) -> tuple[str, ...] | None:
    """The models of which the device says that it holds something."""
    device.turn()
    said: m.CheckIn = decode(device.sent("check-in")[-1], m.CheckIn)
    return said.personal_models


def held(device: Device) -> tuple[PersonalModel, ...]:
    return device.agent.session.personal_models


def blob(device: Device, kept: PersonalModel) -> Path:
    return device.folder / "blobs" / kept.tensors


def flip(path: Path, at: int, bit: int = 0) -> None:
    payload = bytearray(path.read_bytes())
    payload[at % len(payload)] ^= 1 << bit
    path.write_bytes(payload)


class TestOfWhichModel:
    def test_a_later_release_of_the_run_answers_alone_and_the_device_says_so(
        self, device: Device, plain: Device, caplog: pytest.LogCaptureFixture
    ) -> None:
        keep(device)
        device.release(1)
        own = answer(device)
        assert device.in_use().alone == ""
        plain.release(1)
        assert np.abs(answer(plain) - own).max() > 0
        with caplog.at_level(logging.INFO):
            device.release(2, other_model(device))
        plain.release(2, other_model(device))
        np.testing.assert_array_equal(answer(device), answer(plain))
        assert f"was made from model {digest(device.model)[:12]}" in device.in_use().alone
        assert "personal_model=none: the personal model of campaign r was made from" in caplog.text
        assert plain.in_use().alone == ""

    def test_a_return_to_the_model_gives_back_what_was_kept_of_it(self, device: Device) -> None:
        keep(device)
        device.release(1)
        own = answer(device)
        keep(device, 2, other_model(device))
        device.release(2, other_model(device))
        newer = answer(device)
        device.release(3)
        np.testing.assert_array_equal(answer(device), own)
        device.release(4, other_model(device))
        np.testing.assert_array_equal(answer(device), newer)
        assert device.in_use().alone == ""

    def test_a_release_before_the_one_it_was_kept_of_answers_alone(
        self, device: Device, plain: Device
    ) -> None:
        device.release(1, other_model(device))
        plain.release(1, other_model(device))
        keep(device)
        device.release(2)
        device.release(3, other_model(device))
        np.testing.assert_array_equal(answer(device), answer(plain))

    def test_it_is_said_again_after_a_restart(self, device: Device) -> None:
        keep(device)
        device.release(1, other_model(device))
        said = device.in_use()
        assert said.alone
        device.start()
        device.turn()
        assert device.in_use() == said

    def test_a_release_of_another_run_answers_alone_too(self, device: Device) -> None:
        keep(device, run_id="s")
        device.release(1, other_model(device))
        assert (
            f"of campaign s was made from model {digest(device.model)[:12]}"
            in device.in_use().alone
        )

    def test_what_is_said_is_of_the_model_in_use_also_after_one_that_failed_and_after_a_return(
        self, device: Device
    ) -> None:
        keep(device)
        device.release(1, other_model(device))
        alone = device.in_use().alone
        device.release(2, b"junk")
        said = device.in_use()
        assert (said.number, bool(said.problem), said.alone) == (1, True, alone)
        device.release(3)
        assert device.in_use().alone == ""
        device.release(4, b"junk")
        said = device.in_use()
        assert (said.number, bool(said.problem), said.alone) == (3, True, "")

    @given(
        st.lists(
            st.tuples(st.sampled_from("rs"), st.sampled_from(MODELS[:2]), st.sampled_from(MODELS)),
            max_size=12,
        )
    )
    def test_whatever_was_kept_it_is_used_with_its_own_model_alone(
        self, history: list[tuple[str, str, str]]
    ) -> None:
        kept: tuple[PersonalModel, ...] = ()
        last: dict[tuple[str, str], PersonalModel] = {}
        for number, (run_id, bundle, model) in enumerate(history):
            model_of = PersonalModel(run_id, bundle, model, f"{number:064x}")
            kept = with_kept(kept, model_of)
            last.pop((bundle, model), None)
            last[bundle, model] = model_of
            assert kept == tuple(last.values())[-MOST_KEPT:]
        for bundle in MODELS[:2]:
            for model in MODELS:
                own = kept_of(kept, bundle, model)
                assert own is None or own == last[bundle, model]
                assert not (own and why_alone(kept, bundle, model))


class TestHowLong:
    def test_more_rounds_of_a_finished_run_take_nothing_away(self, device: Device) -> None:
        keep(device)
        take_up(device)
        own = answer(device)
        train(device, 2, 3, 4, 5)
        np.testing.assert_array_equal(answer(device), own)
        device.release(2, other_model(device))
        assert np.abs(answer(device) - own).max() > 0
        train(device, 6)
        device.start()
        device.turn()
        device.release(3)
        np.testing.assert_array_equal(answer(device), own)

    def test_the_last_few_are_held_and_the_others_blobs_removed(self, device: Device) -> None:
        models = [other_model(device, 1 + number / 10) for number in range(1, MOST_KEPT + 3)]
        for number, model in enumerate(models, 1):
            keep(device, number, model)
        train(device, len(models) + 1)
        assert [kept.model for kept in held(device)] == [
            digest(model) for model in models[-MOST_KEPT:]
        ]
        names = {path.name for path in (device.folder / "blobs").iterdir()}
        assert {kept.tensors for kept in held(device)} <= names
        assert len(names) == MOST_KEPT + 2, "the bundle, and the last plan's model"

    def test_what_is_in_use_stays_when_newer_is_kept(self, device: Device) -> None:
        keep(device)
        device.release(1)
        own = answer(device)
        for number in range(2, MOST_KEPT + 4):
            keep(device, number, other_model(device, 1 + number / 10))
        device.start()
        np.testing.assert_array_equal(answer(device), own)

    def test_a_client_that_dies_before_its_update_is_stored_keeps_it_once(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def end(*_arguments: object) -> None:
            raise KeyboardInterrupt  # as a signal would, it ends the client

        with monkeypatch.context() as patched:
            patched.setattr(DeviceState, "put_update", end)
            with pytest.raises(KeyboardInterrupt):
                keep(device)
        device.start()
        device.turn()
        ((update, _),) = device.updates()
        assert len(held(device)) == 1
        device.release(1)
        assert device.in_use().evaluated.num_correct == update.evaluated.num_correct


class TestNewer:
    def test_a_run_that_ends_twice_with_one_model_brings_what_was_kept_last(
        self, device: Device
    ) -> None:
        first = keep(device)
        take_up(device)
        before = answer(device)
        second = keep(
            device, 2, verbs=(m.Train(16, 8, hyper={"lr": 0.1}, report=False), m.Evaluate())
        )
        take_up(device)
        assert np.abs(answer(device) - before).max() > 0
        right = int((answer(device).argmax(1) == device.windows.test_y).sum())
        assert right == second.evaluated.num_correct
        assert first.evaluated != second.evaluated

    def test_what_is_kept_of_a_release_in_use_comes_into_use_and_is_said_under_its_number(
        self, device: Device
    ) -> None:
        device.release(6, other_model(device))
        device.release(7)
        alone = device.in_use()
        update = keep(device)
        device.say("another boot", epoch=2)
        device.turn()
        said = device.in_use()
        assert (said.number, said.offered, said.problem) == (7, 7, "")
        assert said.before == alone.before, "of the model before the release"
        assert said.evaluated.num_correct == update.evaluated.num_correct
        current = DeviceState(device.folder).current()
        assert current is not None
        assert current.personal_model == held(device)[0].tensors

    def test_it_is_taken_once(self, device: Device) -> None:
        keep(device)
        take_up(device)
        since = DeviceState(device.folder).current()
        for _ in range(3):
            device.now_s += 100
            take_up(device)
        assert DeviceState(device.folder).current() == since


class TestWhatIsHeld:
    def test_a_check_in_says_of_which_models_something_is_kept_that_is_not_damaged(
        self, device: Device
    ) -> None:
        models = [device.model, other_model(device, 1.5)]
        for number, model in enumerate(models, start=1):
            keep(device, number, model)
        device.start()
        assert checked_in(device) == tuple(digest(model) for model in models)
        flip(blob(device, held(device)[0]), 100)
        device.start()
        assert checked_in(device) == (digest(models[1]),)
        blob(device, held(device)[-1]).unlink()
        device.start()
        assert checked_in(device) == ()


class TestDamage:
    def test_where_it_is_damaged_before_it_is_used_the_model_answers_alone(
        self, device: Device, plain: Device
    ) -> None:
        keep(device)
        flip(blob(device, held(device)[0]), 2000)
        device.release(1)
        plain.release(1)
        np.testing.assert_array_equal(answer(device), answer(plain))
        assert "damaged" in device.in_use().alone
        assert held(device) == ()
        assert len(list((device.folder / "blobs").glob("*.damaged"))) == 1

    @pytest.mark.parametrize("is_cut", [True, False])
    def test_where_it_is_damaged_while_in_use_the_model_answers_alone_after_a_restart(
        self, device: Device, plain: Device, is_cut: bool
    ) -> None:
        keep(device)
        device.release(1)
        path = blob(device, held(device)[0])
        path.write_bytes(path.read_bytes()[:-1]) if is_cut else flip(path, -5)
        device.start()
        device.turn()
        plain.release(1)
        np.testing.assert_array_equal(answer(device), answer(plain))
        said = device.in_use()
        assert (said.number, "damaged" in said.alone) == (1, True)
        again = keep(device, 2)
        assert (
            int((answer(device).argmax(1) == device.windows.test_y).sum())
            == again.evaluated.num_correct
        )

    @given(at=st.integers(0, 500), bit=st.integers(0, 7), size=st.none() | st.integers(0, 400))
    def test_a_private_file_with_a_flipped_bit_or_cut_off_is_never_read(
        self, tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, size: int | None
    ) -> None:
        folder = tmp_path_factory.mktemp("state")
        state = DeviceState(folder)
        for number in (1, 2):
            state.put_update("r", number, b"", tensors(number))
        first, last = sorted(
            (path for path in folder.glob("private.*")), key=lambda path: path.name
        )
        if size is None:
            flip(last, at, bit)
        else:
            last.write_bytes(last.read_bytes()[: min(size, last.stat().st_size - 1)])
        assert state.private("r", 3)["private/b"].tolist() == tensors(1)["private/b"].tolist()
        assert last.with_name(f"{last.name}.damaged").exists()
        flip(first, at, bit)
        assert state.private("r", 3) == {}, "it starts anew"

    def test_the_log_says_what_follows(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        state = DeviceState(tmp_path)
        state.put_update("r", 1, b"", tensors(1))
        flip(tmp_path / "private.r.00000001", 100)
        assert state.private("r", 2) == {}
        assert "private.r.00000001.damaged" in caplog.text
        assert "its bytes have another hash; what this device had for itself" in caplog.text


def tensors(value: float) -> Tensors:
    return {"private/b": np.full(20, value, np.float32)}
