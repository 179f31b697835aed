"""Settings of a run; frozen and serialisable."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from aggregator.core.training import AdmissionSettings, TrainingSettings
from algorithms.schedules import check_schedule
from host.settings import about
from wire.bundle import Bundle, Layout, Manifest
from wire.errors import ConfigError
from wire.messages import Digest, Name
from wire.secret.named_keys import NamedKey
from wire.tasks import RECONSTRUCTION

Ended = Literal["", "rounds", "days", "patience", "order"]
"""Reason that no further round of training is opened.

It is a spent budget (`aggregator.fleet.budget`), or the operator's order.
"""
ADMIT_ALL: Mapping[str, Any] = {
    "min_group": 1,
    "weight_cap": 0.0,
    "norm_cap": 0.0,
    "max_drop": 1.0,
    "keep_models": 0,
}
"""Admission settings without bounds, as in a simulation."""


class RunSettings(AdmissionSettings[str], frozen=True, kw_only=True):
    """Settings of a run, from which all decisions about its rounds follow."""

    run_id: Name
    """Id of the run. In the service it has 128 random bits, so that runs of one name differ."""
    name: Name = "run-1"
    """Name of the run for people, and in the store."""
    data: str
    """Name of the data, for people."""
    bundle: Digest
    reported: dict[str, Layout]
    """Tensors that an update must have after a training with a graph, by graph."""
    responses: dict[str, Layout]
    """Tensors that an update must have after a graph was evaluated or applied, by graph."""
    min_batch: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Minimum number of training windows of a device (the bundle's, or the privacy mechanism's).

    A device with fewer windows does not train. 0: no minimum.
    """
    needs_labels: bool = True
    """True if windows without labels are useless for training (depends on the bundle's task)."""
    candidates: tuple[str, ...] = ()
    """Names of the candidates for a personal model (`algorithms.personalisation.kept`).

    Empty if devices make no personal models.
    """
    helpers: tuple[NamedKey, ...] = ()
    """Helpers of secret mode, in the order of questions; none in clear mode."""
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
        """Return the settings of a run that trains with this bundle.

        `training`: settings whose algorithm is an `AlgorithmSpec`. It gives the candidates and
        default hyper-parameters. `others`: further settings, by field.

        Raises:
            ConfigError: the bundle has no hyper-parameter of a name in `training.hyper`, or the
                objective does not allow its value.
        """
        manifest, hyper = bundle.manifest, training.algorithm.hyper_with(training.hyper)
        privacy = training.algorithm.parts.privacy
        if missing := sorted(privacy.in_step().keys() - manifest.hyper.keys()):
            raise ConfigError(
                f"algorithm {str(training.algorithm)!r} needs a step with {missing[0]}; bundle "
                f"{manifest.name} has none; export it with --privacy {privacy.name}"
            )
        if unknown := sorted(hyper.keys() - manifest.hyper.keys()):
            raise ConfigError(
                f"hyper-parameter {unknown[0]!r} (--hyper) is unknown; {manifest.algorithm} has "
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
                "min_batch": max(manifest.min_batch, privacy.min_examples),
                "needs_labels": manifest.task != RECONSTRUCTION,
                "reported": {graph: manifest.reported(graph) for graph in manifest.graphs},
                "responses": {graph: manifest.responses(graph) for graph in manifest.graphs},
            }
            | others
        )


def with_rate(hyper: Mapping[str, float], schedule: str, manifest: Manifest) -> dict[str, float]:
    """Return the hyper-parameters of a run; with a schedule, they include its learning rate.

    Raises:
        ConfigError: the bundle has no learning rate.
    """
    if not schedule or "lr" in hyper:
        return dict(hyper)
    if "lr" not in manifest.hyper:
        raise ConfigError(
            f"learning rate schedule {schedule!r}: {manifest.algorithm} has no hyper-parameter 'lr'"
        )
    return {**hyper, "lr": manifest.hyper["lr"]}
