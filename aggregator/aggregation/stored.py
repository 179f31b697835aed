"""An algorithm's state as blobs, and what devices do next because of it. The same state gives the
same bytes again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from aggregator.core.settings import RunSettings
from aggregator.core.training import TrainingSettings
from aggregator.fleet.records import Version
from aggregator.ports import Blobs
from algorithms.algorithm import Algorithm, State, decode_memory, encode_memory
from algorithms.core.contract import (
    USUAL_PASSES,
    Programs,
    Work,
    exchanged,
)
from algorithms.groupings.base import Defaults
from algorithms.schedules import scheduled
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.bundle import Manifest
from wire.errors import ConfigError


@dataclass(frozen=True)
class StoredState:
    """An algorithm's state in the blob store, and what devices do next because of it."""

    models: dict[str, str]
    """By key, the digest of the model with what goes with it (role ``received``)."""
    memory: str
    """The digest of everything else that the algorithm remembers."""
    programs: Programs
    preparing: bool
    """True if the next round is a preparation."""


def check_fit(settings: RunSettings, algorithm: Algorithm, manifest: Manifest) -> None:
    """Check that a bundle holds the device's half of an algorithm, and that the algorithm can do
    without whole rounds where it has to.

    Raises:
        ConfigError: it was exported for another objective, or with another privacy mechanism than
        the epsilon would be computed for; or an
            algorithm of a buffered run needs whole rounds.
    """
    grouping = algorithm.grouping
    if settings.buffer and (algorithm.coordinator.absorbs or grouping.chooses or grouping.compares):
        part = (
            f"objective {algorithm.objective!r}"
            if algorithm.coordinator.absorbs
            else f"grouping {grouping.name!r}"
        )
        raise ConfigError(
            f"algorithm {algorithm.name!r}: {part} needs whole rounds, and a buffered campaign "
            "has none: take policy sync"
        )
    if manifest.algorithm != algorithm.objective:
        raise ConfigError(
            f"bundle {manifest.name} was exported for the objective {manifest.algorithm!r}, not "
            f"for {algorithm.objective!r}"
        )
    for name, value in algorithm.privacy.in_step().items():
        held = {**manifest.hyper, **settings.hyper}.get(name)
        if held != value:
            text = "none" if held is None else f"{name} = {held:g}"
            raise ConfigError(
                f"algorithm {algorithm.name!r} needs a step with {name} = {value:g}; bundle "
                f"{manifest.name} has {text}"
            )


def store_state(
    settings: RunSettings,
    algorithm: Algorithm,
    state: State,
    blobs: Blobs,
    unchanged: Mapping[str, tuple[Tensors, str]] | None = None,
) -> StoredState:
    """Put an algorithm's state into the blob store: each model together with what goes with it, and
    the memory.

    `unchanged` has, by key, the models that the round left as they were, each as it is stored (with
    what went with it) and its digest. Such a model is encoded and stored again only if something
    else goes with it now.
    """
    models = {}
    for key in state.models:
        given = algorithm.given(state, key)
        received = names.of_role(given, names.RECEIVED)
        held, digest = (unchanged or {}).get(key, ({}, ""))
        same = (
            digest
            and names.of_role(held, names.RECEIVED).keys() == received.keys()
            and all(
                (held[k].dtype, held[k].shape, held[k].tobytes()) == (v.dtype, v.shape, v.tobytes())
                for k, v in received.items()
            )
        )
        models[key] = digest if same else blobs.put(encode_tensors(given))[0]
    programs = make_programs(algorithm, state, settings, models)
    return StoredState(
        models,
        blobs.put(encode_memory(state))[0],
        programs,
        algorithm.coordinator.preparing(state.context),
    )


def load_state(version: Version, blobs: Blobs) -> State:
    """Return the algorithm's state as `store_state` left it in the blob store."""
    return decode_memory(
        blobs.get(version.memory),
        {key: exchanged(tensors) for key, tensors in load_models(version, blobs).items()},
    )


def load_models(version: Version, blobs: Blobs) -> dict[str, Tensors]:
    """Return a version's models with what goes with them, by key."""
    return {
        key: decode_tensors(blobs.get(digest), OWN_FILES)[0]
        for key, digest in version.models.items()
    }


def groups_in(state: State, grouping: Defaults) -> dict[str, str]:
    """Return the groups of devices by what the algorithm remembers, by device."""
    members = state.memory.membership
    return state.starts | {d: grouping.start(state.memory, d) for d in members}


def programs_of(
    version: Version, settings: RunSettings, algorithm: Algorithm, blobs: Blobs, trained: int
) -> Programs:
    """Return the verbs for the models of a version, by these settings, after so many rounds of
    training."""
    return make_programs(
        algorithm, replace(load_state(version, blobs), rounds=trained), settings, version.models
    )


def make_programs(
    algorithm: Algorithm, state: State, settings: TrainingSettings[Any], digests: Mapping[str, str]
) -> Programs:
    """Return the verbs of the next round, with the learning rate that it has by the schedule, and
    of the evaluation, with the settings' own rate. `digests` names each model's blob."""
    work = work_of(settings)
    hyper = scheduled(settings.hyper, settings.lr_schedule, state.rounds, settings.rounds)
    return algorithm.programs(state, replace(work, hyper=hyper), digests, work)


def work_of(settings: TrainingSettings[Any]) -> Work:
    """Return the work of devices in every round by these settings."""
    return Work(settings.batch_size, settings.local_epochs, settings.hyper, USUAL_PASSES)
