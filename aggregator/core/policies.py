"""Policies of rounds: the size of a cohort, and the number of updates that ends a round.

Pure; for the service's rounds and the simulation's virtual clock. `POLICIES` is their notation on
every command line.

*sync*: every device of the cohort is waited for. *over-select*: the cohort is enlarged, and the
round is over with the first updates that fill its original size (K. Bonawitz et al., Towards
federated learning at scale, MLSys 2019, section 9). *buffered*: a fixed number of devices is at
work at any time, and a fixed number of updates is aggregated, including those of earlier rounds (J.
Nguyen et al., Federated learning with buffered asynchronous aggregation, AISTATS 2022);
`staleness_weights` is the weight of an old update.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from algorithms.spec import Choice, Option, Options, read
from wire.arrays.tensors import Array
from wire.errors import ConfigError

_COMMON = {
    "deadline": Option(
        3600.0, "seconds after which a device's update is no longer waited for", low=1e-3
    )
}
_ROUNDS = {
    "cohort": Option(0, "updates that a round waits for; 0: one of every device", low=0),
    "wait": Option(
        600.0, "seconds that a round waits for devices before it begins with fewer", low=0
    ),
    **_COMMON,
}
POLICIES: Mapping[str, Options] = {
    "sync": _ROUNDS,
    "over-select": {
        **_ROUNDS,
        "over": Option(
            0.3, "so many more devices are invited, as a share of the cohort", low=0, high=9
        ),
    },
    "buffered": {
        "concurrency": Option(0, "devices that train at any time; 0: half of them", low=0),
        "buffer": Option(10, "updates that make an aggregation", low=1),
        **_COMMON,
    },
}
"""Options of every policy, by its name."""


def read_policy(text: str) -> Choice:
    """Return the policy in a text, see `POLICIES`.

    Raises:
        ConfigError: the policy or an option does not exist, or a value is not allowed.
    """
    return read(text, POLICIES, "policy")


def with_cohort(policy: Choice, cohort: int) -> Choice:
    """Return the policy with a cohort of this size.

    Raises:
        ConfigError: the policy has no rounds, or already sets a cohort.
    """
    if policy.name == "buffered":
        raise ConfigError(
            f"cohort must be 0 with policy {str(policy)!r}, got {cohort}; the policy has "
            "concurrency= and buffer= instead"
        )
    return read(f"{policy}:cohort={cohort}", POLICIES, "policy", f"policy {str(policy)!r}")


def policy_settings(policy: Choice) -> dict[str, Any]:
    """Return the fields of `RunSettings` that a policy sets.

    A campaign keeps its own `deadline_s` if the policy sets no deadline.

    Raises:
        ConfigError: the policy sets how long a round waits for devices. A campaign waits for a
            number of devices instead (`min_devices`).
    """
    values = dict(policy.explicit)
    if "wait" in values:
        raise ConfigError(
            f"policy {str(policy)!r}: option wait is for simulations; a campaign waits for "
            "--min-devices"
        )
    options = policy.options
    fields: dict[str, Any] = {
        "cohort": options.get("cohort", 0),
        "over_select": 1.0 + options.get("over", 0.0),
        "buffer": 0,
        "concurrency": 0,
    }
    if policy.name == "buffered":
        fields |= {"buffer": options["buffer"], "concurrency": options["concurrency"]}
    return fields | ({"deadline_s": values["deadline"]} if "deadline" in values else {})


def staleness_weights(staleness: Array) -> Array:
    """Return the weights 1 / sqrt(1 + staleness) of updates, float64 (Nguyen et al., section 5).

    `staleness`: number of aggregations between the start of each update and its own.
    """
    weights: Array = 1 / np.sqrt(1.0 + staleness)
    return weights
