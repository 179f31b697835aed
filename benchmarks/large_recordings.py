"""Measures the memory and the time of loading recordings that are larger than memory may be.

Run as ``python -m benchmarks.large_recordings``; needs ``shoal[parquet]`` and about four times
``--gigabytes`` of free disk in the folder of temporary files. Writes
``benchmarks/results/large_recordings.json`` and a section of RESULTS.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results.report import describe_machine, keep

OUT = Path(__file__).parent / "results" / "large_recordings.json"
CHANNELS = ("ax", "ay", "az", "gx", "gy", "gz")
ROW = 8 + 4 * len(CHANNELS)
"""Number of bytes of a sample."""
ROWS = 2**20
"""Number of samples of a row group."""
FORMS = {
    "8 folders of devices": (8, False),
    "one table of 4 people": (1, True),
    "one file": (1, False),
}
LOAD = """
import json, resource, sys, time
import shoal, simulation.datasets.device_folders
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
before, began_s = peak(), time.perf_counter()
fleet = shoal.load(sys.argv[1])
took_s = time.perf_counter() - began_s
count = sum(w.num_train + w.num_test for w in fleet.devices.values())
print(json.dumps({"import_gib": before, "peak_gib": peak(), "took_s": took_s, "windows": count,
    "window_gib": 4 * count * len(fleet.window.channels) * fleet.window.length / 2**30}))
"""


def write(folder: Path, files: int, gigabytes: float, has_people: bool) -> None:
    """Write Parquet files of this size together, each of four activities in turns."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    rng = np.random.default_rng(0)
    groups = max(4, round(gigabytes * 1e9 / files / ROW / ROWS))
    for file in range(files):
        path = folder / f"d{file}" / "all.parquet" if files > 1 else folder / "all.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = None
        for group in range(groups):
            t = (group * ROWS + np.arange(ROWS)) / 50
            names = np.array(["sit", "walk", "run", "stairs"])[(t // 600).astype(int) % 4]
            columns = {"t": t} | {name: rng.standard_normal(ROWS, np.float32) for name in CHANNELS}
            columns["label"] = pa.array(names).dictionary_encode()
            if has_people:
                person = f"person {4 * group // groups}"
                columns["person"] = pa.array([person] * ROWS).dictionary_encode()
            table = pa.table(columns)
            writer = writer or ParquetWriter(path, table.schema, compression="none")
            writer.write_table(table)
        assert writer is not None
        writer.close()


def measure(form: str, gigabytes: float) -> dict[str, Any]:
    """Return the time and memory that a separate program needs to load a folder of this size."""
    files, has_people = FORMS[form]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "data", files, gigabytes, has_people)
        size = sum(p.stat().st_size for p in Path(folder).rglob("*.parquet"))
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(Path(folder) / "data")],
            check=True,
            capture_output=True,
            text=True,
        )
    numbers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"parquet_gib": size / 2**30} | numbers


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--only", default="", choices=("", *FORMS))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    measured = {
        form: measure(form, arguments.gigabytes) for form in FORMS if arguments.only in ("", form)
    }
    lines = [
        "| recordings | Parquet GiB | windows GiB | peak memory GiB | of imports GiB | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for form, m in measured.items():
        lines.append(
            f"| {form} | {m['parquet_gib']:.2f} | {m['window_gib']:.2f} | {m['peak_gib']:.2f} | "
            f"{m['import_gib']:.2f} | {m['took_s']:.0f} |"
        )
    head = (
        f"`python -m benchmarks.large_recordings`. {describe_machine()}; load "
        f"{os.getloadavg()[0]:.0f}. The peak is of all memory of the program, files that it has "
        "mapped included."
    )
    text = "\n".join(["## Recordings larger than memory", "", head, "", *lines])
    print(text)
    results = {"machine": describe_machine(), "load": os.getloadavg()[0], "forms": measured}
    keep(results, arguments.out, OUT, "large-recordings", text)


if __name__ == "__main__":
    main()
