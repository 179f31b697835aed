"""Evidence on a claim: differences between methods over the same seeds, levels, and groups, each
with a verdict that follows from the numbers by one rule.

An order is *reproduced* where the whole 95 % interval of the paired difference is above 0, *not*
reproduced where none of it is, and *not shown* where 0 is inside. A level is reproduced where our
whole interval is within `WITHIN` points of the paper's, in part where our mean alone is. One seed
decides nothing: it gives a number, and no verdict.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.papers.feddisk import in_all
from benchmarks.papers.intervals import estimate, paired
from benchmarks.papers.results import Results

REPRODUCED, IN_PART, NOT_SHOWN, NOT, UNDECIDED, NOT_RUN = (
    "reproduced",
    "in part",
    "not shown",
    "not",
    "one seed: undecided",
    "not yet run",
)
WITHIN = 2.0
"""Points between two levels that count as the same."""


@dataclass(frozen=True)
class Evidence:
    """Evidence in words and numbers, and the verdict on the claim."""

    text: str
    verdict: str


Find = Callable[[Results], Evidence | None]
"""The evidence in the results; None where they have none."""


def row_of(results: Results, table: str, column: str, algorithm: str) -> dict[str, Any] | None:
    """An algorithm's row in a column of a table."""
    return next(
        (row for row in results.of(table).get(column, []) if row["algorithm"] == algorithm), None
    )


def values_of(
    results: Results, table: str, column: str, algorithm: str, metric: str
) -> list[float]:
    """One number for each seed, in per cent; the mean alone where a row has no more, and nothing
    where it is missing."""
    row = row_of(results, table, column, algorithm)
    if row is None or row.get("failed"):
        return []
    found = row.get("by_seed", {}).get(metric)
    if found:
        return [float(v) for v in found]
    return [100 * row["accuracy"]["mean"]] if metric == "accuracy" and row["seeds"] == 1 else []


def judge_order(values: Sequence[float], others: Sequence[float]) -> Evidence | None:
    """That the first are above the others."""
    if not values or not others:
        return None
    difference = paired(values, others)
    pairs = difference.count
    text = (
        f"{estimate(values[:pairs]).show()} against {estimate(others[:pairs]).show()}: "
        f"{difference.show(signed=True)}"
    )
    if difference.count == 1:
        return Evidence(text, UNDECIDED)
    return Evidence(
        text, REPRODUCED if difference.above else NOT if difference.below else NOT_SHOWN
    )


def order(table: str, column: str, better: str, worse: str, metric: str = "accuracy") -> Find:
    """That one algorithm is above another."""
    return lambda results: judge_order(
        values_of(results, table, column, better, metric),
        values_of(results, table, column, worse, metric),
    )


def order_by_best(table: str, column: str, better: str, worse: str) -> Find:
    """That one algorithm is above another by the best round; with the difference after the last."""
    by_best = order(table, column, better, worse, "pooled_best")

    def find(results: Results) -> Evidence | None:
        evidence = by_best(results)
        last = [values_of(results, table, column, name, "accuracy") for name in (better, worse)]
        if evidence is None or not all(last):
            return evidence
        text = f"{evidence.text}; after the last round {paired(*last).show(signed=True)}"
        return replace(evidence, text=text)

    return find


def level(table: str, column: str, algorithm: str, paper: float, metric: str = "accuracy") -> Find:
    """That an algorithm reaches what the paper says."""

    def find(results: Results) -> Evidence | None:
        values = values_of(results, table, column, algorithm, metric)
        if not values:
            return None
        found = estimate(values)
        if found.count == 1:
            return Evidence(found.show(), UNDECIDED)
        apart = abs(found.mean - paper)
        return Evidence(
            found.show(),
            REPRODUCED if apart + found.half <= WITHIN else IN_PART if apart <= WITHIN else NOT,
        )

    return find


def grouped(table: str, algorithm: str, *columns: str) -> Find:
    """That the groups found are the true ones, in each of these columns."""

    def find(results: Results) -> Evidence | None:
        rows = {column: row_of(results, table, column, algorithm) for column in columns}
        found = {
            column: (row["groups"]["ari"], row["seeds"])
            for column, row in rows.items()
            if row is not None
        }
        if len(found) < len(columns):
            return None
        text = "ARI " + ", ".join(f"{ari:.2f} ({column})" for column, (ari, _) in found.items())
        if min(seeds for _, seeds in found.values()) == 1:
            return Evidence(f"{text}; one seed", UNDECIDED)
        right = [ari == 1 for ari, _ in found.values()]
        return Evidence(text, REPRODUCED if all(right) else IN_PART if any(right) else NOT)

    return find


