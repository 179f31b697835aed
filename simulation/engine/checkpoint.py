"""Checkpoints of a run between rounds, from which it resumes with the same bits.

The algorithm's state, the records so far and the blobs that they name are one file, which is
replaced as a whole. The private tensors of devices lie in the store's folder beside it. A repeated
round reads there the same values as the first time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aggregator.core.settings import RunSettings
from aggregator.fleet.records import Placed, Survey
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.round_record import RoundRecord
from algorithms.algorithm import decode_memory, encode_memory
from host.files import file_error, write_atomically
from simulation.engine.rounds import Snapshot
from simulation.engine.traffic import MessageScale
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.errors import ConfigError, Malformed

FILE, STORE = "run.safetensors", "kept"


class _Text(msgspec.Struct):
    settings: dict[str, Any]
    round: int
    trained: int
    finished: bool
    records: list[RoundRecord]
    models_by_device: dict[str, list[str]]
    models: dict[str, list[str]]
    """Keys of the models by version; the newest version is the empty string."""
    inputs: dict[str, Survey] = {}
    placed: dict[str, Placed] = {}
    stopped: bool = False
    resting: list[str] = []
    sets: list[list[str]] = []


class CheckpointFolder:
    """A checkpoint folder of one run.

    `settings` and `asked` identify the run; the folder of a run with other values is refused.
    """

    def __init__(self, folder: Path, settings: RunSettings, identity: Mapping[str, Any]) -> None:
        """Make the folder if it does not exist.

        Raises:
            ConfigError: the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                file_error(f"--checkpoint {folder}: the folder cannot be created", error)
            ) from None
        self.store = folder / STORE
        self._file = folder / FILE
        asked_settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
        bundle = {name: asked_settings.pop(name) for name in ("bundle", "reported", "responses")}[
            "bundle"
        ]
        self._settings: dict[str, Any] = {**asked_settings, **identity, "bundle": bundle}

    def load(self, blobs: MemoryBlobs, traffic: MessageScale) -> Snapshot | None:
        """Return the run as it was last saved, or None if the folder has no run.

        The call fills `blobs`, and in `traffic` the models that devices hold.

        Raises:
            ConfigError: the folder has another run, or a file that cannot be read.
        """
        if not self._file.exists():
            return None
        try:
            arrays, message = decode_tensors(self._file.read_bytes(), OWN_FILES)
            text = msgspec.json.decode(message, type=_Text)
        except (Malformed, msgspec.MsgspecError) as error:
            raise ConfigError(f"checkpoint {self._file} cannot be read: {error}") from None
        differing = [k for k, v in self._settings.items() if text.settings.get(k) != v]
        if differing:
            name = differing[0]
            raise ConfigError(
                f"checkpoint {self._file} is of a run with {name} {text.settings.get(name)!r}, and "
                f"this one has {self._settings[name]!r}. Use another folder."
            )
        traffic.models_by_device = text.models_by_device
        models: dict[str, dict[str, Tensors]] = {
            version: {key: {} for key in keys} for version, keys in text.models.items()
        }
        for name, value in arrays.items():
            kind, _, rest = name.partition("/")
            if kind == "blob":
                blobs.put(value.tobytes())
            elif kind == "model":
                version, key, tensor = rest.split("/", 2)
                models[version][key][tensor] = value
        older = {int(version): models[version] for version in models if version}
        state = decode_memory(arrays["memory"].tobytes(), models[""])
        surveys_and_placements = text.inputs, text.placed
        return Snapshot(
            state,
            text.round,
            text.trained,
            tuple(text.records),
            text.finished,
            *surveys_and_placements,
            older,
            text.stopped,
            frozenset(text.resting),
            tuple(tuple(devices) for devices in text.sets),
        )

    def save(self, snapshot: Snapshot, blobs: MemoryBlobs, traffic: MessageScale) -> None:
        """Save a run between two rounds."""
        arrays: Tensors = {"memory": np.frombuffer(encode_memory(snapshot.state), np.uint8)}
        versions = {
            "": snapshot.state.models,
            **{str(version): models for version, models in snapshot.older.items()},
        }
        for version, models in versions.items():
            arrays |= {
                f"model/{version}/{key}/{name}": value
                for key, model in models.items()
                for name, value in model.items()
            }
        named = {record.views for record in snapshot.records} - {""} | {
            survey.blob for survey in snapshot.inputs.values()
        }
        arrays |= {
            f"blob/{name}": np.frombuffer(blobs.get(name), np.uint8) for name in sorted(named)
        }
        text = _Text(
            self._settings,
            snapshot.round,
            snapshot.trained,
            snapshot.finished,
            list(snapshot.records),
            traffic.models_by_device,
            {v: list(models) for v, models in versions.items()},
            dict(snapshot.inputs),
            dict(snapshot.placed),
            snapshot.stopped,
            sorted(snapshot.resting),
            [list(devices) for devices in snapshot.sets],
        )
        write_atomically(self._file, encode_tensors(arrays, msgspec.json.encode(text)))
