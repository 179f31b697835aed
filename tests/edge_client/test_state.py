"""The device state contract over memory and a folder, and what a folder does about damage, a full
disk and a second process."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_client.commands.check import check
from edge_client.core.session import Session
from edge_client.main import run
from edge_client.options import parser
from edge_client.storage import owner as owner_module
from edge_client.storage.owner import Owner, owner_of
from edge_client.storage.state import BLOBS, MOST_RUNS, TRAFFIC, DeviceState, only_process
from tests.contracts.device_state import DeviceStateContract
from wire.codec import digest
from wire.errors import ConfigError


class TestMemory(DeviceStateContract):
    @pytest.fixture
    def state(self) -> DeviceState:
        return DeviceState()


class TestFolder(DeviceStateContract):
    @pytest.fixture
    def state(self, tmp_path: Path) -> DeviceState:
        self.folder = tmp_path / "state"
        return DeviceState(self.folder)

    def again(self, state: DeviceState) -> DeviceState:
        return DeviceState(self.folder)

    @pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"stage": "asleep"}', b"[" * 100_000])
    @pytest.mark.parametrize("name", ["session.json", "current/model.json", "traffic.json"])
    def test_a_damaged_file_is_set_aside(
        self, state: DeviceState, name: str, damage: bytes
    ) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(damage)
        assert (state.load(), state.current(), state.document(TRAFFIC, dict[int, int])) == (
            Session(),
            None,
            None,
        )
        assert (self.folder / f"{name}.damaged").read_bytes() == damage

    @pytest.mark.parametrize("damage", [b"", b"half", b"other bytes of the same length!!"])
    def test_a_damaged_blob_is_set_aside_and_can_be_put_again(
        self, state: DeviceState, damage: bytes
    ) -> None:
        name = digest(b"thirty-two bytes of a model blob")
        state.put_blob(name, b"thirty-two bytes of a model blob")
        (self.folder / "blobs" / name).write_bytes(damage)
        assert state.blob(name) is None
        assert not state.files.size(BLOBS + name)
        assert (self.folder / "blobs" / f"{name}.damaged").exists()
        state.put_blob(name, b"thirty-two bytes of a model blob")
        assert state.blob(name) == b"thirty-two bytes of a model blob"

    def test_put_over_a_damaged_blob_writes_it(self, state: DeviceState) -> None:
        name = digest(b"good")
        (self.folder / "blobs" / name).write_bytes(b"bad!")
        state.put_blob(name, b"good")
        assert state.blob(name) == b"good"

    def test_damaged_private_tensors_are_set_aside_for_those_before(
        self, state: DeviceState
    ) -> None:
        for number in (1, 2):
            state.put_update("r", number, b"", {"private/b": np.full(1, number, np.float32)})
        (self.folder / "private.r.00000002").write_bytes(b"junk")
        assert state.private("r", 3)["private/b"].tolist() == [1]

    def test_private_tensors_of_runs_long_past_are_removed(self, state: DeviceState) -> None:
        for number in range(MOST_RUNS + 3):
            state.put_update(f"run.{number}", 1, b"", {"private/b": np.ones(1, np.float32)})
            os.utime(self.folder / f"private.run.{number}.00000001", (number, number))
        assert len(list(self.folder.glob("private.*"))) == MOST_RUNS + 1
        assert state.private(f"run.{MOST_RUNS + 2}", 2) != {}

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
        self, state: DeviceState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state.save(Session(tries=1))

        def fail(_file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("host.files.os.fsync", fail)
        with pytest.raises(OSError, match="No space"):
            state.save(Session(tries=2))
        assert sorted(path.name for path in self.folder.iterdir()) == ["blobs", "session.json"]
        assert state.load() == Session(tries=1)


class TestOwner:
    ONE = Owner("pi-1", "watch")

    def test_the_state_of_another_device_is_one_clear_error_and_stays_as_it_is(
        self, tmp_path: Path
    ) -> None:
        DeviceState(tmp_path, self.ONE).save(Session(released=7))
        for other in (Owner("pi-2", "watch"), Owner("pi-1", "ring")):
            with pytest.raises(
                ConfigError,
                match=rf"state folder .* belongs to device pi-1 of fleet watch, and this is "
                rf"{other}, .* empty this one",
            ):
                DeviceState(tmp_path, other)
        assert DeviceState(tmp_path, self.ONE).load() == Session(released=7)
        assert owner_of(tmp_path) == self.ONE

    def test_a_folder_of_another_format_is_one_clear_error(self, tmp_path: Path) -> None:
        DeviceState(tmp_path, Owner("pi-1", "watch", format=2))
        with pytest.raises(ConfigError, match="has format 2, and this client reads format 1"):
            DeviceState(tmp_path, self.ONE)

    @pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"[" * 100_000])
    def test_where_whose_it_is_is_damaged_it_is_noted_anew(
        self, tmp_path: Path, damage: bytes
    ) -> None:
        DeviceState(tmp_path, self.ONE)
        (tmp_path / "device.json").write_bytes(damage)
        DeviceState(tmp_path, self.ONE)
        assert owner_of(tmp_path) == self.ONE

    def test_a_full_disk_does_not_keep_the_client_from_starting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def full(*_arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(owner_module, "write_atomically", full)
            DeviceState(tmp_path, self.ONE)
        assert (
            f"Owner of the state folder not stored: folder={tmp_path}: No space left on device"
            in caplog.text
        )
        assert owner_of(tmp_path) is None

    def test_run_and_check_say_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        DeviceState(tmp_path / "state", Owner("pi-2", "default"))
        words = [
            "--id",
            "pi-1",
            "--data",
            str(tmp_path),
            "--state",
            str(tmp_path / "state"),
            "--broker",
            "mqtt://localhost:9",
            "--insecure",
        ]
        with pytest.raises(ConfigError, match="belongs to device pi-2 of fleet default"):
            run(parser().parse_args(["run", *words]))
        assert check(parser().parse_args(["check", *words])) == 1
        assert "WRONG state folder: state folder" in capsys.readouterr().out


class TestOnlyProcess:
    def test_a_second_process_is_one_clear_error(self, tmp_path: Path) -> None:
        code = (
            "from pathlib import Path; from edge_client.storage.state import *\nwith "
            f"only_process(Path({str(tmp_path)!r})): pass"
        )
        with only_process(tmp_path):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert "is in use by another process" in done.stderr
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0

    def test_an_error_of_whoever_holds_it_is_theirs(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="mine"), only_process(tmp_path):
            raise OSError("mine")

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="state folder"), only_process(tmp_path / "file"):
            pass
