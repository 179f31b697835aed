"""Other rules for personal models: the benchmark's own candidates are those that a simulation
chooses from."""

import pytest

from benchmarks import candidates
from benchmarks.candidate_rules import OFFERED, RULES, SHARES, Rule, text
from simulation.datasets.catalog import load_data

AS_IT_IS = RULES[0]


@pytest.fixture(scope="module", params=["5", "1"])
def rows(request: pytest.FixtureRequest) -> list[dict[str, object]]:
    whole = load_data("watch")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "load_data", lambda _: whole.only(sorted(whole.devices)[:3]))
        patched.setattr(candidates, "ROUNDS", 2)
        patched.setattr(candidates, "EPOCHS", 1)
        fleet = candidates.Fleet("watch", "time", request.param, 0)
        return [fleet.device(device_id) for device_id in sorted(fleet.run.data.devices)]


@pytest.mark.full
def test_the_rule_as_it_is_keeps_what_the_simulation_keeps(rows: list[dict[str, object]]) -> None:
    assert [AS_IT_IS.accuracy(row) for row in rows] == pytest.approx(
        [row["personal"] for row in rows]
    )


@pytest.mark.full
def test_fedavgs_and_the_devices_own_models_are_those_of_their_runs(
    rows: list[dict[str, object]],
) -> None:
    for candidate, run in (("fleet", "fedavg"), ("alone", "local")):
        alone = Rule("", ((candidate, 0.0),), unjudged=0)
        assert [alone.accuracy(row) for row in rows] == pytest.approx([row[run] for row in rows])


@pytest.mark.full
def test_no_rule_exceeds_the_best_by_the_test_windows(rows: list[dict[str, object]]) -> None:
    assert all(rule.accuracy(row) <= rule.best(row) for rule in RULES for row in rows)


def row_of(losses: dict[str, float], num_windows: int) -> dict[str, object]:
    """A device on which candidates have these losses on every window held out, whatever the share;
    each is right more often than the one before."""
    heldout = {model: [[loss] * num_windows] * len(SHARES) for model, loss in losses.items()}
    right = {model: [place / 10] * len(SHARES) for place, model in enumerate(losses)}
    return {
        "heldout": heldout,
        "test": right,
        "trained": True,
        "finite": True,
        "elsewhere": 0.0,
        "fedavg": 0.0,
        "local": 0.0,
    }


@pytest.mark.parametrize(
    ("tuned", "windows", "changed", "kept"),
    [
        (0.1, 8, {}, "tuned 0.75"),
        (2.0, 8, {}, "group+bn"),  # worse on each window
        (2.0, 0, {}, "tuned 0.75"),  # nothing to judge by
        (0.1, 2, {}, "group+bn"),  # the training missed what is too few to judge by
        (0.1, 8, {"trained": False}, "group+bn"),
        (0.1, 8, {"elsewhere": 0.3}, "group+bn"),
    ],
)
def test_what_is_kept(tuned: float, windows: int, changed: dict[str, object], kept: str) -> None:
    row = row_of({"tuned 0.75": tuned, "group+bn": 0.4}, windows) | changed
    assert OFFERED[AS_IT_IS.chosen(row)][0] == kept


@pytest.mark.full
def test_the_page_says_what_each_rule_is_worth(rows: list[dict[str, object]]) -> None:
    page = text({"a cell": [rows], "another": [rows]}).page
    kept = sum(AS_IT_IS.accuracy(row) for row in rows) / len(rows)
    assert f"| as `personal` does | {len(OFFERED)} | {100 * kept:.1f} | " in page
    assert page.count("\n| ") == len(RULES) + 3
