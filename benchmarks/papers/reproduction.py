"""benchmarks/REPRODUCTION.md, made from the results: each claim of a paper, the paper's number,
ours on its terms and on sound ones, a verdict and the cause. No number and no verdict is written by
hand."""

from collections import Counter
from pathlib import Path

from benchmarks.papers import evidence as ev
from benchmarks.papers.claims import CLAIMS, PAPERS, Claim
from benchmarks.papers.results import Results

TO_RUN = f"{ev.NOT_RUN}: `make papers NIGHT=1`"
HEAD = f"""# The papers, claim by claim

Made by `make papers` (an hour on two cores) and `make papers NIGHT=1` (a night) from
[results/papers.json](results/papers.json); [RESULTS.md](RESULTS.md) has the tables behind it.
Accuracies are in %. ± is a 95 % interval over seeds; differences are between the same seeds. *The
paper's terms* are its data, its division into training and test parts and its way to report, as far
as they are known. *Sound terms* test on later recordings than devices train on, take the mean over
devices, and the model after the last round.

An order is **{ev.REPRODUCED}** where the whole interval of the difference is above 0,
**{ev.IN_PART}** where the difference is positive but the interval is not, and **{ev.NOT}**
otherwise. A level is reproduced where the whole interval is within {ev.WITHIN:g} points of the
paper's, and in part where the mean alone is; groups where all devices are right in every seed. The
verdict is on the paper's terms; what sound terms say stands in the cell beside it. One seed decides
nothing.
"""
COLUMNS = ("claim", "the paper", "ours on its terms", "ours on sound terms", "verdict", "cause")


def write_claims(results: Results, path: Path) -> None:
    """Write the page."""
    path.write_text(page(results))


def page(results: Results) -> str:
    """The page as Markdown."""
    found = {claim.statement: claim.terms(results) if claim.terms else None for claim in CLAIMS}
    verdicts = {
        statement: evidence.verdict if evidence else ev.NOT_RUN
        for statement, evidence in found.items()
    }
    lines = [
        HEAD,
        "| paper | claims | "
        + " | ".join(kinds := (ev.REPRODUCED, ev.IN_PART, ev.NOT, ev.UNDECIDED, ev.NOT_RUN))
        + " |",
    ]
    lines.append("|---" * (2 + len(kinds)) + "|")
    for paper in PAPERS:
        counts = Counter(verdicts[claim.statement] for claim in CLAIMS if claim.paper == paper)
        lines.append(
            f"| {paper} | {counts.total()} | "
            + " | ".join(str(counts[kind]) for kind in kinds)
            + " |"
        )
    for paper, citation in PAPERS.items():
        lines += [
            "",
            f"## {paper}",
            "",
            f"{citation}.",
            "",
            "| claim | the paper | ours on its terms | ours on sound terms | verdict | cause |",
        ]
        lines.append("|---" * 6 + "|")
        lines += [
            _row(claim, found[claim.statement], results) for claim in CLAIMS if claim.paper == paper
        ]
    return "\n".join(lines) + "\n"


def _row(claim: Claim, terms: ev.Evidence | None, results: Results) -> str:
    sound = claim.sound(results) if claim.sound else None
    on_sound = (
        "-" if claim.sound is None else f"{sound.text} ({sound.verdict})" if sound else TO_RUN
    )
    ours, verdict = (terms.text, f"**{terms.verdict}**") if terms else (TO_RUN, ev.NOT_RUN)
    return (
        f"| {claim.statement} | {claim.number} | {ours} | {on_sound} | {verdict} | "
        f"{claim.cause.get(terms.verdict, '') if terms else ''} |"
    )
