"""Applies the algorithm to a closed round: loads the updates, groups and averages, keeps the new models. Repeatable."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from aggregator.core.state import RoundAggregated, RunSettings, RunState, Started
from aggregator.ports import Blobs
from algorithms.algorithm import Algorithm, Contribution, State, decode_memory, encode_memory
from algorithms.contract import Grouped, Probe, Programs, Work, exchanged
from wire import names
from wire.bundle import Manifest
from wire.codec import decode_update
from wire.errors import ConfigError
from wire.tensors import OWN_FILES, Array, Tensors, decode_tensors, encode_tensors


@dataclass(frozen=True)
class Published:
    """An algorithm's state as blobs, and what follows from it for the next round."""

    models: dict[str, str]
    memory: str
    programs: Programs
    preparing: bool


def begin(settings: RunSettings, algorithm: Algorithm, probe: Probe, initial: Tensors, blobs: Blobs, at_s: float) -> Started:
    """The first event of a run.

    Raises:
        ConfigError: the algorithm's choices do not fit the bundle.
    """
    state = algorithm.begin(initial, probe, settings.seed)
    published = publish(settings, algorithm, state, blobs)
    starts = {"": algorithm.start(state.memory, "")}
    return Started(at_s, settings, published.models, published.memory, published.programs, published.preparing, starts)


def check_fit(settings: RunSettings, algorithm: Algorithm, manifest: Manifest) -> None:
    """Whether a bundle holds the device's half of an algorithm.

    Raises:
        ConfigError: it was exported for another objective, or with another privacy mechanism than the epsilon would be computed for.
    """
    if manifest.algorithm != algorithm.objective:
        raise ConfigError(f"bundle {manifest.name} was exported for the objective {manifest.algorithm!r}, not for {algorithm.objective!r}")
    for name, value in algorithm.privacy.in_step().items():
        held = {**manifest.hyper, **settings.hyper}.get(name)
        if held != value:
            text = "nothing of the kind" if held is None else f"{name} = {held:g}"
            raise ConfigError(f"algorithm {algorithm.name!r} needs a step with {name} = {value:g}; bundle {manifest.name} has {text}")


def aggregate(run: RunState, algorithm: Algorithm, probe: Probe, blobs: Blobs, at_s: float) -> RoundAggregated:
    """The event that follows `Aggregate`. The same updates give the same bytes, whenever it is done."""
    settings = run.settings
    held = _held(run, blobs)
    before = {key: exchanged(tensors) for key, tensors in held.items()}
    state = decode_memory(blobs.get(run.memory), before)
    contributions = [
        Contribution(device_id, r.num_train, r.num_steps, r.start, partial(_read, blobs, r.blob), r.trained.mean_loss)
        for device_id, r in sorted(run.received.items())
    ]
    if run.preparing:
        state, grouped = algorithm.prepare(state, contributions), Grouped(state.memory)
    else:
        state, grouped = algorithm.apply(state, contributions, probe, settings.seed * 1_000_003 + run.round, work_of(settings))
    unchanged = {key: (held[key], run.models[key]) for key in held if state.models.get(key) is before[key]}
    published = publish(settings, algorithm, state, blobs, unchanged)
    starts = {device_id: algorithm.start(state.memory, device_id) for device_id in state.memory.membership}
    return RoundAggregated(
        at_s=at_s,
        round=run.round,
        models=published.models,
        memory=published.memory,
        starts={} if run.preparing else starts | {"": algorithm.start(state.memory, "")},
        programs=published.programs,
        preparing=published.preparing,
        views=blobs.put(encode_views(grouped)) if grouped.views else "",
        notes=grouped.notes | ({"epsilon": state.epsilon} if state.epsilon is not None else {}),
    )


def load_state(run: RunState, blobs: Blobs) -> State:
    """The algorithm's state that a run's blobs hold: what `publish` kept."""
    return decode_memory(blobs.get(run.memory), {key: exchanged(tensors) for key, tensors in _held(run, blobs).items()})


def _held(run: RunState, blobs: Blobs) -> dict[str, Tensors]:
    return {key: decode_tensors(blobs.get(digest), OWN_FILES)[0] for key, digest in run.models.items()}


def work_of(settings: RunSettings) -> Work:
    """What a run's settings ask of devices in every round."""
    return Work(settings.batch_size, settings.local_epochs, settings.hyper)


def publish(
    settings: RunSettings, algorithm: Algorithm, state: State, blobs: Blobs, unchanged: Mapping[str, tuple[Tensors, str]] | None = None
) -> Published:
    """Keep an algorithm's state: each model with what goes with it, and the memory. `unchanged`: of models that stayed the same, what was
    kept with them before and its digest; it is kept anew only if something else goes with them now."""
    received = algorithm.received(state)
    models = {}
    for key, model in state.models.items():
        held, digest = (unchanged or {}).get(key, ({}, ""))
        same = (
            digest
            and names.of_role(held, names.RECEIVED).keys() == received[key].keys()
            and all(_same(held[k], v) for k, v in received[key].items())
        )
        models[key] = digest if same else blobs.put(encode_tensors({**model, **received[key]}))
    programs = algorithm.programs(state, work_of(settings), models)
    return Published(models, blobs.put(encode_memory(state)), programs, algorithm.preparing(state))


def _read(blobs: Blobs, digest: str) -> Tensors:
    return decode_update(blobs.get(digest))[1]


def _same(one: Array, two: Array) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


def encode_views(grouped: Grouped) -> bytes:
    """A round's distance matrices and whose they are, for people to look at."""
    arrays = {name: matrix.astype("float32") for name, matrix in grouped.views.items()}
    return encode_tensors(arrays, msgspec.json.encode({"device_ids": grouped.device_ids}))
