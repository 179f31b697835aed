"""Results that the demonstration shows beside its run, for comparison.

These are FedAvg, training alone, the groups' models, and newcomers without labels.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs
from msgspec.structs import replace

from aggregator.http.pages.words import percent
from aggregator.view.round_record import RoundRecord
from aggregator.view.summary import Baseline, Spread, Summary, accuracy_of, spread
from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from simulation.settings import SimulationSettings
from simulation.simulate import simulate

NEWCOMERS = 2


def model_of_the_group(summary: Summary, records: Sequence[RoundRecord]) -> Baseline | None:
    """Return the accuracy of the group models that devices received in the last round of training.

    Nothing personal is added to the models. None without a round of training.
    """
    trained = [record for record in records if record.phase == "training"]
    if not trained:
        return None
    reached = {
        device_id: accuracy
        for device_id, accuracy in accuracy_of(trained[-1]).items()
        if device_id in summary.devices
    }
    return _comparison(spread(reached.values()), summary.accuracy_by_round[:-1], reached)


def comparison_of(summary: Summary) -> Baseline:
    """Return a finished run in the form in which another run is compared with it."""
    return _comparison(
        summary.accuracy,
        summary.accuracy_by_round,
        {d: device.accuracy for d, device in summary.devices.items()},
    )


def _comparison(
    over: Spread, by_round: list[Spread], devices: Mapping[str, float | None]
) -> Baseline:
    return Baseline(**structs.asdict(over), accuracy_by_round=by_round, devices=dict(devices))


def run_simulations(
    fleet: FleetData, settings: SimulationSettings, attack: str
) -> tuple[dict[str, Baseline], list[str]]:
    """Return comparisons by name, and the lines of newcomers without labels.

    FedAvg trains with the attackers `attack`. It is left out if it is the settings' algorithm.
    """
    fedavg = read_algorithm("fedavg")
    runs = {"alone": replace(settings, algorithm=read_algorithm("local"))}
    if settings.algorithm != fedavg:
        runs = {"fedavg": replace(settings, algorithm=fedavg, attack=attack)} | runs
    comparison = {name: comparison_of(simulate(fleet, run).summary) for name, run in runs.items()}
    return comparison, _newcomers_without_labels(fleet, settings)


def run_in_clear_mode(
    fleet: FleetData, settings: SimulationSettings
) -> tuple[dict[str, Baseline], list[str]]:
    """Return the comparison `clear`, for a run in secret mode."""
    return {"clear": comparison_of(simulate(fleet, settings).summary)}, []


def _newcomers_without_labels(fleet: FleetData, settings: SimulationSettings) -> list[str]:
    """Simulate two devices without labels that come after training; return a line for each.

    Each line has the device's group and its accuracy, beside that with FedAvg's model. A fleet of
    two devices or fewer gives no line.
    """
    if len(fleet.devices) <= NEWCOMERS:
        return []
    newcomer_settings = replace(settings, labels="none", newcomers=NEWCOMERS)
    served, plain = (
        simulate(fleet, replace(newcomer_settings, algorithm=spec)).summary
        for spec in (settings.algorithm, read_algorithm("fedavg"))
    )
    assert served.newcomers is not None
    assert plain.newcomers is not None
    lines = []
    for device_id, accuracy in served.newcomers.devices.items():
        placed = served.newcomers.placed[device_id]
        before = percent(plain.newcomers.devices[device_id])
        place = f"its inputs place it in group {placed.group} ({percent(placed.sure)} sure)"
        lines.append(
            f"{device_id}, had it come later and without labels: {place}; {percent(accuracy)}, "
            f"with FedAvg's model {before}."
        )
    return lines
