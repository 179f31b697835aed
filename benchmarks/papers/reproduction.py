"""benchmarks/REPRODUCTION.md, made from the results: each claim of a paper, the paper's number,
ours on its terms and on sound ones, a verdict and the cause. No number and no verdict is written by
hand."""

from collections import Counter
from pathlib import Path

from benchmarks.papers import evidence as ev
from benchmarks.papers.claims import CLAIMS, PAPERS, SIZES, Claim
from benchmarks.papers.results import Results

TO_RUN = f"{ev.NOT_RUN}: `make papers NIGHT=1`"
HEAD = f"""# The papers, claim by claim

Made by `make papers` (an hour on two cores) and `make papers NIGHT=1` (a night) from
[results/papers.json](results/papers.json); [RESULTS.md](RESULTS.md) has the tables behind it.
Accuracies are in %. ± is a 95 % interval over seeds; differences are between the same seeds.

*On its terms* follows the paper's division into training and test parts and its way to report, as
far as they are known; DBE's tables count the best round over all test examples together, as the
authors' library does. Our runs are smaller than the paper's: each section says by how much. Data
are others for DistFL's section 5.2 (Fashion-MNIST) and Tables 5 and 6 (MNIST, with Shoal's own
signature), for DBE's Tables 2 and 4 (Fashion-MNIST), and for CGAU's Experiment II (MNIST).
*On sound terms* is the mean over devices of the model after the last round, on later recordings
than devices train on where data have times; DistFL then has Shoal's own signature of a device, and
DBE's Table 9 15 rounds.

The verdict is that of the paper's terms; that of sound terms is in brackets. An order is
**{ev.REPRODUCED}** if the whole interval of the difference is above 0, **{ev.IN_PART}** if the
mean is, to one decimal, and **{ev.NOT}** otherwise. A level is reproduced if the whole interval is
within {ev.WITHIN:g} points of the paper's, and in part if the mean is. Groups are reproduced if the
adjusted Rand index (ARI; 1: the true groups), a mean over seeds, is 1 in every column, and in part
if it is in some. One seed decides nothing; rounds to a target (FedDisk) are compared by their
means, and CGAU's Table 1 and appendix A have no seeds. What no paper claims is a question of ours,
and counts apart. Rows over one seed, and tables without results, are no claims: RESULTS.md has
them.
"""
COLUMNS = ("claim", "the paper", "ours on its terms", "ours on sound terms", "verdict", "cause")


def write_claims(results: Results, path: Path) -> None:
    """Write the page."""
    path.write_text(page(results))


def page(results: Results) -> str:
    """The page as Markdown."""
    found = {
        claim.statement: find(results) if (find := claim.terms or claim.sound) else None
        for claim in CLAIMS
    }
    verdicts = {
        statement: evidence.verdict if evidence else ev.NOT_RUN
        for statement, evidence in found.items()
    }
    lines = [
        HEAD,
        "| paper | claims | "
        + " | ".join(kinds := (ev.REPRODUCED, ev.IN_PART, ev.NOT, ev.UNDECIDED, ev.NOT_RUN))
        + " | questions of ours |",
    ]
    lines.append("|---" * (3 + len(kinds)) + "|")
    for paper in PAPERS:
        of_paper = [claim for claim in CLAIMS if claim.paper == paper]
        counts = Counter(verdicts[claim.statement] for claim in of_paper if claim.number)
        cells = [counts.total(), *(counts[kind] for kind in kinds), len(of_paper) - counts.total()]
        lines.append(f"| {paper} | {' | '.join(map(str, cells))} |")
    for paper, citation in PAPERS.items():
        lines += [
            "",
            f"## {paper}",
            "",
            f"{citation}. {SIZES[paper]}.",
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
    if claim.terms is None:
        ours = "cannot tell"
    number = claim.number or "a question of ours"
    return (
        f"| {claim.statement} | {number} | {ours} | {on_sound} | {verdict} | "
        f"{claim.cause.get(terms.verdict, '') if terms else ''} |"
    )
