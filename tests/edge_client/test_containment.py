"""Whatever a message, a plan, a bundle, a model or a disk does, the client goes on, and the next
plan is taken."""

import errno
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_client.core.ports import Health
from edge_client.core.session import Session
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.files import FolderFiles
from edge_client.storage.state import TRAFFIC, UPDATE, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device
from tests.edge_client.hostile import encrypted, hostile_bundles
from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays.tensors import Tensors, encode_tensors
from wire.codec import decode, digest
from wire.links.port import Delivery

JUNK = b"no tensors"
HOSTILE = [
    "truncated",
    "cut at the end",
    "not a ZIP",
    "encrypted",
    "compressed",
    "a name a thousand times",
    "a directory of too many names",
    "a comment",
    "no manifest",
    "manifest nested deeply",
    "manifest a list",
    "manifest not UTF-8",
    "a file too few",
    "a file changed",
    "a later format",
    "no graphs",
    "a graph that is no graph",
    "an empty graph",
    "another graph's file",
    "fewer outputs than the graph has",
    "more outputs than the graph has",
    "outputs in another order",
    "outputs of tensors that are not there",
    "outputs without names",
    "no outputs",
    "no inputs",
    "inputs that nobody has",
    "no classes",
    "batches of more than all",
    "another window",
    "random numbers without end",
    "random numbers of a negative shape",
    "no tensors",
]


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state")


def declined(device: Device, number: int = 1, **changes: Any) -> m.Decline:
    """Send a plan that is to be declined; afterwards an honest one has to be carried out."""
    device.offer()
    device.send_plan(number, **changes)
    device.turn()
    (decline,) = device.declines()
    assert decline.detail
    device.send_plan(number + 1)
    device.turn()
    assert [update.round for update, _ in device.updates()] == [number + 1]
    return decline