def group_count(table: str, column: str, algorithm: str, count: int) -> Find:
    """That the mean number of groups over seeds is `count`."""

    def find(results: Results) -> Evidence | None:
        row = row_of(results, table, column, algorithm)
        if row is None:
            return None
        mean = float(row["groups"]["count"])
        text = f"{mean:g} group{'' if mean == 1 else 's'}"
        if row["seeds"] == 1:
            return Evidence(f"{text}; one seed", UNDECIDED)
        return Evidence(text, REPRODUCED if mean == count else NOT)

    return find


def fewer_rounds(table: str, column: str, better: str, worse: str) -> Find:
    """That one algorithm needs fewer rounds to the target, preparations included."""

    def find(results: Results) -> Evidence | None:
        rows = [row_of(results, table, column, name) for name in (better, worse)]
        counts = [in_all(row) for row in rows if row is not None]
        if len(counts) < 2 or counts[0] is None or counts[1] is None:
            return None
        text = f"{counts[0]:.1f} against {counts[1]:.1f} rounds"
        return Evidence(text, REPRODUCED if counts[0] < counts[1] else NOT)

    return find


def rows_of_section(key: str, better: str, worse: str) -> Find:
    """That one row of a section is above another."""

    def find(results: Results) -> Evidence | None:
        rows = results.of(key).get("rows", {})
        return judge_order(rows.get(better, []), rows.get(worse, []))

    return find


def heads(better: str, worse: str, shuffle: str) -> Find:
    """That one head of CGAU's Experiment II is above another, where this proportion is shuffled."""

    def find(results: Results) -> Evidence | None:
        found = results.of("cgau").get("experiment 2", {})
        return judge_order(
            *([100 * v for v in found.get(name, {}).get(shuffle, [])] for name in (better, worse))
        )

    return find


def gains(better: str, worse: str, more: str, less: str) -> Find:
    """That what one head of CGAU's Experiment II gains over another, seed by seed, is larger at the
    proportion `more` than at `less`."""

    def find(results: Results) -> Evidence | None:
        found = results.of("cgau").get("experiment 2", {})

        def gained(shuffle: str) -> list[float]:
            pairs = zip(
                *(found.get(name, {}).get(shuffle, []) for name in (better, worse)), strict=True
            )
            return [100 * (a - b) for a, b in pairs]

        return judge_order(gained(more), gained(less))

    return find


def falling_gamma(results: Results) -> Evidence | None:
    """That heterogeneity falls with every step of shuffling."""
    found = results.of("cgau").get("table 1")
    if not found:
        return None
    falls = {
        name: all(a > b for a, b in itertools.pairwise(values)) for name, values in found.items()
    }
    text = "; ".join(
        f"{name}: {', '.join(f'{v / values[0]:.2f}' for v in values)}"
        for name, values in found.items()
    )
    return Evidence(
        text, REPRODUCED if all(falls.values()) else IN_PART if any(falls.values()) else NOT
    )


def xor_solved(results: Results) -> Evidence | None:
    """That one unit with conditioning solves the XOR of two clients, and not with its conditioning
    off."""
    accuracies = results.of("cgau").get("xor")
    if not accuracies:
        return None
    solved = accuracies["x1 and x2: one CGAU"]
    off = [
        accuracy
        for name, accuracy in accuracies.items()
        if name.startswith("x1 and x2") and "switched off" in name
    ]
    text = (
        f"{100 * solved:.0f} %; a part of its conditioning switched off "
        f"{', '.join(f'{100 * v:.0f}' for v in off)} %"
    )
    return Evidence(text, REPRODUCED if solved == 1 and max(off) < 1 else NOT)


def xor_needs_conditioning(results: Results) -> Evidence | None:
    """That one unit trained without conditioning does not solve the XOR of two clients."""
    accuracies = results.of("cgau").get("xor")
    if not accuracies:
        return None
    without = accuracies["x1 and x2: one gated unit without conditioning"]
    text = f"trained without conditioning {100 * without:.0f} %"
    return Evidence(text, NOT if without == 1 else REPRODUCED)
