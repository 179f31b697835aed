"""Medians over the repeats, ratios, and the table people read."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.systems import System

SAME_WORK = 0.05
"""A final loss this far from the plain loop's, as a share of it, means that a system did not do the
same work."""
REFERENCE, OURS = "plain-1", "shoal"

Run = Mapping[str, Any]
"""One run: what the runner printed, `wall_s` and `peak_bytes`; or only `reason`, why there is no
result."""


def summarize(
    system: System, runs: Sequence[Run], ours: Sequence[Run], asked: int
) -> dict[str, Any]:
    """One system's row, where so many devices were asked for. `ours` are Shoal's runs of the same
    turns, and the ratio is the median of the turns' ratios."""
    devices = system.devices(asked)
    row: dict[str, Any] = {
        "name": system.name,
        "title": system.title,
        "how": system.how,
        "processes": system.processes or devices,
        "threads": system.threads,
        "updates_per_s": None,
        "wall_s": None,
        "peak_rss_bytes": None,
        "runs": len(runs),
    }
    good = [run for run in runs if "reason" not in run]
    reasons = [str(run["reason"]) for run in runs if "reason" in run]
    if reasons:
        row["reason"] = (
            f"{len(reasons)} of {len(runs)} runs: {reasons[-1]}" if len(runs) > 1 else reasons[-1]
        )
    if not good:
        return row
    row |= {
        "updates_per_s": round(statistics.median(speed(run, devices) for run in good), 2),
        "updates_per_s_runs": [round(speed(run, devices), 2) for run in good],
        "updates_per_s_with_start": round(
            statistics.median(devices * len(run["rounds_s"]) / run["wall_s"] for run in good), 2
        ),
        "wall_s": round(statistics.median(run["wall_s"] for run in good), 2),
        "peak_rss_bytes": round(statistics.median(run["peak_bytes"] for run in good)),
        "final_loss": round(statistics.median(run["final_loss"] for run in good), 4),
        "version": good[-1]["version"],
        "busy_before": max(run["busy_before"] for run in good),
        "devices": devices,
        "rounds": len(good[-1]["rounds_s"]),
        "rounds_s": [run["rounds_s"] for run in good],
    }
    turns = [
        (a, b) for a, b in zip(ours, runs, strict=False) if "reason" not in a and "reason" not in b
    ]
    if turns:
        row["shoal_is_times_as_fast"] = round(
            statistics.median(speed(a, asked) / speed(b, devices) for a, b in turns), 2
        )
    return row


def speed(run: Run, devices: int) -> float:
    """Updates per second in the median round, which is free of the first round's preparations."""
    return float(devices / statistics.median(run["rounds_s"]))


def check_work(rows: Sequence[dict[str, Any]]) -> None:
    """Note in each row whether its loss is that of the plain loop. Without the plain loop's row
    there is nothing to compare with."""
    losses = {row["name"]: row["final_loss"] for row in rows if "final_loss" in row}
    for row in rows:
        if row["name"] in losses and REFERENCE in losses:
            row["same_work"] = (
                abs(losses[row["name"]] - losses[REFERENCE]) <= SAME_WORK * losses[REFERENCE]
            )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table, the fastest first; systems without a result below, with the reason."""
    measured = sorted(
        (row for row in rows if row["updates_per_s"]), key=lambda row: -row["updates_per_s"]
    )
    most = max((row["devices"] for row in measured), default=0)
    lines = [
        "| | processes x threads | updates/s | with its start | Shoal is faster by "
        "| peak memory, MB | final loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        ratio = row.get("shoal_is_times_as_fast")
        loss = f"{row['final_loss']:.3f}" + (
            "" if row.get("same_work", True) else " (not the same work)"
        )
        cells = [
            f"{row['title']} ({row['version'].split(',')[0]})"
            + (f", {row['devices']} devices" if row["devices"] < most else ""),
            f"{row['processes']} x {row['threads']}",
            f"{row['updates_per_s']:.1f}",
            f"{row['updates_per_s_with_start']:.1f}",
            "" if ratio is None or row["name"] == OURS else f"{ratio:.2f} x",
            f"{row['peak_rss_bytes'] / 1e6:,.0f}",
            loss,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [
        f"- {row['title']} ({row['name']}): {row['reason']}" for row in rows if row.get("reason")
    ]
    return "\n".join(
        [*lines, *(["", "Without a result, or not in every run:", *notes] if notes else [])]
    )
