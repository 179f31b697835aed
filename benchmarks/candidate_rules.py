"""Other rules by which devices could choose, applied to the measurements of
`benchmarks.candidates`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from statistics import fmean
from typing import Any

import torch

from algorithms.personalisation.choices import Personal
from algorithms.personalisation.keeping import ABSENT, TUNED, UNJUDGED_WAY, WAY, first_good
from wire.held import FEWEST

UNJUDGED = "tuned, unjudged"
"""The tuned model of a device that holds nothing out to judge it by."""
SHARES = (0.0, 0.25, 0.5, 0.7, 0.9, 1.0)
"""Shares of neighbours, or of a head of Gaussians, in an answer."""
Row = Mapping[str, Any]
Kept = tuple[str, float]
"""A model, and the share of neighbours in its answer."""
OFFERED: tuple[Kept, ...] = tuple(
    (f"tuned {WAY}" if candidate.model == TUNED else "group+bn", candidate.share)
    for candidate in Personal.recipe.candidates
)
"""Candidates that `personal` chooses from."""
FROM, ERRORS = (
    sum(candidate.model == TUNED for candidate in Personal.recipe.candidates),
    Personal.recipe.errors,
)
WAYS: tuple[Kept, ...] = tuple((f"tuned {way}", 0.5) for way in (1.0, 0.75, 0.5, 0.25))
HALF = WAYS.index((f"tuned {UNJUDGED_WAY}", 0.5))
GENERAL = OFFERED[FROM:]
GAUSSIANS: tuple[Kept, ...] = (("gaussian tuned 0.75", 0.5), ("gaussian group+bn", 0.5))
FLEET: tuple[Kept, ...] = (("fleet+bn", 0.5), ("fleet+bn", 0.0), ("fleet", 0.0))
ALONE: tuple[Kept, ...] = (("alone", 0.5), ("alone", 0.0))


@dataclass(frozen=True)
class Rule:
    """A set of candidates in their order, how many standard errors of the difference one may be
    worse than the best, and the place of the one that is kept where there is nothing to judge by.
    """

    name: str
    candidates: tuple[Kept, ...]
    errors: float = ERRORS
    unjudged: int = 0

    def accuracy(self, row: Row) -> float:
        """Accuracy of the candidate that the rule chooses."""
        return _accuracy(row, self.candidates[self.chosen(row)])

    def chosen(self, row: Row) -> int:
        """The place of the candidate that a device would have kept."""
        losses = torch.tensor(
            [row["heldout"][model][SHARES.index(share)] for model, share in self.candidates]
        ).reshape(len(self.candidates), -1)
        whole = losses.shape[1] >= FEWEST or not losses.shape[1]
        good = row["finite"] and row["trained"] and whole and row["elsewhere"] < ABSENT
        usable = torch.tensor([float(good or "tuned" not in model) for model, _ in self.candidates])
        kept = first_good(losses.T, torch.ones(losses.shape[1]), self.errors, usable, self.unjudged)
        return int(kept.argmax())

    def best(self, row: Row) -> float:
        """Accuracy of the candidate that the device's test windows favour: an upper bound of all
        rules."""
        return max(_accuracy(row, candidate) for candidate in self.candidates)


def _accuracy(row: Row, kept: Kept) -> float:
    model, share = kept
    if (
        model == f"tuned {WAY}" and not row["heldout"][model][0]
    ):  # nothing is held out to judge it by
        model = UNJUDGED
    return float(row["test"][model][SHARES.index(share)])


RULES = (
    Rule("as `personal` does", OFFERED),
    Rule("one standard error instead of three", OFFERED, errors=1.0),
    Rule("the least loss, whatever its error", OFFERED, errors=0.0),
    Rule(
        "how far the tuned model goes by the least loss: 1, 3/4, 1/2, 1/4",
        (*WAYS, *GENERAL),
        errors=0.0,
        unjudged=HALF,
    ),
    Rule("the same ways, by three standard errors", (*OFFERED[:FROM], *WAYS, *GENERAL)),
    Rule(
        "and the group's model with the group's statistics, last",
        (*OFFERED, ("group", 0.5), ("group", 0.0)),
    ),
    Rule("and the fleet's model, last", (*OFFERED, *FLEET)),
    Rule("and the fleet's model, by one standard error", (*OFFERED, *FLEET), errors=1.0),
    Rule("and training alone, last", (*OFFERED, *ALONE)),
    Rule("and training alone, by one standard error", (*OFFERED, *ALONE), errors=1.0),
    Rule(
        "a head of Gaussians in the place of neighbours",
        (GAUSSIANS[0], *OFFERED[1:FROM], GAUSSIANS[1], *OFFERED[FROM + 1 :]),
    ),
    Rule(
        "and heads of Gaussians, by the least loss",
        (*OFFERED[:FROM], *GAUSSIANS, *GENERAL),
        errors=0.0,
    ),
    Rule(
        "all of these, by the least loss",
        (*WAYS, *GENERAL, ("group", 0.0), *FLEET, *ALONE, *GAUSSIANS),
        errors=0.0,
        unjudged=HALF,
    ),
)


@dataclass(frozen=True)
class Found:
    """Return the value of every rule, for a file and for people."""

    rows: list[dict[str, Any]]
    page: str


def text(cells: Mapping[str, Sequence[Sequence[Row]]]) -> Found:
    """`cells` has, by the name of each, the devices of each seed."""
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        kept, best = _over(cells, rule.accuracy), _over(cells, rule.best)
        rows.append(
            {
                "rule": rule.name,
                "candidates": len(rule.candidates),
                "mean": kept[0],
                "worst_tenth": kept[1],
                "best": best[0],
            }
        )
    for name, column in (("FedAvg's model, as it is", "fedavg"), ("training alone", "local")):
        mean, tail = _over(cells, partial(_of_run, column))
        rows.append(
            {"rule": name, "candidates": 1, "mean": mean, "worst_tenth": tail, "best": mean}
        )
    seeds = len(next(iter(cells.values())))
    lines = [
        "## Candidates that devices are not offered",
        "",
        f"Made by `python -m benchmarks.candidates`: {len(cells)} cells of the grid above (a "
        "split of every set of data, with labels all, "
        f"20, 5 and 1), {seeds} seeds, the same rounds for all. Mean accuracy over devices, and "
        "that of the worst tenth, in %, mean of the "
        "cells. The last column is what the best of the candidates by the *test* windows would "
        "give: no rule can exceed it, and a set of "
        "candidates that raises it little is worth little.",
        "",
        "| what devices choose from, and how | candidates | mean | worst tenth | best by the test "
        "windows |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = " | ".join(f"{100 * row[name]:.1f}" for name in ("mean", "worst_tenth", "best"))
        lines.append(f"| {row['rule']} | {row['candidates']} | {numbers} |")
    return Found(rows, "\n".join([*lines, "", ABOUT]))


def _of_run(name: str, row: Row) -> float:
    return float(row[name])


def _over(
    cells: Mapping[str, Sequence[Sequence[Row]]], accuracy: Callable[[Row], float]
) -> tuple[float, float]:
    """Mean and worst tenth, over seeds and then over cells."""
    means, tails = [], []
    for seeds in cells.values():
        values = [sorted(map(accuracy, rows)) for rows in seeds]
        means.append(fmean(fmean(v) for v in values))
        tails.append(fmean(fmean(v[: ceil(len(v) / 10)]) for v in values))
    return fmean(means), fmean(tails)


ABOUT = (
    "Held-out windows have been trained on in earlier rounds, by every model of the fleet and "
    "most of all by a model of the device alone: "
    "by their losses a device takes its own model too often, whatever it is made of. That is why "
    "three standard errors are asked for, "
    "why how far the tuned model goes is fixed, and why training alone and the fleet's model are "
    "no candidates. The fleet's model is "
    "hardly ever the best where groups are found by a test, and costs a download; training alone "
    "costs the steps of the whole run. A "
    "head of Gaussians (pFedFDA's classifier) is no better than neighbours, and needs the inverse "
    "of a matrix, which the phones' runtime "
    "does not have."
)
"""Said below the table."""
