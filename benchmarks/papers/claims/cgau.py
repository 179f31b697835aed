"""CGAU's claims."""

from benchmarks.papers import evidence as ev
from benchmarks.papers.claims.claim import Claim, Paper, above, otherwise

GATES = (
    "CGAU has twice the weights of ReLU units. So have gated units without conditioning, which are "
    "above ReLU units by +0.9 ±1.0 where nothing is shuffled and by +1.0 ±0.7 where all is. ReLU "
    "units with as many weights were not tried."
)

CLAIMS = [
    Claim(
        "Heterogeneity falls with every step of shuffling (Table 1)",
        "1784 to 19.9",
        ev.falling_gamma,
    ),
    Claim(
        "CGAU is above ReLU units where nothing is shuffled (Experiment II)",
        "drawn, not given",
        ev.heads("CGAU", "ReLU units (baseline)", "0.0"),
        cause={ev.REPRODUCED: GATES, **otherwise(GATES)},
    ),
    Claim(
        "CGAU is above ReLU units where all is shuffled (Experiment II)",
        above(78.5, 78.0),
        ev.heads("CGAU", "ReLU units (baseline)", "1.0"),
        cause={ev.REPRODUCED: f"By more than in the paper, 0.5. {GATES}"},
    ),
    Claim(
        "What CGAU gains over ReLU units is most where nothing is shuffled (Experiment II)",
        "drawn, not given",
        ev.gains("CGAU", "ReLU units (baseline)", "0.0", "1.0"),
        cause=otherwise(
            "Gated units without conditioning gain as much, whether clients differ or not."
        ),
    ),
    Claim(
        "The gain is due to the conditioning: CGAU is above gated units without it (Experiment II)",
        "",
        ev.heads("CGAU", "gated units without conditioning", "0.0"),
        cause=otherwise("What a device's own condition adds to the gate is a tenth of a point."),
    ),
    Claim(
        "One CGAU solves the XOR of two clients with both features, by its conditioning (appendix "
        "A)",
        "solved",
        ev.xor_solved,
    ),
    Claim(
        "Without conditioning one gated unit does not solve it",
        "",
        ev.xor_needs_conditioning,
        cause={
            ev.NOT: "A gate is a product, and XOR of both features asks for no more. Where one is "
            "hidden, conditioning is needed (RESULTS.md)."
        },
    ),
]
PAPER = Paper(
    "CGAU",
    "L. Rieger et al., FL-ICML 2020",
    "Ours has embeddings of 16 numbers; the paper's have 1,024.",
    CLAIMS,
)
