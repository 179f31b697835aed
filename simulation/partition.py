"""Partitions: rules that assign examples to simulated devices, by name.

A partition is a pure function of data, seed and options: equal ones give the same bits. Users write
it in the form of `algorithms.spec`. Pooled partitions first put the examples of all devices
together, separately for training and test parts, and assign both parts by the same rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from algorithms.spec import Choice, Option, Options, read
from edge_client.core.ports import Windows
from edge_client.data.labels import has_classes
from simulation.datasets.catalog import USUAL_CUTS, Cuts, load
from simulation.datasets.pool import DEVICES, Pool, assign_alike
from simulation.datasets.windows import FleetData, select_devices
from simulation.partitions import embedding, inputs, labels
from simulation.partitions.assignment import Allocation, assign_pool, common_options, split_count
from wire.errors import ConfigError

MANY = 1_000_000


@dataclass(frozen=True)
class Partition:
    """A partition: one line of description, the options with their defaults, and the function."""

    about: str
    options: Options
    make: Callable[..., FleetData]


def _devices(count: int, low: int = 1) -> Option:
    return Option(
        count,
        "number of devices" + ("; 0: as many as the data have" if low == 0 else ""),
        low=low,
        high=MANY,
    )


def _pooled(
    about: str,
    assign: Callable[..., Allocation],
    devices: Option,
    split: str = "own",
    examples: int = 0,
    tests: int = 0,
    own: Mapping[str, Option] | None = None,
) -> Partition:
    return Partition(
        about,
        {"devices": devices, **(own or {}), **common_options(split, examples, tests)},
        partial(assign_pool, assign=assign),
    )


def by_user(
    data: FleetData | Pool, rng: np.random.Generator, *, devices: int, split: str, test: float
) -> FleetData:
    """Return one device per person, for the first `devices` people by id.

    ``split=time`` keeps the data's own test parts, which are cut in time. ``split=random`` splits
    each person's examples anew, as the papers do: overlapping windows then lie on both sides, and
    the accuracy is too optimistic.

    Raises:
        DataError: there are fewer people than `devices`.
    """
    fleet = select_devices(assign_alike(data) if isinstance(data, Pool) else data, devices)
    if split == "time":
        return fleet
    mixed = {}
    for device_id in sorted(fleet.devices):
        w = fleet.devices[device_id]
        x, y = np.concatenate([w.train_x, w.test_x]), np.concatenate([w.train_y, w.test_y])
        order, count = rng.permutation(len(y)), split_count(len(y), test)
        train, tested = np.sort(order[count:]), np.sort(order[:count])
        mixed[device_id] = Windows(x[train], y[train], x[tested], y[tested])
    return FleetData(fleet.name, fleet.window, fleet.classes, mixed, fleet.truth)


def _users(about: str, devices: int, split: str, test: float) -> Partition:
    options = {
        "devices": _devices(devices, 0),
        "split": Option(
            split,
            "time: the data's own test parts; random: anew, with overlapping windows on both sides",
            choices=("time", "random"),
        ),
        "test": Option(
            test,
            "share of a user's examples that split=random keeps for testing",
            low=0.01,
            high=0.99,
        ),
    }
    return Partition(about, options, by_user)


_environments = partial(
    _pooled,
    assign=inputs.environments,
    devices=_devices(20),
    own={"types": Option(4, "number of environments", low=1, high=4)},
)

PARTITIONS: dict[str, Partition] = {
    "user": _users("as the data say: one device per person", 0, "time", 0.25),
    "iid": _pooled(
        "assigned at random: every device has the same distribution", labels.iid, _devices(0, 0)
    ),
    "dirichlet": _pooled(
        "each class assigned in shares from a Dirichlet distribution (DBE's practical setting)",
        labels.dirichlet,
        _devices(20),
        "auto",
        own={
            "alpha": Option(0.1, "concentration: the smaller, the more uneven", low=1e-3, high=1e6),
            "least": Option(10, "training examples that every device is assigned at least", low=1),
        },
    ),
    "drawn": _pooled(
        "every device draws examples of its own by class proportions from a Dirichlet "
        "distribution; a fleet may be larger than the data",
        labels.drawn,
        _devices(1000),
        own={
            "alpha": Option(0.5, "concentration: the smaller, the more uneven", low=1e-3, high=1e6),
            "each": Option(64, "training examples of a device", low=2, high=MANY),
        },
    ),
    "pathological": _pooled(
        "every device has a few classes only, in different amounts (DBE's pathological setting)",
        labels.pathological,
        _devices(20),
        "auto",
        own={"classes": Option(2, "classes per device", low=1)},
    ),
    "label-groups": _pooled(
        "groups of devices with ranges of classes that are apart, overlap and include each other "
        "(AutoCFL)",
        labels.label_groups,
        _devices(20),
        own={
            "groups": Option(
                "",
                f"the ranges; {labels.AUTOCFL_GROUPS} for ten classes, else two halves, when not "
                "given",
            )
        },
    ),
    "rotation": _pooled(
        "groups of devices with turned inputs: images by 0/90/180/270 degrees, three-axis sensors "
        "about z (AutoCFL)",
        inputs.rotation,
        _devices(20),
        own={"groups": Option(4, "number of groups; 2: by 0 and 180 degrees", low=1, high=4)},
    ),
    "noise": _pooled(
        "Gaussian noise that grows from device to device (FedDisk)",
        inputs.noise,
        _devices(100),
        own={"x": Option(0.3, "noise variance: device k of n gets k * x / n", low=0)},
    ),
    "embedding": _pooled(
        "devices that express a class differently: clusters of each class in an embedding (CGAU)",
        embedding.embedding,
        _devices(10),
        own={
            "shuffle": Option(
                0.0, "proportion of examples that go to random devices", low=0, high=1
            )
        },
    ),
    "category-imbalance": _pooled(
        "DistFL's scenario: five blocks of devices with two classes each, 40 training and 100 "
        "test examples a device",
        labels.category_imbalance,
        _devices(100),
        examples=40,
        tests=100,
        own={"types": Option(5, "number of distributions", low=1)},
    ),
    "environment-difference": _environments(
        "DistFL's scenario: the same objects in four surroundings"
    ),
    "privacy-protection": _environments(
        "DistFL's scenario: the data of environment-difference, to be trained with noise on the "
        "updates"
    ),
    "attack-injection": _pooled(
        "DistFL's scenario: 50 devices alike with 1,000 training examples, some of which are to "
        "attack",
        labels.iid,
        _devices(50),
        examples=1000,
    ),
    "real-world": _users(
        "DistFL's scenario: the first 20 people, their windows divided at random",
        20,
        "random",
        0.27,
    ),
}
"""Every partition by name."""
OPTIONS: Mapping[str, Options] = {name: each.options for name, each in PARTITIONS.items()}
OF_MEASUREMENTS = ("rotation", "noise", "embedding", "environment-difference", "privacy-protection")
"""Partitions that compare or change inputs as quantities."""
OF_CLASSES = (
    "dirichlet",
    "drawn",
    "pathological",
    "label-groups",
    "embedding",
    "category-imbalance",
)
"""Partitions that need classes as labels."""


def read_partition(text: str) -> Choice:
    """Read a partition with its options, see `PARTITIONS`.

    Raises:
        ConfigError: there is no such partition or option, or a value is not allowed.
    """
    return read(text, OPTIONS, "partition")


def partition(data: FleetData | Pool, choice: Choice, seed: int) -> FleetData:
    """Assign the examples of `data` to devices by the chosen partition.

    Raises:
        ConfigError: an option does not fit the data, or the partition needs classes or measurements
        and the data have none.
        DataError: a partition by users has more devices than there are users.
    """
    if data.window.vocabulary and choice.name in OF_MEASUREMENTS:
        raise ConfigError(
            f"partition {choice.name} needs measurements, and data {data.name} holds ids"
        )
    labels_of_some = data.train_y if isinstance(data, Pool) else data.sample()[1]
    if choice.name in OF_CLASSES and not has_classes(labels_of_some):
        raise ConfigError(
            f"partition {choice.name} assigns examples by their class, and the labels of data "
            f"{data.name} are not classes"
        )
    options = choice.options
    if options["devices"] == 0:
        options["devices"] = DEVICES if isinstance(data, Pool) else len(data.devices)
    return PARTITIONS[choice.name].make(data, np.random.default_rng([seed, 0x11D]), **options)


def make_fleet(
    data: str, choice: Choice, devices: int | None, seed: int, cuts: Cuts = USUAL_CUTS
) -> FleetData:
    """Load data by name or path, and assign them to devices by a partition.

    `devices` is the number of devices; None: the partition's own. `cuts` is of recordings.

    Raises:
        DataError: the data cannot be read, or are too few.
        ConfigError: the number of devices is given twice, or an option does not fit the data.
    """
    return assign(load(data, cuts), choice, devices, seed)


def assign(data: FleetData | Pool, choice: Choice, devices: int | None, seed: int) -> FleetData:
    """Assign data to devices by a partition.

    `devices` is the number of devices; None: the partition's own.

    Raises:
        DataError: the data are too few.
        ConfigError: the number of devices is given twice, or an option does not fit the data.
    """
    if devices is not None:
        text = f"{choice}:devices={devices}"
        choice = read(text, OPTIONS, "partition", f"partition {str(choice)!r}")
    return partition(data, choice, seed)
