"""A helper's ledger after a crash at any byte, damage, or a loss."""

from pathlib import Path

import pytest

from helper.core.ledger import SetRefused
from helper.storage import HelperFolder, make_helper
from wire.errors import ConfigError

DEVICES = {f"d{number}" for number in range(6)}
SETS = [("a" * 64, "1" * 64, DEVICES), ("b" * 64, "2" * 64, DEVICES | {"e1", "e2", "e3"})]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_helper(tmp_path / "north", "watches", "north")
    return tmp_path / "north"


def agreed(folder: Path) -> list[int]:
    """The size of the ledger's file after each set."""
    opened, sizes = HelperFolder(folder), [(folder / "ledger").stat().st_size]
    for one in SETS:
        opened.agree(*one, min_sum=5)
        sizes.append((folder / "ledger").stat().st_size)
    return sizes


def test_only_its_owner_can_read_the_key_and_the_ledger(folder: Path) -> None:
    modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    assert (modes["helper.key"], modes["ledger"]) == (0o600, 0o600)


def test_a_crash_at_any_byte_leaves_the_sets_before_it_and_a_ledger_to_go_on_with(
    folder: Path,
) -> None:
    sizes = agreed(folder)
    whole = (folder / "ledger").read_bytes()
    for size in range(sizes[0], sizes[2] + 1):
        (folder / "ledger").write_bytes(whole[:size])
        opened, written = HelperFolder(folder), sum(size >= end for end in sizes[1:])
        assert len(opened.ledger.sets) == written
        for one in SETS[written:]:
            opened.agree(*one, min_sum=5)
        assert (folder / "ledger").read_bytes() == whole
        assert HelperFolder(folder).ledger == opened.ledger


def test_a_set_stays_the_only_one_after_a_restart(folder: Path) -> None:
    agreed(folder)
    ledger = HelperFolder(folder).ledger
    assert ledger.check("a" * 64, "1" * 64, DEVICES, 3)
    with pytest.raises(SetRefused, match="opened-before"):
        ledger.check("a" * 64, "3" * 64, DEVICES, 3)
    with pytest.raises(SetRefused, match="differencing"):
        ledger.check("c" * 64, "3" * 64, DEVICES - {"d1"}, 3)


@pytest.mark.parametrize("at", [0, 70, 150, -2])
def test_a_damaged_ledger_is_refused(folder: Path, at: int) -> None:
    agreed(folder)
    text = bytearray((folder / "ledger").read_bytes())
    text[at] ^= 1
    (folder / "ledger").write_bytes(text)
    with pytest.raises(ConfigError, match="the ledger is damaged; make another helper"):
        HelperFolder(folder)


def test_a_set_that_was_cut_out_of_the_ledger_is_noticed(folder: Path) -> None:
    sizes = agreed(folder)
    text = (folder / "ledger").read_bytes()
    (folder / "ledger").write_bytes(text[: sizes[0]] + text[sizes[1] :])
    with pytest.raises(ConfigError, match="the ledger is damaged"):
        HelperFolder(folder)


def test_a_helper_without_its_ledger_does_not_start(folder: Path, tmp_path: Path) -> None:
    (folder / "ledger").unlink()
    with pytest.raises(ConfigError, match=r"there is no ledger; a helper that forgot .* new key"):
        HelperFolder(folder)
    with pytest.raises(ConfigError, match=r"has a helper\.key already"):
        make_helper(folder, "watches", "north")
    make_helper(tmp_path / "south", "watches", "south")
    (folder / "ledger").write_bytes((tmp_path / "south" / "ledger").read_bytes())
    with pytest.raises(ConfigError, match="the ledger is that of another key"):
        HelperFolder(folder)
