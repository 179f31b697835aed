"""The table of a comparison: one row per algorithm, from the results of its runs. Pure.

docs/compare.md explains every field.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from algorithms.personalisation.kept import NOT_TOLD
from simulation.comparison.inference import compare_pairs, half_width, holm
from simulation.timing.report import time_to_accuracy

Result = Mapping[str, Any]
"""Result of a run, as `simulation.comparison.runs.run_job` returns it."""
Row = dict[str, Any]
TARGET_SHARE = 0.95
"""Default target accuracy, as a share of the best mean accuracy in the comparison."""


def tabulate(
    results: Sequence[Result], target: float | None = None, reference: str = ""
) -> list[Row]:
    """Return one row per algorithm, in the order of their first results.

    Args:
        results: results of all runs.
        target: accuracy to count rounds to; None: `TARGET_SHARE` of the best mean accuracy.
        reference: the algorithm that the others are tested against; empty: the first one.
    """
    by_name = by_algorithm(results)
    best = max(
        (mean_of(r["accuracy"]["mean"] for r in runs) or 0.0 for runs in by_name.values()),
        default=0.0,
    )
    aim = TARGET_SHARE * best if target is None else target
    rows = [_row(name, runs, aim) for name, runs in by_name.items()]
    tests = against(by_name, reference or next(iter(by_name), ""))
    return [row | {"against": tests.get(row["algorithm"])} for row in rows]


def by_algorithm(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the results by algorithm, in the order of their first results."""
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result["algorithm"], []).append(result)
    return by_name


def served(result: Result) -> dict[str, float]:
    """Return the accuracy by device, for the devices whose accuracy is the aim of a run.

    These are the devices that train except attackers, or without labels the newcomers.
    """
    if result.get("labels") == "none":
        devices = (result["newcomers"] or {}).get("devices", {})
    else:
        attackers = (result["attack"] or {}).get("attackers", ())
        devices = {d: a for d, a in result["devices"].items() if d not in attackers}
    return {d: a for d, a in devices.items() if a is not None}


def against(by_name: Mapping[str, Sequence[Result]], reference: str) -> dict[str, dict[str, Any]]:
    """Return the paired test of every algorithm against the reference, by algorithm.

    A pair is one device: its mean difference over the seeds and cells that both have (`_by_pair`).
    Left out are the reference itself and algorithms without a pair.
    """
    base = _by_pair(by_name.get(reference, ()))
    tests = {}
    for name, runs in by_name.items():
        value_by_pair = _by_pair(runs)
        # results of a device in several seeds and cells are not independent: only their mean counts
        by_device: dict[tuple[str, ...], list[float]] = {}
        for pair in sorted(value_by_pair.keys() & base.keys()):
            by_device.setdefault(pair[:2], []).append(value_by_pair[pair] - base[pair])
        if name != reference and by_device:
            tests[name] = compare_pairs([statistics.fmean(each) for each in by_device.values()])
    adjusted = holm([test.p for test in tests.values()])
    return {
        name: {
            "reference": reference,
            "difference": round(test.mean, 6),
            "ci95": rounded(test.half_width),
            "p": float(f"{p:.3g}"),
            "pairs": test.pairs,
        }
        for (name, test), p in zip(tests.items(), adjusted, strict=True)
    }


Pair = tuple[str, str, str, str]


def _by_pair(runs: Iterable[Result]) -> dict[Pair, float]:
    """Return the accuracy of each device, by data set, device id, cell and seed.

    Two results form a pair if all four are equal. The cell is empty outside a grid.
    """
    return {
        (run.get("data", ""), device_id, run.get("cell", ""), str(run["seed"])): accuracy
        for run in runs
        for device_id, accuracy in served(run).items()
    }


