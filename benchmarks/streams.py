"""Answers for windows in order of time: ``python -m benchmarks.streams``.

Devices of `watch` and UCI HAR (`SHOAL_DATA`) train with `personal`. Each then meets its own test
windows as a stream, with activities of 5, 10 and 30 windows in random order, and in no order. Its
filter begins without having learnt anything. Writes ``benchmarks/results/streams.json`` and a
section of RESULTS.md; it takes about ten minutes on two cores.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.composition import read_algorithm
from benchmarks.results.report import describe_machine, keep
from edge_client.core.stream import StreamFilter, StreamSums
from simulation.datasets.catalog import load_data
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from wire.arrays.tensors import Array

OUT = Path(__file__).parent / "results" / "streams.json"
ACTIVITIES = (5, 10, 30, 1)
"""Mean number of windows of an activity; 1 for windows in no order."""
LAGS = (0, 2)
WINDOWS, SEEDS, ROUNDS, EPOCHS = 600, 3, 12, 2


def stream_of(y: Array, activity: int, rng: np.random.Generator) -> Array:
    """Return indexes (WINDOWS,) of windows: one activity after the other, each going on in its own
    windows where it was left."""
    if activity == 1:
        return rng.choice(len(y), WINDOWS)
    windows = {c: np.flatnonzero(y == c) for c in np.unique(y)}
    positions = {c: int(rng.integers(len(at))) for c, at in windows.items()}
    stream: list[int] = []
    last = -1
    while len(stream) < WINDOWS:
        last = rng.choice([c for c in windows if c != last])
        count = max(1, round(rng.gamma(2, activity / 2)))
        stream += [
            int(windows[last][(positions[last] + i) % len(windows[last])]) for i in range(count)
        ]
        positions[last] += count
    return np.array(stream[:WINDOWS])


def filtered(p: Array, lag: int) -> tuple[Array, StreamFilter]:
    """Return the filter's answers to a stream of probabilities p (n, classes)."""
    stream = StreamFilter(StreamSums(""), 1.0, lag)
    answers = [row for at, one in enumerate(p) for _, row in stream.answer(at, one)]
    return np.array(answers + [row for _, row in stream.end()]), stream


def measure(data: str, seed: int) -> list[dict[str, Any]]:
    """Return a row for each device and kind of stream of one fleet."""
    fleet = load_data(data)
    run = simulate(fleet, SimulationSettings(read_algorithm("personal"), ROUNDS, EPOCHS, seed))
    rows = []
    for number, (device, windows) in enumerate(sorted(fleet.devices.items())):
        if len(np.unique(windows.test_y)) < 2:
            continue
        probabilities = run.predict(device, windows.test_x)
        for activity in ACTIVITIES:
            at = stream_of(
                windows.test_y, activity, np.random.default_rng([seed, number, activity])
            )
            p, y = probabilities[at], windows.test_y[at]
            row = {"data": data, "seed": seed, "device": device, "activity": activity}
            row["plain"] = float((p.argmax(1) == y).mean())
            for lag in LAGS:
                answers, stream = filtered(p, lag)
                row[f"lag {lag}"] = float((answers.argmax(1) == y).mean())
            row["moved"] = float(np.abs(answers - p).max())
            stay = stream.sums.stay(p.shape[1])
            row["learnt"] = 1 / (1 - stay)
            rows.append(row)
    return rows


def milliseconds(classes: int = 6) -> float:
    """Return the median processor time of one window, over turns of 1000."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(classes), 1000).astype(np.float32)
    turns = []
    for _ in range(9):
        started_s = time.process_time()
        filtered(p, 0)
        turns.append(time.process_time() - started_s)
    return round(statistics.median(turns), 4)


def as_text(results: dict[str, Any]) -> str:
    """Return the results as a section of the page."""
    lines = [
        "## Windows in order of time",
        "",
        f"Machine: {results['machine']}. Made by `python -m benchmarks.streams`; numbers in "
        "`results/streams.json`.",
        "",
        f"Devices train with `personal`, {ROUNDS} rounds of {EPOCHS} epochs, {SEEDS} seeds. Each "
        f"then answers a stream of {WINDOWS} of its test windows, and learns meanwhile how long "
        "activities last, from nothing. Accuracy in %, mean over devices; in brackets the worst "
        "tenth of devices, and the largest loss of one device in points.",
        "",
        "| data, windows of an activity | each window alone | filter | with `--lag 2` | "
        "learnt length (median) | largest change of a probability (median) |",
        "|---|---|---|---|---|---|",
    ]
    for data in dict.fromkeys(row["data"] for row in results["rows"]):
        for activity in ACTIVITIES:
            rows = [r for r in results["rows"] if (r["data"], r["activity"]) == (data, activity)]
            name = "no order" if activity == 1 else activity
            lines.append(
                f"| {data}, {name} | {_accuracy(rows, 'plain')} | {_accuracy(rows, 'lag 0')} | "
                f"{_accuracy(rows, 'lag 2')} | "
                f"{statistics.median(r['learnt'] for r in rows):.1f} | "
                f"{statistics.median(r['moved'] for r in rows):.2g} |"
            )
    return "\n".join(
        [
            *lines,
            "",
            f"The filter takes {results['ms']} ms of processor time a window with six classes. "
            "Activities change at once, and no window has two of them, which flatters the filter. "
            "A device whose test windows are mostly of one class gains in windows without an order "
            "too, or loses: the filter then learns that a class is frequent.",
        ]
    )


def _accuracy(rows: list[dict[str, Any]], name: str) -> str:
    values = sorted(100 * row[name] for row in rows)
    tenth = statistics.fmean(values[: max(1, len(values) // 10)])
    loss = max(100 * (row["plain"] - row[name]) for row in rows)
    lost = "" if name == "plain" else f", {loss:.1f}"
    return f"{statistics.fmean(values):.1f} ({tenth:.1f}{lost})"


def main() -> None:
    """Measure both data sets, and write the results."""
    results: dict[str, Any] = {"machine": describe_machine(), "ms": milliseconds(), "rows": []}
    for data in ("watch", "uci-har"):
        for seed in range(SEEDS):
            results["rows"] += measure(data, seed)
            print(data, seed, flush=True)
    keep(results, OUT, OUT, "streams", as_text(results))
    print(as_text(results))


if __name__ == "__main__":
    main()