class TestPlans:
    @pytest.mark.parametrize(
        ("reason", "verb"),
        [
            ("bundle", m.Train(8, graph="predict")),
            ("bundle", m.Train(8, graph="other")),
            ("bundle", m.Evaluate(graph="other")),
            ("bundle", m.Annotate("other", "c")),
            ("bundle", m.Annotate("evaluate", "c")),
            ("bundle", m.Apply("step")),
            ("bundle", m.Respond(digest(JUNK), "evaluate")),
            ("bundle", m.Choose((digest(JUNK),), "predict")),
            ("failed", m.Choose((digest(JUNK),))),
            ("failed", m.Respond(digest(JUNK))),
            ("failed", m.Train(8, hyper={"lr": 1e30})),
            ("policy", m.Train(8, 10_000)),
            ("policy", m.Train(4096, steps=2**31)),
        ],
    )
    def test_a_plan_that_cannot_be_carried_out(
        self, device: Device, reason: str, verb: Any
    ) -> None:
        device.offer(JUNK)
        assert declined(device, verbs=(verb,)).reason == reason

    @pytest.mark.parametrize("payload", [b"junk", encode_tensors({})])
    def test_a_model_that_is_none(self, device: Device, payload: bytes) -> None:
        device.offer(payload)
        assert declined(device, model=digest(payload)).reason == "failed"

    @pytest.mark.parametrize(
        "error",
        [MemoryError(), RecursionError("deep"), KeyError("x"), ZeroDivisionError("a\nforged line")],
    )
    def test_whatever_fails_in_the_work_is_the_plans(
        self, device: Device, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Failing:
            max_batch = None
            fail = True

            def __init__(self, bundle: Any) -> None:
                self.graphs = OnnxGraphs(bundle)

            def run(self, graph: str, inputs: Tensors) -> Tensors:
                if Failing.fail:
                    Failing.fail = False
                    raise error
                return self.graphs.run(graph, inputs)

        device.load_graphs = Failing
        device.start()
        decline = declined(device)
        assert (decline.reason, type(error).__name__ in decline.detail, "\n" in decline.detail) == (
            "failed",
            True,
            False,
        )
        assert [
            record.exc_info is not None
            for record in caplog.records
            if "Plan failed" in record.message
        ] == [True]

    @pytest.mark.parametrize("error", [MemoryError(), KeyError("x"), OSError("no library")])
    def test_whatever_fails_in_loading_is_the_bundles(
        self, device: Device, error: Exception
    ) -> None:
        failures = [error]

        def load(bundle: Any) -> OnnxGraphs:
            if failures:
                raise failures.pop()
            return OnnxGraphs(bundle)

        device.load_graphs = load
        device.start()
        assert declined(device).reason == "bundle"

    def test_a_defect_ends_one_event_and_is_logged_once_with_its_traceback(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        device.turn()
        with monkeypatch.context() as patch:
            patch.setattr(device.agent, "_check_in", lambda: 1 / 0)
            for boot in "abc":
                device.say(boot, epoch=2)
            device.turn()
        assert [
            count
            for cause, count in device.agent.incidents.counts.items()
            if "ZeroDivisionError" in cause
        ] == [3]
        assert [
            bool(record.exc_info)
            for record in caplog.records
            if "ZeroDivisionError" in record.message
        ] == [True, False, False]
        device.offer()
        device.send_plan()
        device.turn()
        assert len(device.updates()) == 1

    def test_a_flood_of_garbage_does_not_fill_the_log(
        self, device: Device, caplog: pytest.LogCaptureFixture
    ) -> None:
        device.turn()
        for _ in range(5000):
            device.agent.handle(Delivery(device.topics.device("d0", "plan"), b"junk"))
        assert sum(device.agent.incidents.counts.values()) == 5000
        assert len([record for record in caplog.records if "ignored" in record.message]) < 20


class TestBundles:
    def test_every_hostile_bundle_is_in_the_list(self, device: Device) -> None:
        assert set(hostile_bundles(device.bundle)) == set(HOSTILE)

    @pytest.mark.parametrize("name", HOSTILE)
    def test_a_hostile_bundle(self, device: Device, name: str) -> None:
        payload = hostile_bundles(device.bundle)[name]
        device.offer(payload)
        expected = {
            "another window": "data",
            "no classes": "data",
            "outputs in another order": "failed",
        }.get(name, "bundle")
        assert declined(device, bundle=digest(payload)).reason == expected

    def test_encrypted_is_what_the_reader_takes_for_encrypted(self, device: Device) -> None:
        import io
        import zipfile

        with (
            zipfile.ZipFile(io.BytesIO(encrypted(device.bundle))) as archive,
            pytest.raises(RuntimeError, match="encrypted"),
        ):
            archive.read(archive.namelist()[0])


class FullFiles(FolderFiles):
    def write(self, name: str, payload: bytes) -> None:
        if name in FullState.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, payload)


class FullState(DeviceState):
    """A state folder whose disk is full while `full` names the methods that fail, or
    files that cannot be written."""

    full: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.files = FullFiles(folder)

    def __getattribute__(self, name: str) -> Any:
        if name in type(self).full:

            def fail(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            return fail
        return super().__getattribute__(name)


class TestFullDisk:
    @pytest.fixture
    def device(self, fleet: FleetData, exported: Exported, tmp_path: Path) -> Iterator[Device]:
        device = Device(fleet, exported, tmp_path / "state")
        device.start(FullState(tmp_path / "state"))
        yield device
        FullState.full = frozenset()

    @pytest.mark.parametrize("method", ["save", "put_blob", "put_update", TRAFFIC, "keep_blobs"])
    @pytest.mark.parametrize("begin", ["before the plan", "before the blobs"])
    def test_a_plan_on_a_full_disk_is_declined_or_carried_out(
        self, device: Device, method: str, begin: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        device.turn()
        FullState.full = frozenset({method}) if begin == "before the plan" else frozenset()
        device.send_plan()
        device.turn()
        FullState.full = frozenset({method})
        device.offer()
        device.turn()
        if method in (TRAFFIC, "keep_blobs"):
            assert [update.round for update, _ in device.updates()] == [1]
        else:
            (decline,) = device.declines()
            assert (decline.reason, "No space left" in decline.detail) == ("failed", True)
            assert "No space left" in caplog.text
        FullState.full = frozenset()
        device.send_plan(2)
        device.turn()
        assert [update.round for update, _ in device.updates()] == [2]

    def test_a_board_that_stays_connected_checks_in_when_there_is_room_again(
        self, device: Device
    ) -> None:
        free = [10 * 2**30]
        device.options["health"] = lambda: Health(free_bytes=free[0])
        device.start(FullState(device.folder))
        device.turn()
        device.offer()

        def turn() -> list[int | None]:
            device.now_s += m.HEARTBEAT_S
            device.turn()
            return [decode(each, m.CheckIn).free_bytes for each in device.sent("check-in")]

        assert turn()[-1] == 10 * 2**30
        FullState.full, free[0] = frozenset({"put_update"}), 4096
        device.send_plan()
        assert turn() == [4096], "so that the aggregator sees more room later"
        assert turn() == []
        free[0] = 2**20
        assert turn() == [], "too little to matter"
        FullState.full, free[0] = frozenset(), 5 * 2**30
        assert turn() == [5 * 2**30]
        assert turn() == []
        free[0] = 4 * 2**30
        assert turn() == [], "not far from it"

    @pytest.mark.parametrize("method", ["save", "put_blob", "put_update"])
    def test_wherever_it_was_full_and_after_a_restart_it_checks_in(
        self, device: Device, method: str
    ) -> None:
        free = [10 * 2**30]
        device.options["health"] = lambda: Health(free_bytes=free[0])

        def turn() -> list[int | None]:
            device.now_s += m.HEARTBEAT_S
            device.turn()
            return [decode(each, m.CheckIn).free_bytes for each in device.sent("check-in")]

        device.start(FullState(device.folder))
        assert turn()[-1] == 10 * 2**30
        FullState.full, free[0] = frozenset({method}), 4096
        device.send_plan()
        device.offer()
        assert turn() == [4096]
        FullState.full, free[0] = frozenset(), 5 * 2**30
        assert turn() == [5 * 2**30]
        free[0] = 4096
        device.start(FullState(device.folder))
        assert turn()[-1] == 4096
        free[0] = 5 * 2**30
        assert turn() == [5 * 2**30], "the new process knows no failure"

    @pytest.mark.full
    def test_an_acknowledged_update_makes_room(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        (payload,) = device.sent("update")
        FullState.full = frozenset({"save"})
        device.reply(m.Acknowledge("d0", digest(payload)))
        device.turn()
        assert DeviceState(device.folder).files.read(UPDATE) is None

    @pytest.mark.parametrize("method", ["save", "put_blob", "put_current"])
    def test_a_finished_run_is_taken_up_when_there_is_room(
        self, device: Device, method: str
    ) -> None:
        device.turn()
        FullState.full = frozenset({method})
        device.finish()
        device.offer()
        device.turn()
        assert DeviceState(device.folder).current() is None
        FullState.full = frozenset()
        for _ in range(60):
            device.now_s += 10
            device.offer()
            device.turn()
        current = DeviceState(device.folder).current()
        assert current is not None
        assert current.model == digest(device.model)
        assert device.agent.predict(device.windows.test_x).shape == (12, 3)

    def test_a_disk_that_is_really_full(
        self, fleet: FleetData, exported: Exported, tmp_path: Path
    ) -> None:
        folder = tmp_path / "disk"
        folder.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True
        ).returncode:
            pytest.skip("a disk of 2 MiB cannot be mounted here: running as root would run this")
        try:
            device = Device(fleet, exported, folder / "state")
            device.turn()
            filling = folder / "filling"
            with pytest.raises(OSError, match="No space"):
                filling.write_bytes(bytes(2**22))
            device.offer()
            for number in (1, 2, 3):
                device.send_plan(number)
                device.turn()
            assert [decline.reason for decline in device.declines()] == ["failed"] * 3
            filling.unlink()
            device.send_plan(4)
            device.turn()
            assert [update.round for update, _ in device.updates()] == [4]
            device.start()
            assert device.agent.session.stage == "pending"
        finally:
            subprocess.run(["umount", str(folder)], check=True)


def test_a_session_is_counted_before_the_work_begins(device: Device) -> None:
    seen: list[Session] = []

    def load(bundle: Any) -> OnnxGraphs:
        seen.append(DeviceState(device.folder).load())
        return OnnxGraphs(bundle)

    device.load_graphs = load
    device.start()
    device.offer()
    device.send_plan()
    device.turn()
    assert [(session.stage, session.tries) for session in seen] == [("working", 1)]


def test_a_stop_between_batches_takes_the_count_back(device: Device) -> None:
    batches = []
    device.offer()
    device.send_plan(verbs=(m.Train(8, 5),))
    device.agent._stop = lambda: len(batches.append(1) or batches) > 5  # type: ignore[func-returns-value]
    device.turn()
    session = DeviceState(device.folder).load()
    assert (session.stage, session.tries, device.updates()) == ("working", 0, [])
    device.start()
    device.turn()
    assert [update.num_steps for update, _ in device.updates()][:1] == [25]


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
