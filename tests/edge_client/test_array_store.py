"""Recordings larger than memory give the same windows as those that fit."""

import mmap
from pathlib import Path

import numpy as np
import pytest

import shoal
from edge_client.data import array_store
from edge_client.data.array_store import ArrayStore, places_of
from edge_client.data.recordings.cutting import cut_samples
from edge_client.data.tables import clock
from edge_client.data.tables.parts import parts_of
from simulation.datasets.windows import FleetData, digest_of
from wire.errors import DataError


def recordings(folder: Path, kind: str) -> None:
    """Write recordings of two people with gaps, sparse cells, several sensors, or out of order."""
    rng = np.random.default_rng(5)
    for person in range(2):
        t = np.arange(3000) / 50 + 9.0 * (np.arange(3000) > 1700)
        if kind == "another rate":
            t = t * (1 + 0.7 * person)
        order = np.arange(3000)
        if kind == "out of order":
            order[::50], order[1::50] = order[1::50].copy(), order[::50].copy()
        x = rng.normal(size=(3000, 3)).round(3)
        path = folder / f"p{person}" / "Accelerometer.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        sparse = ["" if kind == "sparse cells" and i % 7 else str(x[i, 2]) for i in range(3000)]
        rows = [f"{t[i]:.4f},{x[i, 0]},{x[i, 1]},{sparse[i]},{'ab'[i // 400 % 2]}" for i in order]
        path.write_text("\n".join(["t,x,y,z,label", *rows]))
        if kind == "two sensors":
            rows = [f"{i / 25 + 0.003:.4f},{i % 9}" for i in range(1500)]
            (path.parent / "Gyroscope.csv").write_text("\n".join(["t,x", *rows]))
    if kind == "one table of people":
        texts = [(folder / f"p{n}" / "Accelerometer.csv").read_text() for n in range(2)]
        lines = [f"{line},{'pq'[n]}" for n in range(2) for line in texts[n].split("\n")[1:]]
        for person in range(2):
            (folder / f"p{person}" / "Accelerometer.csv").unlink()
            (folder / f"p{person}").rmdir()
        mixed = [lines[i % 2 * 3000 + i // 2] for i in range(6000)]
        (folder / "all.csv").write_text("\n".join(["t,x,y,z,label,person", *mixed]))


def load(folder: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool) -> FleetData:
    if is_large:
        monkeypatch.setattr(array_store, "MOST_IN_MEMORY", 1000)
        monkeypatch.setattr(array_store, "BLOCK", 5000)
        monkeypatch.setattr(array_store, "SEGMENT", 70_000)
        monkeypatch.setattr("edge_client.data.recordings.stretches.BLOCK", 5000)
    return shoal.load(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "gaps",
        "sparse cells",
        "out of order",
        "another rate",
        "two sensors",
        "one table of people",
    ],
)
def test_windows_on_the_disk_are_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    recordings(tmp_path, kind)
    small, large = (load(tmp_path, monkeypatch, is_large) for is_large in (False, True))
    assert digest_of(small) == digest_of(large)
    np.testing.assert_allclose(small.channel_size(), large.channel_size(), rtol=1e-6)
    assert sum(w.num_train for w in small.devices.values()) > 10


def test_times_are_read_alike_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    day = np.repeat(np.arange(86_390.0, 86_400), 50)
    times = np.concatenate([day, np.repeat(np.arange(0.0, 10), 50)])
    whole, in_blocks = times.copy(), times.copy()
    clock.in_seconds(whole, 1.0, True)
    monkeypatch.setattr(clock, "FIRST", 170)
    clock.in_seconds(in_blocks, 1.0, True)
    np.testing.assert_allclose(whole, 86_390 + np.arange(1000) / 50)
    np.testing.assert_allclose(in_blocks, whole)


def test_arrays_beyond_memory_are_in_files_that_are_gone_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = ArrayStore(100)
    first, second = store.empty((10,), np.int64), store.empty((4, 100), np.float32)
    first[:], second[:] = 1, np.arange(400).reshape(4, 100)
    array_store.release(second)
    assert second.sum() == 399 * 200
    assert list(tmp_path.iterdir()) == []
    assert places_of(np.array([1, 1, 2, 2, 1]), np.not_equal) == [2, 4]


def test_windows_release_the_file_of_their_samples() -> None:
    samples = ArrayStore(0).empty((2**22, 2), np.float32)
    samples[:] = 1
    windows = cut_samples(samples, 128, 64)
    in_memory = mapped_bytes()
    array_store.release(windows)
    assert in_memory - mapped_bytes() > 0.9 * samples.nbytes
    assert windows[-1].sum() == 256


@pytest.mark.parametrize("groups", [1, 40])
def test_memory_of_reading_depends_neither_on_the_file_nor_on_its_row_groups(
    tmp_path: Path, groups: int
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'shoal[parquet]' would run this")
    from pyarrow import parquet

    rows = 40 * 65_536
    columns = {name: np.sin(np.arange(rows) * (i + 1)) for i, name in enumerate("abc")}
    table = pyarrow.table({"t": np.arange(rows) / 50, **columns})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=rows // groups)
    before = pyarrow.total_allocated_bytes()
    most = max(pyarrow.total_allocated_bytes() for _ in parts_of(tmp_path / "x.parquet"))
    assert most - before < table.nbytes / 4


def mapped_bytes() -> int:
    """Bytes of files that the process has mapped and holds in memory."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("needs /proc, as Linux has it")
    return int(pages.read_text().split()[2]) * mmap.PAGESIZE


def test_a_full_disk_is_one_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DataError, match=r"no room for .* GiB .*No space left.*TMPDIR=FOLDER"):
        ArrayStore(0).empty((8,), np.float64)
