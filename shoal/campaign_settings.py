"""From the options of a campaign, as people write them, to its settings: for `shoal serve` and
`shoal campaign`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aggregator.core.round.cohort import policy_settings, read_policy, with_cohort
from algorithms.composition import AlgorithmSpec, read_algorithm, read_privacy
from algorithms.registry import CHOICES, Known
from algorithms.schedules import read_schedule
from algorithms.spec import DEFAULT_ALGORITHM, Choice
from wire.bundle import unpack
from wire.errors import ConfigError, ShoalError


def hours_of(window: str, time_zone: str) -> str:
    """The hours of ``--window`` and ``--time-zone`` as settings have them."""
    return f"{window} {time_zone}" if window else ""


def campaign_fields(bundle: Path | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `CampaignSettings` but for its name, from the values of the options
    `shoal.commands.options.CAMPAIGN`.

    Raises:
        ConfigError: the algorithm, the mechanism or a hyper-parameter cannot be read.
    """
    fields = dict(values)
    words = ("algorithm", "privacy", "lr", "policy", "window", "time_zone")
    algorithm, privacy, lr, policy, window, zone = (fields.pop(name) for name in words)
    if policy:
        fields |= with_asking(policy, fields["cohort"], fields["over_select"])
    spec = read_algorithm(algorithm or usual_algorithm(bundle))
    return fields | {
        "algorithm": with_privacy(spec, privacy).anchored(),
        "hyper": hyper_values(lr, fields["hyper"]),
        "lr_schedule": schedule_of(fields["lr_schedule"]),
        "hours": hours_of(window, zone),
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
    if parts[0] == "fedavg" and not CHOICES["personalisation"].keys() & parts:
        parts[0] = "distfl"
    if unknown := [part for part in parts if part.partition(":")[0] not in set(Known())]:
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


def hyper_values(lr: float | None, hyper: Mapping[str, float]) -> dict[str, float]:
    """Return the hyper-parameters that are given; `hyper` takes precedence over `lr`."""
    return ({} if lr is None else {"lr": lr}) | dict(hyper)


def schedule_of(text: str) -> str:
    """A learning rate's schedule as settings have it, from an option that may be empty.

    Raises:
        ConfigError: it cannot be read.
    """
    return str(read_schedule(text)) if text else ""


def with_privacy(algorithm: AlgorithmSpec, privacy: str) -> AlgorithmSpec:
    """The algorithm with the mechanism that ``--privacy`` names, if it names one.

    Raises:
        ConfigError: no such mechanism, or the algorithm has one already.
    """
    return algorithm.with_privacy(read_privacy(privacy)) if privacy else algorithm


def chosen(text: str, read: Callable[[str], Choice]) -> Choice | None:
    """What an option chooses; None where it is empty."""
    return read(text) if text else None
