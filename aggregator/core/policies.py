"""How many devices a round asks, and with how many updates it is over; for the service's rounds and
the simulation's virtual clock. Pure.

*sync*: as many as the cohort has, and the update of each is waited for. *over-select*: more are
asked than the cohort has, and the round is over with the first updates that fill it (K. Bonawitz et
al., Towards federated learning at scale, MLSys 2019, section 9). *buffered*: so many devices are at
work at any time, and every so many updates are aggregated, those of earlier rounds as well (J.
Nguyen et al., Federated learning with buffered asynchronous aggregation, AISTATS 2022);
`staleness_weights` says how much less an old update counts.

`POLICIES` is how all of them are written, on every command line.
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
"""Every policy, with its options."""


def read_policy(text: str) -> Choice:
    """Read a policy, see `POLICIES`.

    Raises:
        ConfigError: no such policy or option, or a value it cannot have.
    """
    return read(text, POLICIES, "policy")


def with_cohort(policy: Choice, cohort: int) -> Choice:
    """The policy with so many updates in a round.

    Raises:
        ConfigError: the policy has no rounds, or says already how many.
    """
    if policy.name == "buffered":
        raise ConfigError(
            f"cohort {cohort}: policy {str(policy)!r} has no rounds; say concurrency= and buffer="
        )
    return read(f"{policy}:cohort={cohort}", POLICIES, "policy", f"policy {str(policy)!r}")


def policy_settings(policy: Choice) -> dict[str, Any]:
    """The fields of `RunSettings` that a policy says; a campaign has its own `deadline_s` where the
    policy names none.

    Raises:
        ConfigError: it says how long a round waits for devices, which a campaign does by their
        number (`min_devices`).
    """
    given = dict(policy.given)
    if "wait" in given:
        raise ConfigError(
            f"policy {str(policy)!r}: wait is for simulations; a campaign begins with --min-devices"
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
    return fields | ({"deadline_s": given["deadline"]} if "deadline" in given else {})


def staleness_weights(staleness: Array) -> Array:
    """1 / sqrt(1 + staleness), float64 (Nguyen et al., section 5): what an update counts that
    started so many aggregations ago."""
    weights: Array = 1 / np.sqrt(1.0 + staleness)
    return weights
