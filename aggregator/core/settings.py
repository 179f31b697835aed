"""What a run goes by; frozen and serialisable."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from aggregator.core.training import AdmissionSettings, TrainingSettings
from algorithms.schedules import check_schedule
from host.settings import about
from wire.bundle import Bundle, Layout, Manifest
from wire.errors import ConfigError
from wire.messages import Digest, Name
from wire.tasks import RECONSTRUCTION

Ended = Literal["", "rounds", "days", "patience", "order"]
"""Why no further round of training is opened: a budget that is spent (`aggregator.fleet.budget`),
or the operator's order."""
ADMIT_ALL: Mapping[str, Any] = {
    "min_group": 1,
    "weight_cap": 0.0,
    "norm_cap": 0.0,
    "max_drop": 1.0,
    "keep_models": 0,
}
"""Admission without bounds, as in a simulation."""


class RunSettings(AdmissionSettings[str], frozen=True, kw_only=True):
    """What a run goes by: all that the round core knows of it."""

    run_id: Name
    """128 random bits in the field: two runs of one name are two runs."""
    name: Name = "run-1"
    """What people call the run; its place in the store."""
    data: str
    """The data's name, for people."""
    bundle: Digest
    reported: dict[str, Layout]
    """By graph: what an update must carry that reports a training with it."""
    responses: dict[str, Layout]
    """By graph: what an update must carry when it was evaluated or applied."""
    min_batch: Annotated[int, msgspec.Meta(ge=0)] = 0
    """A device with fewer windows to train on cannot train (the bundle's `min_batch`); 0: all are
    asked to."""
    needs_labels: bool = True
    """True if windows without labels are of no use to training (the bundle's task)."""
    candidates: tuple[str, ...] = ()
    """The names of what devices choose from when the run is over
    (`algorithms.personalisation.kept`); empty where they do not choose."""
    min_updates: Annotated[
        int,
        about(
            "Minimum number of updates with which a round of training is aggregated.",
            live=True,
            option="",
            ge=0,
        ),
    ] = 1

    @classmethod
    def for_bundle(
        cls,
        bundle: Bundle,
        training: TrainingSettings[Any],
        *,
        run_id: Name,
        data: str,
        **others: Any,
    ) -> "RunSettings":
        """Return the settings of a run that trains with this bundle: those of `training`, whose
        algorithm is an `AlgorithmSpec`, of which candidates and hyper-parameters are read too, and
        `others`, by field.

        Raises:
            ConfigError: the bundle has no hyper-parameter of a name in `training.hyper`, or the
            objective cannot have its value.
        """
        manifest, hyper = bundle.manifest, training.algorithm.hyper_with(training.hyper)
        if unknown := sorted(hyper.keys() - manifest.hyper.keys()):
            raise ConfigError(
                f"hyper-parameter {unknown[0]!r} (--hyper): {manifest.algorithm} has "
                f"{', '.join(sorted(manifest.hyper))}"
            )
        check_schedule(training.lr_schedule, training.rounds)
        group = AdmissionSettings if isinstance(training, AdmissionSettings) else TrainingSettings
        return cls(
            **{name: getattr(training, name) for name in group.__struct_fields__}
            | {
                "algorithm": str(training.algorithm),
                "candidates": training.algorithm.candidates,
                "hyper": with_rate(hyper, training.lr_schedule, manifest),
                "run_id": run_id,
                "data": data,
                "bundle": bundle.digest,
                "min_batch": manifest.min_batch,
                "needs_labels": manifest.task != RECONSTRUCTION,
                "reported": {graph: manifest.reported(graph) for graph in manifest.graphs},
                "responses": {graph: manifest.responses(graph) for graph in manifest.graphs},
            }
            | others
        )


def with_rate(hyper: Mapping[str, float], schedule: str, manifest: Manifest) -> dict[str, float]:
    """The hyper-parameters of a run with such a schedule, the learning rate that it is about always
    among them.

    Raises:
        ConfigError: there is none.
    """
    if not schedule or "lr" in hyper:
        return dict(hyper)
    if "lr" not in manifest.hyper:
        raise ConfigError(
            f"learning rate schedule {schedule!r}: {manifest.algorithm} has no hyper-parameter 'lr'"
        )
    return {**hyper, "lr": manifest.hyper["lr"]}
