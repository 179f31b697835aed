"""Shoal's signature clustering in every setting of the papers that is about groups: one default
configuration, told nothing."""

from typing import Any

from benchmarks.papers.autocfl import ASSIGNED
from benchmarks.papers.table import Setting, Table, agreement, apart, groups

DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
ONE_ROUND: dict[str, Any] = {"rounds": 1, "seeds": 3, "batch_size": 128, "hyper": {"lr": 0.01}}

COLUMNS = {
    **{
        f"{shown}, {name}": Setting(data, f"{assigned}:examples=2000:tests=30", **ONE_ROUND)
        for data, shown in DATA.items()
        for name, assigned in ASSIGNED.items()
    },
    **{
        f"{shown}, turned by 0, 90, 180, 270 degrees": Setting(
            data, "rotation:examples=2000:tests=30", **ONE_ROUND
        )
        for data, shown in DATA.items()
    },
    **{
        f"MNIST, {n} label flippers of 50": Setting(
            "mnist",
            "attack-injection:tests=30",
            attack=f"label-flip:count={n}",
            **ONE_ROUND,
        )
        for n in (5, 10, 20, 40)
    },
    "watch, left and right arms": Setting("watch", rounds=1, seeds=3),
    "watch, assigned at random": Setting("watch", "iid", rounds=1, seeds=3),
    "Fashion-MNIST, DistFL's five types, 40 examples a device": Setting(
        "fashion-mnist", "category-imbalance:devices=30:tests=20", rounds=1, seeds=3
    ),
}

TABLES = [
    Table(
        "signature",
        "Groups found by Shoal's signature (`distfl`, defaults) after one round",
        COLUMNS,
        {"distfl": "distfl"},
        {
            "groups": groups,
            "ARI with the truth": agreement,
            "attackers apart from honest devices": apart,
        },
        about="One seed. Settings as in AutoCFL, Table 3 (2,000 examples a device), DistFL, Table "
        "5 (1,000) and Table 2, and the watches. An ARI of 1 means that every device is where it "
        "belongs; with attackers the truth of the data is one group, and what counts is whether "
        "they are apart.",
        tall=True,
        hour=(),
    )
]
