"""Summary of a campaign, the contents of ``summary.json``. Pure.

docs/summary.md describes every field. A part that does not apply to a campaign is None, and is not
written.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate

import msgspec

from aggregator.fleet.budget import why_ended
from aggregator.fleet.desired import windows_of
from aggregator.fleet.records import Placed
from aggregator.view.fleet import FleetView, devices_of
from aggregator.view.round_record import SUMMED, RoundRecord
from algorithms.personalisation.kept import PersonalChoice

PACKAGES = ("shoal", "torch", "onnxruntime", "numpy", "scikit-learn", "paho-mqtt")
"""Packages whose versions a summary names."""


class Spread(msgspec.Struct, frozen=True):
    """Statistics of accuracy (or macro F1) over devices, as fractions with equal weight per device.

    None if no device has a value.
    """

    mean: float | None
    std: float | None
    worst: float | None
    worst_tenth: float | None
    """Mean over the worst tenth of the devices, rounded up to a whole number of devices."""


class DeviceSummary(msgspec.Struct, frozen=True):
    """One device."""

    group: int | None
    """Number of its group; None if it has none."""
    num_train: int
    num_test: int
    accuracy: float | None
    """Accuracy of its model after the last round on its own test examples; None if it has none."""
    loss: float | None = None
    """Mean loss of the same model on them; None if it has none, or the loss is not finite."""
    macro_f1: float | None = None
    """Macro F1 of the same model (`simulation.measures.macro_f1`).

    None without test examples, and if only accuracies were reported.
    """
    auc: float | None = None
    """AUC (`simulation.measures.macro_auc`) of several labels, or of errors with known anomalies.

    None for other tasks, and if only accuracies were reported.
    """
    mae: dict[str, float] | None = None
    """Mean absolute error of each predicted quantity, in the user's units, by name.

    None for other tasks, and if only accuracies were reported.
    """
    personal_model: PersonalChoice | None = None
    """Its personal model; None if it has reported none."""
    placed: Placed | None = None
    """Group that was found by its inputs; None if its group was found by its training."""


class KeptCounts(msgspec.Struct, frozen=True):
    """Number of devices by kind of personal model, in the order in which devices try the kinds."""

    candidates: dict[str, int]
    not_told: int


class Groups(msgspec.Struct, frozen=True):
    """Number of groups after the last round, and after each round of training."""

    count: int
    by_round: list[int]


class MessageBytes(msgspec.Struct, frozen=True):
    """Payload bytes of messages from the devices and to them."""

    up: int
    down: int


class Heterogeneity(msgspec.Struct, frozen=True):
    """Differences between the devices' training examples (`simulation.heterogeneity`)."""

    gamma: float
    label_skew: float
    example_imbalance: float


class AttackSummary(msgspec.Struct, frozen=True):
    """Result of a simulated attack (`simulation.engine.workers.attacks`)."""

    attack: str
    """Specification of the attack, from the settings."""
    attackers: list[str]
    success_rate: float | None
    told_apart: bool
    """True if no honest device shares a group with an attacker."""
    honest_accuracy: Spread


class JobCounts(msgspec.Struct, frozen=True):
    """Number of jobs on the virtual clock; each invited one was completed, dropped or late."""

    invited: int
    completed: int
    dropped: int
    late: int


class ExampleCounts(msgspec.Struct, frozen=True):
    """Training examples of all jobs, and of jobs whose update was not aggregated."""

    trained: int
    wasted: int


class VirtualTraffic(msgspec.Struct, frozen=True):
    """Bytes of all jobs, and of jobs whose update was not aggregated."""

    down: int
    up: int
    wasted: int


class Staleness(msgspec.Struct, frozen=True):
    """Number of aggregations between the model from which an update started and its own."""

    mean: float | None
    max: int


class Utilisation(msgspec.Struct, frozen=True):
    """Share of device-seconds spent on aggregated updates, and mean number of devices at work."""

    useful: float | None
    at_work: float | None


class TimeSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Costs of a run on the virtual clock (`simulation.timing.report`)."""

    virtual_s: float
    aggregations: int
    failed_rounds: int
    devices: JobCounts
    examples: ExampleCounts
    bytes: VirtualTraffic
    staleness: Staleness
    utilisation: Utilisation
    accuracy: list[tuple[float, float | None]] = []
    """Virtual time (s) and mean accuracy, by round."""
    time_to_accuracy_s: dict[str, float | None] = {}
    """Virtual time (s) at which an accuracy was reached, by accuracy; None if it was not reached.
    """


class Newcomers(Spread, frozen=True):
    """Accuracy over the devices that joined after training."""

    devices: dict[str, float | None]
    """Accuracy by device; None without test windows."""
    macro_f1: Spread | None
    """None for tasks without classes and labels."""
    placed: dict[str, Placed]
    """Group in which each device was placed, and how sure it is."""
    personal_models: dict[str, PersonalChoice | None]
    """Personal model of each device, with the reason; None if devices do not choose."""
    mae: dict[str, Spread] | None = None
    """Mean absolute error over devices, by quantity, as in `Summary`."""


class EdgeSummary(msgspec.Struct, frozen=True):
    """Processes of a demonstration's edge clients."""

    processes: int
    max_rss_bytes: int
    torch_loaded: bool


class PhonesSummary(msgspec.Struct, frozen=True):
    """Kotlin phones of a demonstration. Each is a process."""

    devices: list[str]
    max_rss_bytes: int


class Baseline(Spread, frozen=True):
    """Result of another algorithm on the same data."""

    accuracy_by_round: list[Spread]
    devices: dict[str, float | None]
    """Accuracy by device."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a campaign, final or so far."""

    algorithm: str
    data: str
    rounds: int
    preparations: int
    ended: str = ""
    """Reason why training ended before its rounds were over."""
    local_epochs: int
    seed: int
    devices: dict[str, DeviceSummary]
    accuracy: Spread
    command: str = ""
    """Command that repeats the run; empty if no command started it."""
    accuracy_is: str = ""
    """Definition of accuracy, unless it is the share of correctly classified windows."""
    macro_f1: Spread | None = None
    auc: Spread | None = None
    """AUC of several labels, or of a reconstruction with known anomalies; None for other tasks."""
    mae: dict[str, Spread] | None = None
    """Mean absolute error over devices, by quantity; the largest is the worst.

    None for other tasks.
    """
    accuracy_by_round: list[Spread]
    personal_models: KeptCounts | None = None
    """None if devices do not choose a personal model."""
    groups: Groups
    lr_by_round: list[float] = []
    """Learning rate of each round of training, if a schedule sets it."""
    epsilon: float | None
    """Privacy spent by the mechanism; None if there is none."""
    bytes: MessageBytes
    bytes_by_round: list[MessageBytes] = []
    """Total traffic up to the end of each round of training, in the order of `accuracy_by_round`.
    """
    wall_s: float
    updates_per_s: float
    backend: str = ""
    """Backend of a simulation's training steps (`simulation.engine.options`)."""
    backend_reason: str | None = None
    """Reason why no faster backend was used."""
    time: TimeSummary | None = None
    versions: dict[str, str]
    heterogeneity: Heterogeneity | None = None
    attack: AttackSummary | None = None
    labels: str = ""
    """Labelled windows per class of each simulated device (`simulation.scenario`)."""
    split: str = ""
    """Division of its windows for training and testing (`simulation.splits`)."""
    newcomers: Newcomers | None = None
    edge: EdgeSummary | None = None
    phones: PhonesSummary | None = None
    comparison: dict[str, Baseline] = {}


