"""The papers' claims: verdicts that follow from numbers, and the page that has them."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import cgau, feddisk_oracle
from benchmarks.papers import evidence as ev
from benchmarks.papers.__main__ import TABLES
from benchmarks.papers.claims import PAPERS
from benchmarks.papers.reproduction import page
from benchmarks.papers.results import Results

REPOSITORY = Path(__file__).parents[2]
CLAIMS = [claim for paper in PAPERS for claim in paper.claims]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("ours", "others", "verdict"),
        [
            ([95.0, 96.0, 97.0], [90.0, 91.1, 91.9], ev.REPRODUCED),
            ([95.0, 96.0, 97.0], [90.0, 97.0, 95.0], ev.NOT_SHOWN),
            ([95.0, 96.0, 97.0], [95.0, 96.0, 97.0], ev.NOT),
            ([90.0, 91.0, 92.0], [95.0, 96.1, 96.9], ev.NOT),
            ([95.0], [90.0], ev.UNDECIDED),
        ],
    )
    def test_of_an_order(self, ours: list[float], others: list[float], verdict: str) -> None:
        found = ev.judge_order(ours, others)
        assert found is not None
        assert found.verdict == verdict

    def test_by_the_best_round_it_says_what_the_last_one_says(self, tmp_path: Path) -> None:
        results = Results(tmp_path / "results.json")
        seeds = {"a": ([9.0, 9.5, 9.9], [5.0, 6.0, 7.0]), "b": ([1.0, 1.5, 1.9], [6.0, 7.0, 8.0])}
        rows = [
            {"algorithm": name, "by_seed": {"pooled_best": best, "accuracy": last}, "seeds": 3}
            for name, (best, last) in seeds.items()
        ]
        results.keep("t", {"c": [row | {"trained": "1 round, 3 seeds"} for row in rows]}, True)
        evidence = ev.order_by_best("t", "c", "a", "b")(results)
        assert evidence is not None
        assert evidence.verdict == ev.REPRODUCED
        assert evidence.text.endswith(": +8.0 ±0.0; after the last round -1.0 ±0.0")

    def test_without_numbers_there_is_none(self) -> None:
        assert ev.judge_order([], [1.0]) is None

    def test_of_a_level_and_of_groups(self, tmp_path: Path) -> None:
        results = Results(tmp_path / "results.json")
        row = {
            "algorithm": "a",
            "seeds": 3,
            "groups": {"ari": 1.0, "count": 2.5},
            "by_seed": {"accuracy": [90.0, 91.0, 92.0]},
            "accuracy": {"mean": 0.91},
        }
        results.keep("t", {"c": [row], "d": [row | {"groups": {"ari": 0.5}}]}, night=False)
        again = Results(tmp_path / "results.json")
        assert ev.level("t", "c", "a", 92.5)(again) == ev.Evidence("91.0 ±2.5", ev.IN_PART)
        results.keep(
            "near", {"c": [row | {"by_seed": {"accuracy": [91.0, 91.1, 91.2]}}]}, night=False
        )
        assert ev.level("near", "c", "a", 92.5)(Results(tmp_path / "results.json")) == ev.Evidence(
            "91.1 ±0.2", ev.REPRODUCED
        )
        far, absent = ev.level("t", "c", "a", 94.0)(again), ev.level("t", "c", "b", 92.0)(again)
        assert far is not None
        assert (far.verdict, absent) == (ev.NOT, None)
        both, one = ev.grouped("t", "a", "c", "d")(again), ev.grouped("t", "a", "c")(again)
        assert both is not None
        assert one is not None
        assert (both.verdict, one.verdict) == (ev.IN_PART, ev.REPRODUCED)
        assert ev.group_count("t", "c", "a", 3)(again) == ev.Evidence("2.5 groups", ev.NOT)
        assert ev.group_count("t", "c", "b", 3)(again) is None

    def test_of_what_the_papers_terms_cannot_tell(self) -> None:
        """Neither is above Local where recordings are divided in time, and the other division was
        chosen so that they are."""
        verdicts = {
            claim.statement: "not shown" if claim.statement.startswith("DistFL") else "not"
            for claim in CLAIMS
            if claim.terms is None
        }
        text = page(Results(REPOSITORY / "benchmarks/results/papers.json"))
        assert {statement.split(" is ")[1][:11] for statement in verdicts} == {"above Local"}
        assert text.count("| cannot tell | ") == len(verdicts) == 2
        for statement, verdict in verdicts.items():
            assert re.search(
                rf"{re.escape(statement)} .*\({verdict}\) \| \*\*{verdict}\*\* \|", text
            )


class TestClaims:
    def test_the_page_is_what_the_results_say(self) -> None:
        assert (REPOSITORY / "benchmarks" / "REPRODUCTION.md").read_text() == page(
            Results(REPOSITORY / "benchmarks/results/papers.json")
        )

    def test_nothing_is_claimed_of_what_was_not_run(self, tmp_path: Path) -> None:
        text = page(Results(tmp_path / "none.json"))
        assert text.count("| not yet run |  |") == len(CLAIMS)
        assert "**reproduced** |" not in text

    def test_every_claim_asks_for_runs_that_a_table_has(self) -> None:
        class Whole(Results):
            """A row for every algorithm of every table, and what sections give."""

            def of(self, key: str) -> dict[str, Any]:
                found = [t for t in TABLES if t.key == key]
                return SECTIONS.get(key) or {
                    c: [{"algorithm": a, **ROW} for a in t.algorithms]
                    for t in found
                    for c in t.columns
                }

        finds = [
            find for claim in CLAIMS for find in (claim.terms, claim.sound) if find is not None
        ]
        assert [i for i, find in enumerate(finds) if find(Whole(Path("none"))) is None] == []


SEEDED = {"accuracy": [1.0, 1.0, 1.0], "pooled_best": [1.0, 1.0, 1.0]}
ROW: dict[str, Any] = {
    "seeds": 3,
    "groups": {"ari": 1.0, "count": 1},
    "rounds_to_target": 4.0,
    "by_seed": SEEDED,
    "accuracy": {"mean": 0.01},
}
_XOR = (
    "x1 and x2: one CGAU",
    "x1 and x2: one CGAU, modulation switched off",
    "x1 and x2: one gated unit without conditioning",
)
SECTIONS: dict[str, Any] = {
    "feddisk-oracle": {"rows": {key: [1.0, 2.0] for key in feddisk_oracle.ROWS}},
    "cgau": {
        "table 1": {"a": [2.0, 1.0]},
        "xor": dict.fromkeys(_XOR, 1.0),
        "experiment 2": {
            label: {str(s): [1.0, 2.0] for s in cgau.HOUR.shuffles} for label in cgau.HEADS.values()
        },
    },
}
