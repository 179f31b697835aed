"""Copies of a service's folder: while it works, at any moment; cut short; damaged; and put back."""

import os
import shutil
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aggregator.enrolment.authority import make_authority
from aggregator.enrolment.desk import ban, make_token, reject
from aggregator.fleet.events import Banned
from aggregator.fleet.records import Ban, Campaign
from aggregator.leadership.identity import (
    CUT_OFF,
    SENT_ALERTS,
    lock_service,
    own_secret,
    service_signer,
)
from aggregator.maintenance import backup
from aggregator.maintenance.backup import back_up, restore
from aggregator.maintenance.database import copy_database, read_database
from aggregator.maintenance.examine import examine
from aggregator.storage.enrolment_store import BanRow, DeviceRow, TokenRow, open_enrolments
from host.files import write_atomically
from tests.aggregator.small_service import SmallService, checked_in
from wire.errors import ConfigError, ShoalError
from wire.identity.keys import new_key

ROOT = new_key()


class Served(SmallService):
    """A service's folder, and a campaign that goes on in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        own_secret(folder / "secret.key")
        service_signer(folder, "f", (ROOT.public_key(),), ROOT, time.time())
        super().__init__(folder, keep_models=2, rounds=10_000)
        self.close_round()


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path / "served")


def campaign_in(folder: Path) -> Campaign:
    """The campaign that a folder's database has."""
    fleet = read_database(folder / "shoal.db").fleet
    assert fleet is not None
    return fleet.campaigns["run-1"]


def whole(folder: Path) -> bool:
    return all(finding.verdict != "wrong" for finding in examine(folder))


def test_a_copy_has_all_that_a_run_goes_on_from(served: Served, tmp_path: Path) -> None:
    served.send("a")
    copied = back_up(served.folder, tmp_path / "copy")
    assert (copied.runs, copied.blobs > 4, whole(tmp_path / "copy")) == (("run-1",), True, True)
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        "shoal.db",
        "blobs",
        "secret.key",
        "service.key",
        "service.pub",
        "service.voucher",
    }
    for name in ("secret.key", "service.key"):
        path = tmp_path / "copy" / name
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (
            (served.folder / name).read_bytes(),
            0o600,
        )
    assert campaign_in(tmp_path / "copy") == served.campaign


def test_a_copy_is_whole_at_whatever_moment_of_a_run_it_is_made(
    served: Served, tmp_path: Path
) -> None:
    over, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        while not over.is_set():
            try:
                served.close_round()
            except BaseException as error:
                failed.append(error)
                return

    lock_service(served.folder)  # as a running service does: readers then keep SQLite's locks
    worker = threading.Thread(target=work)
    worker.start()
    try:
        rounds = []
        for number in range(12):
            back_up(served.folder, copy := tmp_path / f"copy-{number}")
            rounds.append(campaign_in(copy).round)
            assert whole(copy)
            shutil.rmtree(copy)
    finally:
        over.set()
        worker.join()
    assert failed == []
    assert rounds == sorted(rounds)
    assert rounds[-1] > rounds[0], "the run went on meanwhile"


