"""Algorithm's state as blobs, and the verbs that follow from it.

The same state gives the same bytes again.
"""

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
from algorithms.sums import (
    exchanges_in,
    has_cells,
    is_surveying,
    noise_of,
    parts_of,
    survey_parts,
    survey_programs,
    tree_of,
)
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.bundle import Manifest
from wire.errors import ConfigError
from wire.secret.question import Noise, Part


@dataclass(frozen=True)
class StoredState:
    """Algorithm's state in the blob store, and the verbs of the next round."""

    models: dict[str, str]
    """Digest of each model with its companion tensors (role ``received``), by key."""
    memory: str
    """Digest of the rest of the algorithm's state."""
    programs: Programs
    preparing: bool
    """True if the next round is a preparation."""
    parts: dict[str, dict[str, Part]]
    """Parts of each of the next questions in secret mode, as in a `Version`."""
    leaves: dict[str, str]
    """Group of each node that the secret survey has not split, by its path."""
    noise: Noise | None
    """Noise of each device in secret mode."""
    has_cells: bool
    """True if the mean compares sums over cells of devices."""

    def version(self, number: int, newcomers: str) -> Version:
        """Return the version of a round's models; `newcomers` is the key of a newcomer's."""
        return Version(
            round=number,
            models=self.models,
            memory=self.memory,
            programs=self.programs,
            newcomers=newcomers,
            parts=self.parts,
            leaves=self.leaves,
            noise=self.noise,
            has_cells=self.has_cells,
        )


def check_fit(settings: RunSettings, algorithm: Algorithm, manifest: Manifest) -> None:
    """Raise ConfigError if a bundle or a buffered campaign does not fit an algorithm.

    Raises:
        ConfigError: the bundle was exported for another objective, or with another privacy
            mechanism than the one of the epsilon; or the algorithm of a buffered run needs whole
            rounds.
    """
    grouping = algorithm.grouping
    if settings.buffer and (algorithm.coordinator.absorbs or grouping.chooses or grouping.compares):
        part = (
            f"objective {algorithm.objective!r}"
            if algorithm.coordinator.absorbs
            else f"grouping {grouping.name!r}"
        )
        raise ConfigError(
            f"algorithm {algorithm.name!r}: {part} needs whole rounds, which a buffered campaign "
            "does not have; use --policy sync"
        )
    if manifest.algorithm != algorithm.objective:
        raise ConfigError(
            f"bundle {manifest.name} was exported for the objective {manifest.algorithm!r}, not "
            f"for {algorithm.objective!r}"
        )
    for name, value in algorithm.privacy.in_step().items():
        step_value = {**manifest.hyper, **settings.hyper}.get(name)
        if step_value != value:
            text = "none" if step_value is None else f"{name} = {step_value:g}"
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
    """Store the models and the memory of an algorithm's state, and return their digests.

    Each model is stored together with its companion tensors. `unchanged`: models that the round did
    not change, by key, each as stored (with its companion tensors) and its digest. Such a model is
    stored again only if its companion tensors have changed.
    """
    models = {}
    for key in state.models:
        model = algorithm.given(state, key)
        companions = names.of_role(model, names.RECEIVED)
        last, digest = (unchanged or {}).get(key, ({}, ""))
        same = (
            digest
            and names.of_role(last, names.RECEIVED).keys() == companions.keys()
            and all(
                (last[k].dtype, last[k].shape, last[k].tobytes()) == (v.dtype, v.shape, v.tobytes())
                for k, v in companions.items()
            )
        )
        models[key] = digest if same else blobs.put(encode_tensors(model))[0]
    preparing = is_preparing(algorithm, state, settings)
    return StoredState(
        models,
        blobs.put(encode_memory(state))[0],
        _programs(algorithm, state, settings, models),
        preparing,
        question_parts(algorithm, state, settings, preparing) if settings.secret else {},
        tree_of(state).numbers if settings.secret else {},
        noise_of(algorithm, state, settings.min_sum) if settings.secret else None,
        settings.secret and has_cells(algorithm.mean),
    )


def is_preparing(algorithm: Algorithm, state: State, settings: RunSettings) -> bool:
    """Return True if the next round is a preparation."""
    surveys = settings.secret and is_surveying(algorithm, state, settings.min_sum)
    return surveys or algorithm.coordinator.preparing(state.context)


def question_parts(
    algorithm: Algorithm, state: State, settings: RunSettings, preparing: bool
) -> dict[str, dict[str, Part]]:
    """Return the parts of each of the next questions in secret mode, as in a `Version`."""
    if not preparing:
        return {key: parts_of(algorithm, state, key) for key in state.models}
    exchanges = exchanges_in(state, settings.min_sum)
    return {node: survey_parts(each, settings.responses) for node, each in exchanges.items()}


def load_state(version: Version, blobs: Blobs) -> State:
    """Return the algorithm's state that `store_state` put into the blob store."""
    return decode_memory(
        blobs.get(version.memory),
        {key: exchanged(tensors) for key, tensors in load_models(version, blobs).items()},
    )


def load_models(version: Version, blobs: Blobs) -> dict[str, Tensors]:
    """Return a version's models with their companion tensors, by key."""
    return {
        key: decode_tensors(blobs.get(digest), OWN_FILES)[0]
        for key, digest in version.models.items()
    }


def groups_in(state: State, grouping: Defaults) -> dict[str, str]:
    """Return the group of each device, from the algorithm's state."""
    members = state.memory.membership
    return state.starts | {d: grouping.start(state.memory, d) for d in members}


def programs_of(
    version: Version, settings: RunSettings, algorithm: Algorithm, blobs: Blobs, trained: int
) -> Programs:
    """Return the verbs for the models of a version after this number of rounds of training."""
    state = replace(load_state(version, blobs), rounds=trained)
    return _programs(algorithm, state, settings, version.models)


def _programs(
    algorithm: Algorithm, state: State, settings: RunSettings, digests: Mapping[str, str]
) -> Programs:
    """Return the verbs of the next round, and those of the secret survey if there is one."""
    programs = make_programs(algorithm, state, settings, digests)
    surveys = settings.secret and algorithm.grouping.surveys
    return programs | (survey_programs(state, settings.min_sum) if surveys else {})


def make_programs(
    algorithm: Algorithm, state: State, settings: TrainingSettings[Any], digests: Mapping[str, str]
) -> Programs:
    """Return the verbs of the next round and of the evaluation.

    The next round has the scheduled learning rate; the evaluation has the settings' own rate.
    `digests`: digest of each model.
    """
    work = work_of(settings)
    hyper = scheduled(settings.hyper, settings.lr_schedule, state.rounds, settings.rounds)
    return algorithm.programs(state, replace(work, hyper=hyper), digests, work, settings.secret)


def work_of(settings: TrainingSettings[Any]) -> Work:
    """Return the work of a device in every round, from these settings."""
    return Work(settings.batch_size, settings.local_epochs, settings.hyper, USUAL_PASSES)
