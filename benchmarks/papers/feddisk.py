"""FedDisk's comparisons. H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed
Data Using Sample Weights. IEEE Transactions on Artificial Intelligence, 2023, section VII.

MNIST with noise that grows from device to device is here; FEMNIST and Chest-Xray are not. Paper
settings for MNIST: 100 devices, variance 0.3, two convolutions of 16 channels with BatchNorm and a
layer of 16 (here Shoal's usual CNN, 32 and 64 channels), SGD at 0.01, 2 local iterations, 1500
rounds, five runs; a MADE of 30 units in at most 500 rounds, which are Shoal's preparations. Batches
are not given.

Effective rounds (section VII-C2): FedDisk's are those until it reaches the best accuracy that the
others have, and its MADE's besides; the others' are those until each one's own best. Here
everybody's count to one target, 95 % of the best mean accuracy in the column.
"""

from algorithms.composition import read_algorithm
from benchmarks.papers.table import Row, Setting, Table, rounds

ACCURACY = "accuracy, %"
PREPARED, TRAINED, TOTAL, COST = (
    "rounds of the MADE",
    "rounds to target",
    "in all",
    "numbers exchanged, millions",
)
CNN_SIZE, PROTOTYPES_SIZE = 83_658, 31_360
"""Numbers that a device sends in a round: the CNN for 28 x 28 images; ten classes' means of 3,136
features (FedPCL)."""
MADE_SIZE = 2 * 784 * 30 + 784 + 30

FEDDISK = "feddisk:density_units=30:preparations=10:local_checks=5"
NAMES = {
    "fedavg": "FedAvg",
    "fedbn": "FedBN",
    "fedprox:mu=0.01": "FedProx",
    "fedrod": "FedROD",
    "fedpcl": "FedPCL",
}
NAMES |= {FEDDISK: "FedDisk", "feddisk-ab": "FedDiskAb"}


def effective_cost(size: int, rounds: int, density_size: int = 0, density_rounds: int = 0) -> int:
    """Numbers that one device exchanges, both ways: 2 * (S_MADE * ECR_MADE + S_cls * ECR_cls), Eq.
    18 and 19."""
    return 2 * (density_size * density_rounds + size * rounds)


def preparations(row: Row) -> float | None:
    """Return the rounds of the global MADE; the maximum if the row has no count, and None without
    a MADE."""
    objective = read_algorithm(row["algorithm"]).objective
    if objective.name != "feddisk":
        return None
    return float(row.get("preparations") or objective.options["preparations"])


def in_all(row: Row) -> float | None:
    """Effective communication rounds of both phases."""
    trained = rounds(row)
    return None if trained is None else trained + (preparations(row) or 0)


def cost(row: Row) -> float | None:
    """Effective communication cost of one device, Eq. 18 and 19, in millions of numbers."""
    trained = rounds(row)
    if trained is None:
        return None
    size = PROTOTYPES_SIZE if row["algorithm"] == "fedpcl" else CNN_SIZE
    return effective_cost(size, round(trained), MADE_SIZE, round(preparations(row) or 0)) / 1e6


PAPER_ROUNDS = {
    "FedAvg": 500,
    "FedBN": 600,
    "FedProx": 800,
    "FedROD": 550,
    "FedPCL": 550,
    "FedDisk": 85,
}
PAPER_CNN_SIZE, PAPER_MADE_SIZE, PAPER_MADE_ROUNDS = 12_000, 47_000, 70
NOISE = Setting(
    "mnist",
    "noise:devices=20:x=0.3:examples=400:tests=400",
    rounds=30,
    seeds=3,
    hyper={"lr": 0.01},
)
X03 = "x = 0.3"


def _paper() -> dict[tuple[str, str, str], float]:
    numbers = {("FedDisk", PREPARED, X03): float(PAPER_MADE_ROUNDS)}
    for name, trained in PAPER_ROUNDS.items():
        made = PAPER_MADE_ROUNDS if name == "FedDisk" else 0
        numbers[name, TRAINED, X03] = trained
        numbers[name, TOTAL, X03] = trained + made
        numbers[name, COST, X03] = (
            effective_cost(PAPER_CNN_SIZE, trained, PAPER_MADE_SIZE, made) / 1e6
        )
    return numbers


TABLES = [
    Table(
        "feddisk-figure-3",
        "FedDisk, Fig. 3c: accuracy on MNIST with noise of variance k x / 100 at device k",
        {X03: NOISE},
        NAMES,
        paper={("FedDisk", ACCURACY, X03): 54.5},
        about="The paper's best other method has 51.7 %, it does not say which; the methods' "
        "curves are only drawn. FedPCL keeps whole "
        "models on the devices. 20 devices with at most 400 examples.",
        hour=("fedavg", "fedbn", FEDDISK),
    ),
    Table(
        "feddisk-table-1",
        "FedDisk, Tables I and II: effective communication rounds and cost, MNIST",
        {X03: NOISE},
        {name: label for name, label in NAMES.items() if label != "FedDiskAb"},
        {PREPARED: preparations, TRAINED: rounds, TOTAL: in_all, COST: cost},
        _paper(),
        "The paper's costs follow from its Tables I and II by its Eq. 18 and 19 (its CNN has "
        "12,000 weights, ours 83,658; the MADE "
        "47,000). Here the MADE may take 10 rounds, 500 in the paper, which needed 70.",
        hour=("fedavg", "fedbn", FEDDISK),
    ),
]
