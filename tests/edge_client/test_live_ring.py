"""The ring of samples on disk: what a crash, a full disk and the quota leave of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.data.recordings.resampling import Stretch
from edge_client.live.ring import HEADER, Ring, encode_record, read_records, ring_files
from wire.arrays.tensors import Array

RATE_HZ, DAY_S = 100.0, 86_400.0


def make(folder: Path, quota_bytes: int = 2**20, **options: Any) -> Ring:
    return Ring(folder, RATE_HZ, quota_bytes, 30 * DAY_S, 50, **options)


def stretch(at: int, count: int = 50, begins: bool = False) -> Stretch:
    """Steps `at` and after of a recording whose first channel counts them."""
    return Stretch(
        1e9 + at / RATE_HZ,
        np.repeat(np.arange(at, at + count, dtype=np.float32)[:, None], 2, axis=1),
        begins,
    )


def stored(folder: Path) -> Array:
    """The first channel of all that is stored."""
    parts = [
        record.x[:, 0]
        for path in ring_files(folder)
        for record, _ in read_records(path.read_bytes())
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def test_what_was_appended_is_read_again_also_after_it_was_opened_again(tmp_path: Path) -> None:
    for begin in (0, 500):
        ring = make(tmp_path)
        for at in range(begin, begin + 500, 30):
            ring.append(stretch(at, 30))
        ring.close()
    assert stored(tmp_path).tolist() == [*range(510), *range(500, 1010)]


@pytest.mark.parametrize("cut", [1, HEADER.size - 1, HEADER.size + 3, 200])
def test_a_record_that_was_written_in_part_is_cut_off(tmp_path: Path, cut: int) -> None:
    ring = make(tmp_path)
    ring.append(stretch(0, 50, True))
    ring.close()
    (path,) = ring_files(tmp_path)
    with path.open("ab") as file:
        file.write(encode_record(stretch(50), RATE_HZ)[:cut])
    assert len(stored(tmp_path)) == 50
    ring = make(tmp_path)
    ring.append(stretch(100))
    ring.close()
    assert stored(tmp_path).tolist() == [*range(50), *range(100, 150)]
    (first, _), (second, _) = read_records(path.read_bytes())
    assert (first.begins, second.begins) == (True, True)


def test_a_byte_that_was_changed_ends_what_is_read_of_its_file(tmp_path: Path) -> None:
    ring = make(tmp_path)
    for at in range(0, 150, 50):
        ring.append(stretch(at))
    ring.close()
    (path,) = ring_files(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert len(stored(tmp_path)) == 50


def test_the_quota_holds_and_the_oldest_goes(tmp_path: Path) -> None:
    ring = make(tmp_path, 2**16)
    for at in range(0, 50_000, 50):
        ring.append(stretch(at))
        assert sum(path.stat().st_size for path in ring_files(tmp_path)) <= 2**16
    ring.close()
    kept = stored(tmp_path)
    assert kept.tolist() == list(range(int(kept[0]), 50_000))
    assert len(kept) * 8 > 2**15


def test_what_is_labelled_outlives_what_is_not(tmp_path: Path) -> None:
    ring = make(tmp_path, 2**16, spared=lambda begin_s, _end_s: begin_s < 1e9 + 20)
    for at in range(0, 50_000, 50):
        ring.append(stretch(at))
    ring.close()
    assert {0, 1000, 49_999} <= set(stored(tmp_path).tolist())


def test_what_is_older_than_the_retention_goes(tmp_path: Path) -> None:
    ring = make(tmp_path, 2**16)
    for at in range(0, 2000, 50):
        ring.append(stretch(at))
    ring.close()
    old = ring_files(tmp_path)[0]
    os.utime(old, (time.time() - 31 * DAY_S,) * 2)
    make(tmp_path, 2**16).close()
    assert old not in ring_files(tmp_path)
    assert stored(tmp_path)[-1] == 1999


def test_a_full_disk_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ring = make(tmp_path)
    ring.append(stretch(0, 50, True))
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(
            os, "write", lambda file, data: write(file, data[:40])
        )  # some of it still fits
        for at in (50, 100, 150):
            ring.append(stretch(at))
    ring.append(stretch(200))
    ring.close()
    assert stored(tmp_path).tolist() == [*range(50), *range(200, 250)]
    assert ring.num_lost == 150
    assert [r.begins for p in ring_files(tmp_path) for r, _ in read_records(p.read_bytes())] == [
        True,
        True,
    ]
    assert len([record for record in caplog.records if "cannot be stored" in record.message]) == 1


def test_an_hour_of_six_channels_at_100_hz(tmp_path: Path) -> None:
    """One byte is written for each byte of samples, but for 2 %; the disk is asked to keep it sixty
    times."""
    now_s = [0.0]
    ring = Ring(tmp_path, RATE_HZ, 64 * 2**20, 30 * DAY_S, 64, clock=lambda: now_s[0])
    for i in range(3600 * 4):
        now_s[0] = i / 4
        ring.append(Stretch(1e9 + i / 4, np.ones((25, 6), np.float32), i == 0))
    ring.close()
    assert 3600 * 100 * 24 <= ring.num_bytes <= 3600 * 100 * 24 * 1.025
    assert 58 <= ring.num_syncs <= 65


WRITER = """
import sys, numpy as np
from pathlib import Path
from edge_client.data.recordings.resampling import Stretch
from edge_client.live.ring import Ring
ring = Ring(Path(sys.argv[1]), 100.0, 2**20, 1e9, 50)
at = 0
while True:
    x = np.repeat(np.arange(at, at + 7, dtype=np.float32)[:, None], 2, axis=1)
    ring.append(Stretch(1e9 + at / 100, x, at == 0))
    at += 7
    print(at, flush=True)
"""


@pytest.mark.parametrize("trial", range(4))
def test_a_process_that_is_killed_loses_the_record_in_memory(tmp_path: Path, trial: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = 0
    for line in process.stdout:
        said = int(line)
        if said > 3000 + 1234 * trial:
            break
    process.send_signal(signal.SIGKILL)
    said = max([said, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.wait()
    kept = stored(tmp_path)
    assert kept.tolist() == list(range(int(kept[0]), int(kept[0]) + len(kept)))
    assert said - 56 <= kept[-1] + 1 <= said + 7
    make(tmp_path, 2**20).close()
    assert stored(tmp_path).tolist() == kept.tolist()