def summarize(view: FleetView, name: str, records: Sequence[RoundRecord], wall_s: float) -> Summary:
    """Return the summary of a campaign that took `wall_s` seconds.

    A device's accuracy is that of the model that it received after the last round.
    """
    campaign = view.fleet.campaigns[name]
    settings = campaign.settings
    training = [r for r in records if r.phase == "training"]
    preparing = [r for r in records if r.phase == "preparing"]
    final = next((r for r in reversed(records) if r.phase == "evaluating"), None)
    accuracies = accuracy_of(final) if final else {}
    losses = (
        {d: round(m.mean_loss, 6) for d, m in final.evaluated.items() if math.isfinite(m.mean_loss)}
        if final
        else {}
    )
    updates = sum(len(r.evaluated) for r in training)
    choices = final.personal_models if final else {}
    devices = {device.id: device for device in devices_of(view, name)}
    chosen = [choices[d].candidate for d in devices if d in choices]
    groups = {device_id: device.group for device_id, device in devices.items()}
    up, down = accumulate(r.bytes_up for r in records), accumulate(r.bytes_down for r in records)
    so_far = [MessageBytes(*both) for both in zip(up, down, strict=True)]
    windows = {d: windows_of(campaign, device.record) for d, device in devices.items()}
    return Summary(
        algorithm=settings.algorithm,
        data=settings.data,
        rounds=settings.rounds,
        preparations=len(preparing),
        ended=why_ended(campaign) if campaign.ended not in ("", "rounds") else "",
        local_epochs=settings.local_epochs,
        seed=settings.seed,
        devices={
            device_id: DeviceSummary(
                group=group_number(groups[device_id]),
                num_train=windows[device_id][0],
                num_test=windows[device_id][1],
                accuracy=accuracies.get(device_id),
                loss=losses.get(device_id),
                personal_model=choices.get(device_id),
                placed=device.placed,
            )
            for device_id, device in devices.items()
        },
        accuracy=spread(accuracies.values()),
        accuracy_by_round=[spread_of(r) for r in records[len(preparing) + 1 :]],
        personal_models=KeptCounts(
            {name: chosen.count(name) for name in settings.candidates},
            len(devices) - len(chosen),
        )
        if settings.candidates
        else None,
        groups=Groups(count_groups(groups), [count_groups(r.groups) for r in training]),
        lr_by_round=[r.notes["lr"] for r in training if "lr" in r.notes],
        epsilon=training[-1].notes.get("epsilon") if training else None,
        bytes=MessageBytes(
            up=sum(r.bytes_up for r in records), down=sum(r.bytes_down for r in records)
        ),
        bytes_by_round=so_far[len(preparing) :][: len(training)],
        wall_s=round(wall_s, 3),
        updates_per_s=round(updates / wall_s, 3) if wall_s > 0 else 0.0,
        versions={package: _version(package) for package in PACKAGES},
    )


def spread_of(record: RoundRecord) -> Spread:
    """Return the accuracy over devices of the models that they received in this round.

    In secret mode, it has only the mean, and not even this if there is noise in the sums.
    """
    if summed := record.notes.get(SUMMED):
        return Spread(summed.get("accuracy"), None, None, None)
    return spread(accuracy_of(record).values())


def accuracy_of(record: RoundRecord) -> dict[str, float]:
    """Return the accuracy of the model that each device received in this round, by device.

    Devices without test windows are left out.
    """
    return {
        d: m.accuracy
        for d, m in sorted(record.evaluated.items())
        if m.num_examples and math.isfinite(m.accuracy)
    }


def spread(accuracies: Iterable[float]) -> Spread:
    """Return mean, standard deviation, worst and worst tenth of accuracies, to six digits."""
    values = sorted(accuracies)
    if not values:
        return Spread(None, None, None, None)
    lowest = values[: math.ceil(len(values) / 10)]
    measures = (
        statistics.fmean(values),
        statistics.pstdev(values),
        values[0],
        statistics.fmean(lowest),
    )
    return Spread(*(round(value, 6) for value in measures))


def spread_of_errors(errors: Iterable[float]) -> Spread:
    """Return mean, standard deviation, worst and worst tenth of errors.

    The largest errors are the worst.
    """
    turned = spread(-error for error in errors)
    if turned.mean is None or turned.worst is None or turned.worst_tenth is None:
        return turned
    return Spread(-turned.mean, turned.std, -turned.worst, -turned.worst_tenth)


def group_number(key: str | None) -> int | None:
    """Return the number of the group with this key; None for a device without a group."""
    return int(key) if key is not None and key.isdigit() else None


def count_groups(starts: Mapping[str, str]) -> int:
    """Return the number of groups among the keys of devices' models."""
    return len({key for device_id, key in starts.items() if device_id and key.isdigit()})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
