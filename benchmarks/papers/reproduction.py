"""benchmarks/REPRODUCTION.md: each claim of a paper, the paper's number, ours on its terms and on
sound ones, a verdict and the cause. The two columns of ours and the verdicts come from the results;
the causes, with their numbers, are written by hand in `claims`."""

from pathlib import Path

from benchmarks.papers import evidence as ev
from benchmarks.papers.claims import PAPERS
from benchmarks.papers.claims.claim import Claim
from benchmarks.papers.results import Results

TO_RUN = f"{ev.NOT_RUN}: `make papers NIGHT=1`"
HEAD = f"""# The papers, claim by claim

Written from [results/papers.json](results/papers.json), which `make papers` (an hour on two cores)
and `make papers NIGHT=1` (a night) fill; [RESULTS.md](RESULTS.md) has the tables, and names those
that have not been run. Accuracies are in %, in DistFL's Tables 5 and 6 those of honest devices. ±
is half of a 95 % interval over seeds. Differences are taken seed by seed, before rounding.

**On its terms**: the paper's division into training and test examples and its way of reporting, as
far as they are known. DBE's tables report the best round over all test examples together, as the
authors' library does. Other data than the paper's: Fashion-MNIST in DistFL's section 5.2 (Table 2)
and in DBE's Tables 2 and 4; MNIST in DistFL's Tables 5 and 6 and in CGAU's Experiment II; images in
CGAU's Table 1. Each section gives the sizes.

**On sound terms**: the mean over devices after the last round. Where recordings have times, tests
are later than training. DistFL has Shoal's own signature and significance test. DBE's Table 9 has
15 rounds, in which few methods converge.

An order is **{ev.REPRODUCED}** if the whole 95 % interval of the difference is above 0,
**{ev.NOT}** if none of it is, and **{ev.NOT_SHOWN}** if 0 is inside. A level is reproduced if the
whole interval is within {ev.WITHIN:g} points of the paper's, and **{ev.IN_PART}** if the mean is.
Groups are reproduced if the adjusted Rand index (ARI; 1: the true groups), a mean over seeds, is 1
in every column, and in part if it is in some. One seed decides nothing. Rounds to a target are
compared by their means; CGAU's Table 1 is one run, its appendix A the best of several initial
weights. The verdict is that of the paper's terms. That of sound terms is in brackets, and is the
verdict where the paper's terms cannot tell. What no paper claims is a question of ours, and counts
apart.
"""
VERDICTS = (ev.REPRODUCED, ev.IN_PART, ev.NOT_SHOWN, ev.NOT, ev.UNDECIDED, ev.NOT_RUN)
COLUMNS = (
    "claim",
    "the paper",
    "ours on its terms",
    "ours on sound terms",
    "verdict",
    "cause or reserve",
)


def write_claims(results: Results, path: Path) -> None:
    """Write the page."""
    path.write_text(page(results))


def page(results: Results) -> str:
    """The page as Markdown."""
    found = {
        claim.statement: find(results) if (find := claim.terms or claim.sound) else None
        for paper in PAPERS
        for claim in paper.claims
    }
    lines = [
        HEAD,
        f"| paper | claims | {' | '.join(VERDICTS)} | questions of ours |",
        "|---" * (3 + len(VERDICTS)) + "|",
    ]
    for paper in PAPERS:
        verdicts = [
            evidence.verdict if (evidence := found[claim.statement]) else ev.NOT_RUN
            for claim in paper.claims
            if claim.number
        ]
        counts = [len(verdicts), *map(verdicts.count, VERDICTS), len(paper.claims) - len(verdicts)]
        lines.append(f"| {paper.name} | {' | '.join(map(str, counts))} |")
    for paper in PAPERS:
        lines += [
            "",
            f"## {paper.name}",
            "",
            f"{paper.citation}. {paper.reserves}",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---" * len(COLUMNS) + "|",
        ]
        lines += [_row(claim, found[claim.statement], results) for claim in paper.claims]
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
