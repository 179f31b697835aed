"""One attacker among ten, inside every bound of the service: what robust means keep, and that no
run breaks."""

import numpy as np
import pytest

from aggregator.fleet.events import Event, Updated
from algorithms.registry import CHOICES
from benchmarks.attackers import (
    ATTACKER,
    ATTACKS,
    CLAIMED,
    MARGIN,
    ROBUST,
    Service,
    cases,
    falls,
    measure,
    table,
)
from wire.arrays import names


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attacker_stays_just_inside_the_bounds(attack: str) -> None:
    service = Service("median", attack, rounds=2)
    seen = []
    feed = service.feed

    def watched(event: Event) -> None:
        if isinstance(event, Updated) and service.campaign.phase == "training":
            seen.append((event.device_id, service.campaign.round, event.update))
        feed(event)

    service.feed = watched  # type: ignore[method-assign]
    service.run()
    assert not any("left_out" in notes for notes in service.notes)
    role = names.STATISTIC if attack == "statistics" else names.DELTA
    own = [update.norms[role] for device_id, number, update in seen if device_id == ATTACKER]
    usual = [
        np.median([u.norms[role] for d, n, u in seen if d != ATTACKER and n == number])
        for number in (1, 2)
    ]
    loud = attack in ("sign", "noise", "statistics")
    assert [bool(norm > 7 * middle) for norm, middle in zip(own, usual, strict=True)] == [
        loud,
        loud,
    ]
    facts = service.fleet.devices[ATTACKER].facts
    assert facts is not None
    assert facts.num_train == (CLAIMED if attack == "weight" else 96)


def test_the_table_has_a_row_for_each_grouping_and_mean() -> None:
    known = {"accuracy": 0.9, "finite": True, "rounds": 2, "set_aside": 1, "rolled_back": 0}
    runs = [{"grouping": g, "mean": m, "attack": a, **known} for g, m, a in cases()]
    runs[1]["accuracy"] = 0.8
    text = table({"machine": "any", "rounds": 2, "seconds": 60, "runs": runs})
    assert falls(runs)[cases()[1]] == pytest.approx(0.1)
    assert text.count("**80.0**") == 1
    assert all(
        f"| {g} | {m} | 90.0 |" in text for g in CHOICES["grouping"] for m in CHOICES["mean"]
    )
    assert "finite: 0." in text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("grouping", CHOICES["grouping"])
@pytest.mark.parametrize("mean", CHOICES["mean"])
def test_every_run_ends_with_finite_models_and_robust_means_keep_their_accuracy(
    grouping: str, mean: str
) -> None:
    runs = [measure((grouping, mean, attack)) for attack in ("", *ATTACKS)]
    assert [(run["finite"], run["rounds"]) for run in runs] == [(True, 20)] * len(runs)
    if mean in ROBUST:
        lost = {case: fall for case, fall in falls(runs).items() if fall > MARGIN}
        assert not lost
