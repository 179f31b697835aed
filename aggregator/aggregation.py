"""Applies the algorithm to a closed round: loads the updates, groups and averages, keeps the new models. Repeatable."""

import msgspec

from aggregator.core.state import RoundAggregated, RunState
from aggregator.ports import Blobs
from algorithms.algorithm import Algorithm, Contribution, State, decode_memory, encode_memory
from algorithms.contract import Grouped, Probe
from wire.codec import decode_update
from wire.tensors import OWN_FILES, decode_tensors, encode_tensors


def aggregate(run: RunState, algorithm: Algorithm, probe: Probe, blobs: Blobs, at_s: float) -> RoundAggregated:
    """The event that follows `Aggregate`. The same updates give the same bytes, whenever it is done."""
    models = {key: decode_tensors(blobs.get(digest), OWN_FILES)[0] for key, digest in run.models.items()}
    state = State(models, decode_memory(blobs.get(run.memory)))
    contributions = [
        Contribution(device_id, r.num_train, r.num_steps, r.start, decode_update(blobs.get(r.blob))[1])
        for device_id, r in sorted(run.received.items())
    ]
    state, grouped = algorithm.apply(state, contributions, probe, run.settings.seed * 1_000_003 + run.round)
    unchanged = {key for key in state.models if key in models and state.models[key] is models[key]}
    digests = {k: run.models[k] if k in unchanged else blobs.put(encode_tensors(v)) for k, v in state.models.items()}
    starts = {device_id: algorithm.start(state.memory, device_id) for device_id in state.memory.membership}
    return RoundAggregated(
        at_s=at_s,
        round=run.round,
        models=digests,
        memory=blobs.put(encode_memory(state.memory)),
        starts=starts | {"": algorithm.start(state.memory, "")},
        views=blobs.put(_encode_views(grouped)) if grouped.views else "",
        notes=grouped.notes,
    )


def _encode_views(grouped: Grouped) -> bytes:
    arrays = {name: matrix.astype("float32") for name, matrix in grouped.views.items()}
    return encode_tensors(arrays, msgspec.json.encode({"device_ids": grouped.device_ids}))
