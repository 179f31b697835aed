"""Trained models as files for other programs: ``.safetensors``, ``.pt`` and ``.onnx``.

Each group and each device has a model.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from torch import nn

from algorithms.build import probe_of
from algorithms.models.adoption.frozen import frozen_slot, frozen_tensors
from export.capture import trace
from export.describe import example_inputs, named
from export.lowering.onnx_graph import OnnxGraph, to_onnx, to_template
from export.model_file import state_file, to_safetensors_file
from host.files import write_atomically
from shoal.api.own_model import device_model, network_with, torch_tensors
from simulation.engine.progress import HeldModels
from wire.arrays import names
from wire.arrays.onnx_model import fragment
from wire.arrays.tensors import Tensors
from wire.bundle import Window
from wire.errors import ConfigError


@dataclass(frozen=True)
class Written:
    """The files of one model, an entry of ``models.json``.

    They are called `NAME.safetensors`, `NAME.pt` and `NAME.onnx`.
    """

    name: str
    files: tuple[str, ...]
    group: int | None
    device: str
    keeps: str
    """Candidate that a device chose; empty for a group, and if devices do not choose."""
    left_out: str
    """Reason why files are missing; empty if all three exist."""


def why_left_out(written: Iterable[Written]) -> str:
    """Return how many models lack files, with the first reason; empty if none does."""
    lacking = [one for one in written if one.left_out]
    return (
        (
            f"{len(lacking)} models without some of their files, the first {lacking[0].name}: "
            f"{lacking[0].left_out}"
        )
        if lacking
        else ""
    )


INDEX = "models.json"


class ModelFiles:
    """A writer of the models of one run into a folder, and in the end of their list."""

    def __init__(
        self, folder: Path, held: HeldModels, window: Window, about: Mapping[str, str]
    ) -> None:
        """Make the folder; `about` is the metadata of every file.

        Raises:
            ConfigError: the folder cannot be made.
        """
        self._folder, self._held, self._window, self._about = folder, held, window, dict(about)
        self._written: list[Written] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"folder {folder}: {error.strerror}") from None

    def write_group(self, number: int) -> Written:
        """Write the model of a group: the tensors that its devices receive, none of their own."""
        tensors = self._held.of_group(str(number))
        about = self._about | {"name": f"group {number}"}
        network_tensors = torch_tensors(tensors)
        return self._write(
            f"group-{number}",
            tensors,
            about,
            lambda: network_with(self._held.objective, network_tensors, f"group {number}"),
            lambda: self._network_graph,
            Written("", (), number, "", "", ""),
        )

    def write_device(self, device_id: str, group: int | None, keeps: str) -> Written:
        """Write the model of a device with its personal tensors."""
        device_tensors, objective = self._held.of_device(device_id), self._held.objective
        tensors = {
            key: value for key, value in device_tensors.items() if names.role_of(key) != names.SLOT
        }
        about = self._about | {"name": f"device {device_id}"} | ({"keeps": keeps} if keeps else {})
        return self._write(
            f"device-{quote(device_id, safe='')}",
            tensors,
            about,
            lambda: device_model(objective, torch_tensors(tensors), f"device {device_id}"),
            lambda: self._device_graph,
            Written("", (), group, device_id, keeps, ""),
        )

    def finish(self) -> tuple[Written, ...]:
        """Write the list of all models, and return it."""
        self._put(
            INDEX,
            (json.dumps([asdict(written) for written in self._written], indent=1) + "\n").encode(),
        )
        return tuple(self._written)

    def _write(
        self,
        name: str,
        tensors: Tensors,
        about: dict[str, str],
        module: Callable[[], nn.Module],
        graph: Callable[[], tuple[OnnxGraph, bytes]],
        whose: Written,
    ) -> Written:
        files, left_out = [f"{name}.safetensors"], ""
        tensors = tensors | self._frozen
        self._put(files[0], to_safetensors_file(tensors, about))
        try:
            self._put(f"{name}.pt", state_file(module().state_dict(), about))
            files.append(f"{name}.pt")
            captured, template = graph()
            read = {key: tensors[key] for key in captured.inputs if key != names.X}
            self._put(f"{name}.onnx", template + fragment(read, about))
            files.append(f"{name}.onnx")
        except ConfigError as error:
            left_out = str(error)
        written = Written(name, tuple(files), whose.group, whose.device, whose.keeps, left_out)
        self._written.append(written)
        return written

    def _put(self, name: str, payload: bytes) -> None:
        try:
            write_atomically(self._folder / name, payload)
        except OSError as error:
            raise ConfigError(f"{self._folder / name}: {error.strerror}") from None

    @cached_property
    def _frozen(self) -> Tensors:
        """Frozen tensors, which training never changes, by the slots in which devices hold them."""
        frozen = frozen_tensors(self._held.objective.model)
        return {frozen_slot(name): value.cpu().numpy().copy() for name, value in frozen.items()}

    @cached_property
    def _device_graph(self) -> tuple[OnnxGraph, bytes]:
        """The graph of a device's answer, and the part of its file without tensors."""
        objective = self._held.objective
        graph = to_onnx(
            trace(
                named(objective.graphs()["predict"]), example_inputs(objective, self._window.shape)
            )
        )
        return graph, to_template(graph)

    @cached_property
    def _network_graph(self) -> tuple[OnnxGraph, bytes]:
        """The graph of the network's answer alone, and the part of its file without tensors."""
        objective = self._held.objective
        if objective.model_answers and not objective.has_memory:
            return self._device_graph
        probe = probe_of(objective, self._window.shape)
        assert probe.predict is not None
        predict = probe.predict
        graph = to_onnx(
            trace(
                lambda inputs: {names.PROBABILITIES: predict(inputs, inputs[names.X])},
                example_inputs(objective, self._window.shape),
            )
        )
        return graph, to_template(graph)
