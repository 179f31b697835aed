"""How a round's models are stored: again when something changed, and not otherwise."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from aggregator.aggregation import stored
from aggregator.aggregation.stored import store_state
from aggregator.storage.memory import MemoryBlobs
from algorithms.algorithm import State
from algorithms.core.contract import ObjectiveMemory
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from simulation.contract.fleet import CHANNELS, LENGTH, WORK, Field, make_field
from tests.contracts.store import SETTINGS
from wire.arrays.tensors import Array, Tensors, decode_tensors, encode_tensors


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of the tensors of every model that is encoded, as it happens."""
    seen: list[set[str]] = []

    def watched(tensors: Mapping[str, Array], message: bytes = b"") -> bytes:
        seen.append(set(tensors))
        return encode_tensors(tensors, message)

    monkeypatch.setattr(stored, "encode_tensors", watched)
    return seen


def held(
    blobs: MemoryBlobs, state: State, following: State, digests: Mapping[str, str]
) -> dict[str, tuple[Tensors, str]]:
    return {
        k: (decode_tensors(blobs.get(digests[k]))[0], digests[k])
        for k, m in state.models.items()
        if following.models.get(k) is m
    }


def next_state(field: Field, devices: list[str]) -> State:
    probe = make_probe(field.model, (CHANNELS, LENGTH))
    return field.algorithm.apply(field.state, field.contributions(devices, 1), probe, 1, WORK)[0]


@pytest.mark.parametrize(("name", "anew"), [("ifca:k=4", 1), ("fedavg", 1), ("scaffold", 1)])
def test_models_of_a_round_that_did_not_change_are_not_encoded(
    name: str, anew: int, encoded: list[set[str]]
) -> None:
    field, blobs = make_field(name, num_devices=2), MemoryBlobs()
    settings = msgspec.structs.replace(SETTINGS, algorithm=name)
    first = store_state(settings, field.algorithm, field.state, blobs)
    assert len(encoded) == len(field.state.models)
    following = next_state(field, ["d0"])
    encoded.clear()
    again = store_state(
        settings,
        field.algorithm,
        following,
        blobs,
        held(blobs, field.state, following, first.models),
    )
    assert len(encoded) == anew
    assert len(following.models) > anew
    assert again.models == store_state(settings, field.algorithm, following, blobs).models
    assert again.models[NEWCOMER] == first.models[NEWCOMER]


def test_a_model_is_encoded_anew_when_what_goes_with_it_changes(encoded: list[set[str]]) -> None:
    field, blobs = make_field("scaffold", num_devices=2), MemoryBlobs()
    settings = msgspec.structs.replace(SETTINGS, algorithm="scaffold")
    first = store_state(settings, field.algorithm, field.state, blobs)
    arrays = {k: v + np.float32(1) for k, v in field.state.context.arrays.items()}
    changed = State(
        field.state.models, field.state.memory, ObjectiveMemory(arrays, field.state.context.info)
    )
    encoded.clear()
    again = store_state(
        settings, field.algorithm, changed, blobs, held(blobs, field.state, changed, first.models)
    )
    assert len(encoded) == 1
    assert again.models[NEWCOMER] != first.models[NEWCOMER]
    kept = decode_tensors(blobs.get(again.models[NEWCOMER]))[0]
    assert all((v == 1).all() for k, v in kept.items() if k.startswith("received/control."))
