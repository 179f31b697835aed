"""The doctor, over the folder of a small service: whatever is damaged, it says so and never dies,
and what can be mended is."""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from aggregator.fleet import events as e
from aggregator.fleet.records import Campaign
from aggregator.leadership.identity import lock_service, own_secret, service_signer
from aggregator.maintenance.blobs import needs
from aggregator.maintenance.database import carry_out, read_database
from aggregator.maintenance.examine import examine
from aggregator.maintenance.finding import Finding
from aggregator.ports import StorageFailed
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from tests.aggregator.small_service import BUNDLE, SmallService, checked_in
from wire.errors import ConfigError
from wire.identity.keys import new_key, public_pem

PAGE = 4096


@dataclass(frozen=True)
class Served:
    """The folder of a service, and that of its bundle."""

    folder: Path
    bundle: Path

    def copy(self, to: Path) -> "Served":
        shutil.copytree(self.folder, to)
        return Served(to, self.bundle)

    def examine(self, mend: bool = False) -> list[Finding]:
        return [*examine(self.folder, self.bundle, mend)]

    def wrong(self, mend: bool = False) -> list[str]:
        return [str(finding) for finding in self.examine(mend) if finding.verdict == "wrong"]

    def goes_on(self) -> Campaign:
        """Start a service with the folder's fleet, which must take what is then sent to it; return
        its campaign."""
        carry_out(self.folder, e.Resumed(at_s=10.0, epoch=9), checked_in("z", 11.0))
        fleet = read_database(self.folder / "shoal.db").fleet
        assert fleet is not None
        assert (fleet.epoch, "z" in fleet.devices) == (9, True)
        return fleet.campaigns["run-1"]

    @property
    def blobs(self) -> list[Path]:
        return sorted((self.folder / "blobs" / "run-1").iterdir())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A folder in whose campaign round 1 is closed, and one of two updates of round 2 has been
    received, with many other events."""
    folder, bundle = tmp_path_factory.mktemp("served"), tmp_path_factory.mktemp("bundle")
    service = SmallService(folder, rounds=5, keep_models=0)
    service.feed(*(checked_in(f"other-{number}", 1.5) for number in range(40)))
    service.close_round()
    service.feed(*(checked_in(f"other-{number}", 2.5, num_train=6) for number in range(40)))
    service.send("a")
    assert (service.campaign.round, set(service.campaign.updates)) == (2, {"a"})
    service.close()
    root = new_key()
    own_secret(folder / "secret.key")
    service_signer(folder, "f", (root.public_key(),), root, 1e11)
    (bundle / "trust.pem").write_bytes(public_pem(root))
    (bundle / "device.shoal").write_bytes(BUNDLE)
    return Served(folder, bundle)


def test_all_is_well_with_a_whole_folder_also_while_a_service_has_it(
    served: Served, tmp_path: Path
) -> None:
    one = served.copy(tmp_path / "f")
    before = {path: path.read_bytes() for path in one.folder.rglob("*") if path.is_file()}
    assert {finding.verdict for finding in one.examine()} == {"ok"}
    assert {
        path: path.read_bytes() for path in one.folder.rglob("*") if path.is_file()
    } == before, "a check writes nothing"
    held = lock_service(one.folder)
    carry_out(one.folder, checked_in("new", 9.0))
    assert {finding.verdict for finding in one.examine()} == {"ok"}
    os.close(held)
    assert one.wrong(mend=True) == []
    one.goes_on()


def damages(size: int) -> Iterator[tuple[str, bytes]]:
    yield "gone", b""
    yield "zeros", bytes(size)
    yield "random", random.Random(0).randbytes(size)


def test_every_blob_damaged_in_turn(served: Served, tmp_path: Path) -> None:
    contents = read_database(served.folder / "shoal.db")
    assert contents.fleet is not None
    wanted = needs(contents.fleet, "run-1", contents.records["run-1"])
    assert {need.kind for found in wanted.values() for need in found} == {
        "bundle",
        "model",
        "memory",
        "update",
    }
    for number, original in enumerate(served.blobs):
        for kind, payload in damages(original.stat().st_size):
            one = served.copy(tmp_path / f"{number}-{kind}")
            path = one.blobs[number]
            path.write_bytes(payload) if payload else path.unlink()
            said = one.wrong()
            assert (path.name[:12] in " ".join(said)) is (path.name in wanted or kind != "gone")
            left = one.wrong(mend=True)
            kinds = {need.kind for need in wanted.get(path.name, [])}
            if kinds & {"model", "memory"}:
                assert all(
                    "restore the folder from a backup, or begin another run" in line.lower()
                    for line in left
                )
                assert len(left) >= 1
                continue
            assert left == []
            assert one.wrong() == []
            campaign = one.goes_on()
            assert sorted(campaign.updates) == ([] if "update" in kinds else ["a"])
            assert path.with_name(path.name + ".damaged").exists() is (kind != "gone")


DAMAGE = ("zeros", "random", "end", "cut")


@pytest.mark.parametrize("kinds", [1, pytest.param(len(DAMAGE), marks=pytest.mark.slow)])
def test_every_page_of_the_database_damaged_in_turn(
    served: Served, tmp_path: Path, kinds: int
) -> None:
    """In as many ways as `kinds`, other ones from page to page."""
    whole = read_database(served.folder / "shoal.db")
    pages = (served.folder / "shoal.db").stat().st_size // PAGE
    assert pages >= 15
    outcomes = set[bool]()
    for number in range(pages):
        for kind in (DAMAGE[(number + turn) % len(DAMAGE)] for turn in range(kinds)):
            one = served.copy(tmp_path / f"{number}-{kind}")
            payload = bytearray((one.folder / "shoal.db").read_bytes())
            noise, begin = random.Random(number).randbytes(PAGE), number * PAGE
            match kind:
                case "zeros":
                    payload[begin : begin + PAGE] = bytes(PAGE)
                case "random":
                    payload[begin : begin + PAGE] = noise
                case "end":
                    payload[begin + 3700 : begin + 3900] = noise[:200]
                case "cut":
                    payload[begin:] = b""
            (one.folder / "shoal.db").write_bytes(payload)
            damaged = (one.folder / "shoal.db").read_bytes()
            said = one.wrong()
            read = read_database(one.folder / "shoal.db")
            assert said != [] or read == whole, f"page {number}, {kind}"
            assert one.wrong(mend=True) == said
            assert "restore the folder from a backup" in " ".join(said) or not said
            assert (one.folder / "shoal.db").read_bytes() == damaged, "nothing of it is changed"
            outcomes.add(bool(said))
    assert True in outcomes


def test_an_empty_database_beside_blobs_is_a_lost_run(served: Served, tmp_path: Path) -> None:
    one = served.copy(tmp_path / "f")
    (one.folder / "shoal.db").write_bytes(b"")
    (text,) = one.wrong()
    assert "shoal.db: empty, but there are blobs: the run is lost" in text


def test_a_row_that_cannot_be_read_is_damage(served: Served, tmp_path: Path) -> None:
    one = served.copy(tmp_path / "f")
    with sqlite3.connect(one.folder / "shoal.db") as connection:
        connection.execute("update device_records set record = '{' where device_id = 'a'")
    connection.close()
    (text,) = one.wrong()
    assert "shoal.db: damaged: " in text
    assert "device 'a'" in text
    assert "restore the folder from a backup" in text


def test_the_service_says_how_a_damaged_database_is_restored(
    served: Served, tmp_path: Path
) -> None:
    one = served.copy(tmp_path / "f")
    (one.folder / "shoal.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(
        ConfigError, match=r"not a database; the file is damaged: .*`shoal restore`"
    ):
        FleetStore(sqlite_url(one.folder / "shoal.db"))


@pytest.mark.parametrize(
    ("name", "payload", "error", "mended"),
    [
        ("secret.key", b"", "secret.key: 0 bytes, expected 32", False),
        ("secret.key", None, "secret.key: missing", False),
        ("service.key", b"x", "service.key: signing key: not a PEM private key", False),
        ("service.key", None, "service.key: missing", False),
        ("service.voucher", None, "service.voucher: missing", False),
        ("service.voucher", b"x\ny", "service.voucher: ", False),
        ("boots", b"\xff", "boots: not text", True),
        ("shoal.db", None, "shoal.db: missing, but there are blobs", False),
    ],
)
def test_every_other_file(
    served: Served, tmp_path: Path, name: str, payload: bytes | None, error: str, mended: bool
) -> None:
    one = served.copy(tmp_path / "f")
    (one.folder / name).unlink(missing_ok=True)
    if payload is not None:
        (one.folder / name).write_bytes(payload)
        (one.folder / name).chmod(0o600)
    assert error in " ".join(one.wrong())
    assert (one.wrong(mend=True) == []) is mended


def test_a_voucher_that_ends_is_told(served: Served, tmp_path: Path) -> None:
    one = served.copy(tmp_path / "f")
    root = new_key()
    service_signer(one.folder, "f", (root.public_key(),), root, 0.0)
    assert "service.voucher: its signature was not made with a trusted key" in " ".join(one.wrong())
    told = [str(finding) for finding in examine(one.folder)]
    assert any(line.startswith("wrong   service.voucher: it ended") for line in told)


def test_readable_secrets_and_leftovers_are_mended(served: Served, tmp_path: Path) -> None:
    one = served.copy(tmp_path / "f")
    (one.folder / "secret.key").chmod(0o644)
    for name in (
        "service.key.new",
        "blobs/run-1/check.new",
        f"blobs/run-1/{'0' * 64}.new",
        "notes.txt",
    ):
        (one.folder / name).write_bytes(b"")
    assert [line.split(":")[0] for line in one.wrong()] == ["wrong   secret.key"]
    assert one.wrong(mend=True) == []
    assert (one.folder / "secret.key").stat().st_mode & 0o777 == 0o600
    assert {f.where for f in one.examine() if f.verdict == "note"} == {"notes.txt"}


def test_the_command(served: Served, tmp_path: Path) -> None:
    """It loads no torch, ends with 0 or 1, and does not mend while a service has the folder."""
    one = served.copy(tmp_path / "f")
    code = (
        "import sys; from shoal.cli import main\ntry: main()\nfinally: print('torch' in "
        "sys.modules, file=sys.stderr)"
    )

    def doctor(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", code, "doctor", str(one.folder), *arguments],
            capture_output=True,
            text=True,
        )

    done = doctor("--bundle", str(one.bundle))
    assert (done.returncode, done.stderr) == (0, "False\n"), done.stdout
    one.blobs[0].write_bytes(b"")
    held = lock_service(one.folder)
    assert doctor().returncode == 1
    refused = doctor("--mend")
    assert refused.returncode == 2
    assert "another `shoal serve` uses it" in refused.stderr
    os.close(held)
    assert doctor("--bundle", str(tmp_path / "none")).returncode == 2


LIMITED = """
import resource
from shoal.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
main()
"""
"""Runs a command as on a full disk: no file can become longer."""


def limited(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True
    )


@pytest.fixture
def killed(served: Served, tmp_path: Path) -> Served:
    """The folder of a service that was killed: SQLite's log and its index are there."""
    one = served.copy(tmp_path / "killed")
    code = f"""
import os
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.step import take_in
from aggregator.storage.fleet_store import FleetStore
from tests.aggregator.small_service import checked_in
store = FleetStore("sqlite:///{one.folder}/shoal.db")
before = store.load()
turn = Turn(before)
take_in(turn, checked_in("late", 9.0))
store.commit(before, turn.fleet(), turn.changed)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert (one.folder / "shoal.db-wal").stat().st_size > 0
    return one


@pytest.mark.parametrize("index", ["whole", "gone"])
def test_a_check_after_a_kill_reads_the_log_and_writes_nothing_also_on_a_full_disk(
    killed: Served, index: str
) -> None:
    if index == "gone":
        (killed.folder / "shoal.db-shm").unlink()
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in killed.folder.rglob("*")
        if path.is_file()
    }
    fleet = read_database(killed.folder / "shoal.db").fleet
    assert fleet is not None
    assert "late" in fleet.devices, "it is in the log alone"
    done = limited("doctor", str(killed.folder), "--bundle", str(killed.bundle))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert limited("models", "rounds", str(killed.folder)).returncode == 0
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in killed.folder.rglob("*")
        if path.is_file()
    } == before


def test_a_database_that_cannot_be_read_is_not_called_damaged_and_nothing_is_judged_by_it(
    killed: Served,
) -> None:
    (killed.folder / "shoal.db-shm").unlink()
    held = lock_service(
        killed.folder
    )  # so that it is read with the index that a service shares, which cannot be made
    done = limited("doctor", str(killed.folder), "--bundle", str(killed.bundle))
    listed = limited("models", "rounds", str(killed.folder))
    os.close(held)
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("ok")]
    error = f"database {killed.folder}/shoal.db: not readable: disk I/O error"
    assert (done.returncode, wrong) == (
        1,
        [f"wrong   shoal.db: {error}. What depends on it was not checked, and nothing was changed"],
    )
    assert (listed.returncode, listed.stderr) == (2, f"error: {error}\n")


@pytest.mark.parametrize(("free", "why"), [(0, "; no space is left on its disk"), (2**30, "")])
def test_why_a_database_cannot_be_read_is_told(
    killed: Served, monkeypatch: pytest.MonkeyPatch, free: int, why: str
) -> None:
    path = killed.folder / "shoal.db"
    (killed.folder / "shoal.db-wal").unlink()
    (killed.folder / "shoal.db-wal").mkdir()
    monkeypatch.setattr(
        "aggregator.maintenance.database.shutil.disk_usage", lambda _: SimpleNamespace(free=free)
    )
    with pytest.raises(
        StorageFailed, match=rf"shoal\.db: not readable: unable to open database file{why}$"
    ):
        read_database(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageFailed, match=r"shoal\.db: not readable: Is a directory; "):
        read_database(path)


@pytest.mark.parametrize("damage", ["gone", "of another version", "damaged"])
def test_no_blobs_are_called_unwanted_where_the_runs_are_not_known(
    served: Served, tmp_path: Path, damage: str
) -> None:
    one = served.copy(tmp_path / "f")
    match damage:
        case "gone":
            (one.folder / "shoal.db").unlink()
        case "of another version":
            with sqlite3.connect(one.folder / "shoal.db") as connection:
                connection.execute("update schema_version set version = 99")
            connection.close()
        case "damaged":
            (one.folder / "shoal.db").write_bytes(bytes(PAGE))
    said = "\n".join(map(str, one.examine()))
    assert "shoal.db: " in said
    assert "delete them" not in said


def test_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"No folder .*/none\. `shoal serve --folder .*/none` makes it"
    ):
        [*examine(tmp_path / "none", mend=True)]
    assert [finding.verdict for finding in examine(tmp_path)] == ["note"]
