"""FedDisk's claims."""

from benchmarks.papers import evidence as ev
from benchmarks.papers import feddisk_oracle
from benchmarks.papers.claims.claim import Claim, Paper, above, otherwise
from benchmarks.papers.feddisk import FEDDISK, X03

CLAIMS = [
    Claim(
        "FedDisk is above the other methods on noisy MNIST (Fig. 3c): here FedAvg",
        above(54.5, 51.7),
        ev.order("feddisk-figure-3", X03, FEDDISK, "fedavg"),
        cause=otherwise(
            "The classifier compares two networks' outputs for the same examples; no ratio of "
            "densities follows from that. We stopped the MADE (the density model) after ten "
            "rounds; the paper's took 70. With the true ratio nothing is won either (below, on "
            "fewer examples and rounds). The paper's accuracies are 40 points lower; the cause is "
            "not known."
        ),
    ),
    Claim(
        "FedDisk needs fewer rounds than FedAvg, those of its MADE included (Tables I and II)",
        "155 against 500 rounds",
        ev.fewer_rounds("feddisk-table-1", X03, FEDDISK, "fedavg"),
        cause={
            ev.NOT: "FedDisk cannot win here: FedAvg reaches the target, 95 % of the best method's "
            "accuracy, in 7.3 rounds, and the MADE alone takes ten. In the paper FedDisk's target "
            "is the others' best accuracy, and theirs is their own best."
        },
    ),
    Claim(
        "Weights by the *true* density ratio are above none",
        "",
        ev.rows_of_section("feddisk-oracle", feddisk_oracle.ORACLE, feddisk_oracle.FAVG),
        cause=otherwise(
            "The same weights in another order, which say nothing of an example, lose 3.0 ±3.3."
        ),
    ),
    Claim(
        "The true ratio is above the same weights in another order",
        "",
        ev.rows_of_section("feddisk-oracle", feddisk_oracle.ORACLE, feddisk_oracle.SHUFFLED),
    ),
    Claim(
        "Tempered log p - log q of two MADEs as weights is above FedAvg",
        "",
        ev.rows_of_section("feddisk-oracle", feddisk_oracle.TEMPERED, feddisk_oracle.FAVG),
        cause=otherwise("Tempering brings all weights close to 1, which is FedAvg."),
    ),
]
PAPER = Paper(
    "FedDisk",
    "H. Nguyen et al., IEEE TAI 2023",
    "Ours has 20 devices and 30 rounds; the paper 100 and 1,500.",
    CLAIMS,
)
