"""The settings of a campaign from its options as people write them.

For `shoal serve` and `shoal campaign`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggregator.core.policies import policy_settings, read_policy, with_cohort
from algorithms.composition import read_algorithm
from algorithms.core.contract import Work
from algorithms.privacy.base import counts_from
from algorithms.registry import CHOICES, Known
from algorithms.schedules import read_schedule
from algorithms.spec import DEFAULT_ALGORITHM
from wire.bundle import unpack
from wire.errors import ConfigError, ShoalError


def campaign_fields(bundle: Path | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `CampaignSettings`, without its name, from the values of the options.

    `values` has those of `shoal.commands.options.CAMPAIGN`.

    Raises:
        ConfigError: the algorithm, the mechanism or a hyper-parameter cannot be read.
    """
    fields = dict(values)
    words = ("algorithm", "privacy", "lr", "policy", "window", "time_zone")
    algorithm, privacy, lr, policy, window, zone = (fields.pop(name) for name in words)
    if policy:
        fields |= with_asking(policy, fields["cohort"], fields["over_select"])
    spec = read_algorithm(algorithm or usual_algorithm(bundle)).with_privacy(privacy)
    work = Work(fields["batch_size"], fields["local_epochs"])
    counts = counts_from(spec.parts.privacy.min_examples, work.batch_size)
    spec = spec.with_noise(fields["rounds"], counts, work)
    if schedule := fields["lr_schedule"]:
        fields["lr_schedule"] = str(read_schedule(schedule))
    return fields | {
        "algorithm": spec.anchored(),
        "hyper": ({} if lr is None else {"lr": lr}) | fields["hyper"],
        "hours": f"{window} {zone}" if window else "",
    }


def usual_algorithm(folder: Path | None) -> str:
    """Return the algorithm of a campaign whose options name none.

    It is the algorithm that the bundle in `folder` was exported for. FedAvg becomes DistFL, which
    trains in the same way and finds groups, unless a personalisation is part of the algorithm. It
    is `DEFAULT_ALGORITHM` without a readable bundle; opening the bundle later reports what is wrong
    with it.

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
    if parts[0] == "fedavg" and not CHOICES["personalisation"].keys() & parts:
        parts[0] = "distfl"
    if unknown := [part for part in parts if part.partition(":")[0] not in set(Known())]:
        fault = f"bundle {folder}: it was exported for {unknown[0]!r}, which is not registered here"
        raise ConfigError(
            f"{fault}; name its file with --algorithm FILE.py:CLASS, or install the package that "
            "has it"
        )
    return "+".join(parts)


def with_asking(text: str, cohort: int | None, over_select: float | None) -> dict[str, Any]:
    """Return the fields of `RunSettings` that ``--policy`` sets, with ``--cohort``.

    Raises:
        ConfigError: the policy cannot be read, or sets what another option sets as well.
    """
    policy = read_policy(text)
    if over_select not in (None, 1.0):
        raise ConfigError(
            f"over_select must be left out with a policy, got {over_select:g} with {text!r}"
        )
    return policy_settings(with_cohort(policy, cohort) if cohort else policy)