def test_a_blob_that_is_taken_away_meanwhile_begins_the_copy_again_and_one_that_is_lost_ends_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Path] = []

    def slowly(path: Path, to: Path) -> None:
        copy_database(path, to)
        copies.append(path)
        if len(copies) < 3:
            for _ in range(4):
                served.close_round()

    monkeypatch.setattr(backup, "copy_database", slowly)
    back_up(served.folder, tmp_path / "copy")
    assert (len(copies), whole(tmp_path / "copy")) == (3, True)
    (served.folder / "blobs" / "run-1" / served.memory).unlink()
    with pytest.raises(
        ConfigError,
        match=rf"blob {served.memory[:12]} is missing, 20 times in a row; `shoal "
        r"doctor",
    ):
        back_up(served.folder, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_copy_that_is_cut_short_has_no_name(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, _payload: bytes, _mode: int = 0) -> None:
        raise OSError(28, "No space left on device", "x")

    with monkeypatch.context() as patch:
        patch.setattr(backup, "write_atomically", full)
        with pytest.raises(ConfigError, match="No space left"):
            back_up(served.folder, tmp_path / "copy")
    assert {path.name for path in tmp_path.iterdir()} == {"served"}
    (tmp_path / "copy.incomplete").mkdir()  # what a kill leaves
    (tmp_path / "copy.incomplete" / "junk").write_text("x")
    back_up(served.folder, tmp_path / "copy")
    assert not (tmp_path / "copy" / "junk").exists()


def test_what_is_damaged_is_not_copied(served: Served, tmp_path: Path) -> None:
    path = served.folder / "blobs" / "run-1" / served.memory
    path.write_bytes(b"damaged")
    with pytest.raises(
        ConfigError, match=r"damaged: its bytes do not match its hash; `shoal doctor` says more"
    ):
        back_up(served.folder, tmp_path / "copy")
    served.close()
    (served.folder / "shoal.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(ShoalError, match=r"shoal\.db: "):
        back_up(served.folder, tmp_path / "copy")
    assert {path.name for path in tmp_path.iterdir()} == {"served"}


def test_nothing_is_overwritten(served: Served, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(ConfigError, match="copy exists already, and is not changed"):
        back_up(served.folder, tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"No shoal\.db in folder"):
        back_up(tmp_path, tmp_path / "other")


class TestRestore:
    def test_a_copy_takes_the_folders_place_and_that_is_kept(
        self, served: Served, tmp_path: Path
    ) -> None:
        back_up(served.folder, tmp_path / "copy")
        before = served.campaign.round
        for _ in range(3):
            served.close_round()
        served.close()
        aside, _ = restore(tmp_path / "copy", served.folder)
        assert aside is not None
        assert aside.name.startswith("served.before-2")
        rounds = [campaign_in(folder).round for folder in (served.folder, aside)]
        assert rounds == [before, before + 3]
        assert (whole(served.folder), (served.folder / "secret.key").stat().st_mode & 0o777) == (
            True,
            0o600,
        )

    def test_where_there_is_no_folder_it_is_made(self, served: Served, tmp_path: Path) -> None:
        back_up(served.folder, tmp_path / "copy")
        (tmp_path / "copy" / "service.voucher").write_bytes(b"over")
        assert restore(tmp_path / "copy", tmp_path / "new" / "served") == (None, [])
        assert campaign_in(tmp_path / "new" / "served") == served.campaign

    @pytest.mark.parametrize("usual", [(), ("lost+found",)])
    def test_an_empty_folder_is_filled(
        self, served: Served, tmp_path: Path, usual: tuple[str, ...]
    ) -> None:
        back_up(served.folder, tmp_path / "copy")
        folder = tmp_path / "volume"
        folder.mkdir(mode=0o750)
        for name in usual:
            (folder / name).mkdir()
        inode = folder.stat().st_ino
        assert restore(tmp_path / "copy", folder) == (None, [])
        assert (folder.stat().st_ino, folder.stat().st_mode & 0o777) == (inode, 0o750)
        assert campaign_in(folder) == served.campaign
        assert {path.name for path in tmp_path.iterdir()} == {"served", "copy", "volume"}
        assert not (folder / CUT_OFF).exists()
        os.close(lock_service(folder))

    def test_a_mount_point_is_filled_and_one_with_content_is_named(
        self, served: Served, tmp_path: Path
    ) -> None:
        back_up(served.folder, tmp_path / "copy")
        folder = tmp_path / "volume"
        folder.mkdir()
        if subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True
        ).returncode:
            pytest.skip("no disk can be mounted here: running as root would run this")
        try:
            assert restore(tmp_path / "copy", folder) == (None, [])
            assert campaign_in(folder) == served.campaign
            with pytest.raises(ConfigError, match="a mount point, which cannot be moved aside"):
                restore(tmp_path / "copy", folder)
            assert campaign_in(folder) == served.campaign
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    @pytest.mark.parametrize("failing", ["copy", "move"])
    def test_an_empty_folder_stays_empty_if_the_disk_is_full(
        self, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        back_up(served.folder, tmp_path / "copy")
        folder = tmp_path / "volume"
        folder.mkdir()
        calls = list[Path]()
        rename, write = Path.rename, write_atomically

        def full(*arguments: Any) -> Any:
            calls.append(arguments[0])
            if len(calls) > 2:
                raise OSError(28, "No space left on device")
            return (write if failing == "copy" else rename)(*arguments)

        if failing == "copy":
            monkeypatch.setattr(backup, "write_atomically", full)
        else:
            monkeypatch.setattr(Path, "rename", full)
        with pytest.raises(ConfigError, match="No space left"):
            restore(tmp_path / "copy", folder)
        assert list(folder.iterdir()) == []

    def test_a_restore_that_was_killed_is_begun_anew_and_no_service_starts_before(
        self, served: Served, tmp_path: Path
    ) -> None:
        back_up(served.folder, tmp_path / "copy")
        folder = tmp_path / "volume"
        (folder / CUT_OFF / "blobs").mkdir(parents=True)
        (folder / "secret.key").write_bytes(b"half")
        (folder / "notes.txt").write_text("not the copy's")
        with pytest.raises(ConfigError, match="a restore into it was cut off"):
            lock_service(folder)
        assert [f.where for f in examine(folder) if f.verdict == "wrong"][-1] == CUT_OFF
        assert restore(tmp_path / "copy", folder) == (None, [])
        assert campaign_in(folder) == served.campaign
        assert (folder / "secret.key").read_bytes() == (tmp_path / "copy/secret.key").read_bytes()
        assert (folder / "notes.txt").exists()
        os.close(lock_service(folder))

    def test_sent_alerts_are_those_of_the_replaced_folder(
        self, served: Served, tmp_path: Path
    ) -> None:
        (served.folder / SENT_ALERTS).write_text("{}")
        back_up(served.folder, tmp_path / "copy")
        assert (tmp_path / "copy" / SENT_ALERTS).read_text() == "{}"
        (served.folder / SENT_ALERTS).write_text('{"later": 1}')
        assert not [f for f in examine(served.folder) if "no file of Shoal's" in f.text]
        served.close()
        restore(tmp_path / "copy", served.folder)
        assert (served.folder / SENT_ALERTS).read_text() == '{"later": 1}'

    def test_a_copy_that_is_not_whole_changes_nothing(self, served: Served, tmp_path: Path) -> None:
        back_up(served.folder, tmp_path / "copy")
        (tmp_path / "copy" / "blobs" / "run-1" / served.memory).write_bytes(b"damaged")
        with pytest.raises(ConfigError, match="damaged, so nothing is changed: wrong"):
            restore(tmp_path / "copy", served.folder)
        with pytest.raises(
            ConfigError, match=r"is not a copy that `shoal backup` made: it has no shoal\.db"
        ):
            restore(tmp_path, served.folder)
        assert {path.name for path in tmp_path.iterdir()} == {"served", "copy"}

    def test_a_service_that_runs_keeps_its_folder(self, served: Served, tmp_path: Path) -> None:
        back_up(served.folder, tmp_path / "copy")
        lock_service(served.folder)
        with pytest.raises(ConfigError, match="a service runs there; stop it"):
            restore(tmp_path / "copy", served.folder)

    def test_a_disk_that_is_full_changes_nothing(
        self, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        back_up(served.folder, tmp_path / "copy")
        monkeypatch.setattr(
            backup,
            "write_atomically",
            lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        with pytest.raises(ConfigError, match="No space left"):
            restore(tmp_path / "copy", served.folder)
        assert {path.name for path in tmp_path.iterdir()} == {"served", "copy"}


class TestCredentials:
    """Credentials of devices that were admitted or banned since the copy was made."""

    @pytest.fixture
    def enrolling(self, served: Served) -> Served:
        make_authority(served.folder, "t", ["localhost"], time.time())
        served.feed(checked_in("evil", 3.0), checked_in("good", 3.0))
        return served

    def make_token(self, served: Served) -> str:
        with closing(open_enrolments(served.folder)) as store:
            return make_token(store, "f" * 64).hash

    def test_bans_tokens_and_enrolments_since_the_copy_stay_and_so_does_the_broker(
        self, enrolling: Served, tmp_path: Path
    ) -> None:
        folder = enrolling.folder
        kept, spent, rejected = (self.make_token(enrolling) for _ in range(3))
        back_up(folder, tmp_path / "copy")
        with closing(open_enrolments(folder)) as store:
            with store.transaction() as within:
                assert within.use_token(spent, "k" * 64, "victim")
                within.put(DeviceRow("victim", "enrolled", "k" * 64, token=spent))
            reject(store, rejected)
            ban(store, "evil")
        enrolling.feed(Banned(at_s=4.0, device_id="evil", ban=Ban(4.0, "stolen")))
        (folder / "broker").mkdir()
        (folder / "broker" / "mosquitto.conf").write_text("listener 8883")
        folder.chmod(0o711)
        enrolling.close()
        _, told = restore(tmp_path / "copy", folder)
        assert told == [
            "tokens and enrolled devices are those from before the restore, not the copy's",
            "banned since the copy, and still: evil",
        ]
        with closing(open_enrolments(folder)) as store, store.transaction() as within:
            assert [row.lifted for row in within.rows(BanRow, device_id="evil")] == [False]
            assert [(token.hash, token.used_by) for token in within.rows(TokenRow)] == [
                (kept, ""),
                (spent, "victim"),
            ]
            assert within.device("victim") is not None
        fleet = read_database(folder / "shoal.db").fleet
        assert fleet is not None
        bans = {device_id: fleet.devices[device_id].ban for device_id in ("evil", "good")}
        assert bans == {"evil": Ban(4.0, "stolen"), "good": None}
        assert (folder / "broker" / "mosquitto.conf").read_text() == "listener 8883"
        assert folder.stat().st_mode & 0o777 == 0o711

    def test_where_nothing_is_known_since_no_token_of_the_copy_lets_anybody_in(
        self, enrolling: Served, tmp_path: Path
    ) -> None:
        self.make_token(enrolling)
        back_up(enrolling.folder, tmp_path / "copy")
        aside, told = restore(tmp_path / "copy", tmp_path / "elsewhere")
        assert (aside, told[0]) == (
            None,
            "1 unused enrolment tokens are revoked: make new ones",
        )
        with (
            closing(open_enrolments(tmp_path / "elsewhere")) as store,
            store.transaction() as within,
        ):
            assert within.rows(TokenRow) == []

    @pytest.mark.parametrize("name", ["shoal.db", "enrolment.db"])
    def test_what_cannot_be_read_is_said(
        self, enrolling: Served, tmp_path: Path, name: str
    ) -> None:
        self.make_token(enrolling)
        back_up(enrolling.folder, tmp_path / "copy")
        enrolling.close()
        for path in enrolling.folder.glob(f"{name}-*"):
            path.unlink()
        (enrolling.folder / name).write_bytes(b"damaged" * 1000)
        _, told = restore(tmp_path / "copy", enrolling.folder)
        assert any("cannot be read" in line for line in told), told
        with closing(open_enrolments(enrolling.folder)) as store, store.transaction() as within:
            assert len(within.rows(TokenRow)) == (1 if name == "shoal.db" else 0)

    def test_the_doctor_knows_what_a_service_that_enrols_has_in_its_folder(
        self, enrolling: Served
    ) -> None:
        self.make_token(enrolling)
        for name in ("broker", "pieces", "bundles", "stranger"):
            (enrolling.folder / name).mkdir()
        noted = [
            finding.where
            for finding in examine(enrolling.folder)
            if "no file of Shoal's" in str(finding)
        ]
        assert noted == ["stranger"]