def _row(name: str, runs: Sequence[Result], target: float) -> Row:
    reached: list[int | None] = []
    for run in runs:
        trained = run["accuracy_by_round"][: -1 if run.get("closes") else None]
        enough = (i for i, value in enumerate(trained, 1) if value is not None and value >= target)
        reached.append(next(enough, None))
    reached_s = [
        time_to_accuracy([tuple(point) for point in r.get("accuracy_over_time", [])], target)
        for r in runs
    ]
    row: Row = {
        "algorithm": name,
        "seeds": len(runs),
        "accuracy": over_seeds([r["accuracy"] for r in runs]),
        "macro_f1": over_seeds([r["macro_f1"] for r in runs if r["macro_f1"]]),
        "groups": {
            "count": mean_of(r["groups"]["count"] for r in runs),
            "ari": mean_of(r["groups"]["ari"] for r in runs),
        },
        "bytes": {
            way: round(statistics.fmean(r["bytes"][way] for r in runs)) for way in ("up", "down")
        },
        "target": round(target, 6),
        "preparations": mean_of(r["preparations"] for r in runs),
        "rounds_to_target": None if None in reached else mean_of(reached),
        "time_to_target_s": None if None in reached_s else mean_of(reached_s),
        "epsilon": mean_of(r["epsilon"] for r in runs),
        "wall_s": mean_of(r["wall_s"] for r in runs),
    }
    if choices := Counter(candidate for run in runs for candidate in _kept(run)):
        row["personal_models"] = {
            candidate: round(count / choices.total(), 6)
            for candidate, count in choices.most_common()
        }
    row["failed"] = next((r["failed"] for r in runs if r.get("failed")), None)
    if areas := [r["auc"] for r in runs if r.get("auc")]:
        row["auc"] = over_seeds(areas)
    if errors := [r["mae"] for r in runs if r.get("mae")]:
        row["mae"] = {name: mean_of(error.get(name) for error in errors) for name in errors[0]}
    if received := [r["newcomers"] for r in runs if r["newcomers"]]:
        row["newcomers"] = over_seeds(received)
    if any(r["attack"] for r in runs):
        rates = [r["attack"]["success_rate"] for r in runs]
        row["attack"] = {
            "success_rate": mean_of(rates),
            "told_apart": sum(r["attack"]["told_apart"] for r in runs),
        }
    return row


def _kept(run: Result) -> list[str]:
    """Return the candidate that each device chose as its personal model.

    The devices are those whose accuracy is the aim of the run: without labels, the newcomers.
    """
    if run.get("labels") != "none":
        return list(run.get("personal_model_by_device", {}).values())
    choice_by_device = (run["newcomers"] or {}).get("personal_models") or {}
    return (
        [choice["candidate"] if choice else NOT_TOLD for choice in choice_by_device.values()]
        if any(choice_by_device.values())
        else []
    )


def least_p(rows: Sequence[Row]) -> float:
    """Return the smallest p-value that the paired tests of a table can have; 0 without a test.

    It follows from the number of pairs, by Wilcoxon's exact distribution, and Holm's correction.
    """
    tests = [row["against"] for row in rows if row.get("against")]
    return (
        min(1.0, max(len(tests) * 2.0 ** (1 - test["pairs"]) for test in tests)) if tests else 0.0
    )


def over_seeds(spreads: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return statistics over the runs of several seeds, from the spread over devices in each run.

    ``mean``: mean of the means. ``std``: their sample standard deviation. ``ci95``: half width of
    the 95 % interval of ``mean``. ``worst``: mean of the worst device's value. ``worst_tenth``:
    mean of the worst tenth's. ``std`` and ``ci95`` are None with one seed.
    """
    means = [s["mean"] for s in spreads if s["mean"] is not None]
    return {
        "mean": mean_of(means),
        "std": round(statistics.stdev(means), 6) if len(means) > 1 else None,
        "ci95": rounded(half_width(means)),
        "worst": mean_of(s["worst"] for s in spreads),
        "worst_tenth": mean_of(s["worst_tenth"] for s in spreads),
    }


def rounded(value: float | None) -> float | None:
    """Return the value rounded to six digits, or None for None."""
    return None if value is None else round(value, 6)


def mean_of(values: Any) -> Any:
    """Return the mean of the values that are not None, rounded to six digits.

    It is an int if all values are ints and the mean is whole, and None if there are no values.
    """
    numbers = [v for v in values if v is not None]
    if not numbers:
        return None
    mean = statistics.fmean(numbers)
    return (
        int(mean)
        if mean == int(mean) and all(isinstance(v, int) for v in numbers)
        else round(mean, 6)
    )
