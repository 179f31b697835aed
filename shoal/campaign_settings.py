"""From the options of a campaign, as people write them, to its settings: for `shoal serve` and
`shoal campaign`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggregator.core.round.cohort import policy_settings, read_policy, with_cohort
from algorithms.registry import PERSONALISATION, is_known, read_algorithm
from algorithms.spec import DEFAULT_ALGORITHM
from shoal.choices import hyper_given, hyper_values, read_encoding, schedule_of, with_privacy
from wire.bundle import unpack
from wire.errors import ConfigError, ShoalError


def hours_of(window: str, time_zone: str) -> str:
    """The hours of ``--window`` and ``--time-zone`` as settings have them."""
    return f"{window} {time_zone}" if window else ""


def campaign_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `CampaignSettings` but for its name, from the parameters of a command that has
    the options of a campaign.

    Raises:
        ConfigError: the algorithm, the mechanism or a hyper-parameter cannot be read.
    """
    same = (
        "local_epochs",
        "batch_size",
        "seed",
        "min_devices",
        "min_group",
        "weight_cap",
        "norm_cap",
        "max_drop",
        "keep_models",
    )
    budget = ("rounds", "days", "patience", "min_delta")
    asking = ("where", "cohort", "over_select", "quorum", "start_from")
    policy = (
        with_asking(given["policy"], given["cohort"], given["over_select"])
        if given["policy"]
        else {}
    )
    return {name: given[name] for name in (*budget, *same, *asking)} | {
        "algorithm": with_privacy(
            read_algorithm(given["algorithm"] or usual_algorithm(given["bundle"])), given["privacy"]
        ).anchored(),
        "hyper": hyper_values(given["lr"], hyper_given(given["hyper"])),
        "lr_schedule": schedule_of(given["lr_schedule"]),
        "update_encoding": read_encoding(given["update_encoding"]),
        "deadline_s": given["deadline"],
        "grace_s": given["grace"],
        "max_update_norm": given["max_norm"],
        "pace_s": given["pace"],
        "hours": hours_of(given["window"], given["time_zone"]),
        **policy,
    }


def usual_algorithm(folder: Path | None) -> str:
    """The algorithm of a bundle's folder where none is named: that of the objective that it was
    exported for, with groups that are found where this is FedAvg's. `DEFAULT_ALGORITHM` without a
    bundle that can be read: what is wrong with it is said when it is opened.

    Raises:
        ConfigError: the objective is from outside, and its name alone does not say from where.
    """
    try:
        exported_for = (
            unpack((folder / "device.shoal").read_bytes()).manifest.algorithm if folder else ""
        )
    except (OSError, ShoalError):
        exported_for = ""
    parts = exported_for.split("+") if exported_for else [DEFAULT_ALGORITHM]
    if parts[0] == "fedavg" and not PERSONALISATION.keys() & parts:
        parts[0] = "distfl"
    if unknown := [part for part in parts if not is_known(part.partition(":")[0])]:
        told = f"bundle {folder}: it was exported for {unknown[0]!r}, which is not registered here"
        raise ConfigError(
            f"{told}: name its file, --algorithm FILE.py:CLASS, or install the package that it is "
            "from"
        )
    return "+".join(parts)


def with_asking(text: str, cohort: int | None, over_select: float | None) -> dict[str, Any]:
    """The fields of `RunSettings` that ``--policy`` says, with ``--cohort``.

    Raises:
        ConfigError: it cannot be read, or says something that another option says as well.
    """
    policy = read_policy(text)
    if over_select not in (None, 1.0):
        raise ConfigError(f"--over-select {over_select:g}: --policy {text} says how many are asked")
    return policy_settings(with_cohort(policy, cohort) if cohort else policy)
