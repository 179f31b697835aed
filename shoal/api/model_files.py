"""Trained models as files for other programs: ``.safetensors``, ``.pt`` and ``.onnx``.

Each group and each device has a model. A single model is also written for ExecuTorch (``.pte``) and
for Core ML (``.mlpackage``).
"""

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor, nn

from algorithms.build import probe_of
from algorithms.core.contract import TorchTensors
from algorithms.models.adoption.frozen import frozen_slot, frozen_tensors
from export.bundle import MAX_BATCH
from export.capture import NamedFunction, Trace, quiet, trace
from export.describe import example_inputs, named
from export.lowering.executorch_program import to_executorch
from export.lowering.onnx_graph import OnnxGraph, to_onnx, to_template
from export.model_file import state_file, to_safetensors_file
from host.files import file_error, write_atomically
from shoal.api.own_model import device_model, network_with, torch_tensors
from shoal.reports.model_list import INDEX, Written, remove_models
from simulation.engine.progress import HeldModels
from wire.arrays import names
from wire.arrays.onnx_model import INPUT, OUTPUT, fragment
from wire.arrays.tensors import Tensors
from wire.bundle import EXECUTORCH, Window
from wire.errors import ConfigError

FORMS = (".safetensors", ".pt", ".onnx")
"""Suffixes of the files that each model of a folder has."""
EXECUTORCH_FILE, CORE_ML = ".pte", ".mlpackage"
"""Further suffixes of the file of a single model."""


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
            raise ConfigError(file_error(f"folder {folder}", error)) from None

    def write_group(self, number: int) -> Written:
        """Write the model of a group: the tensors that its devices receive, none of their own."""
        return self._write(
            f"group-{number}", self._of_group(number), Written("", (), number, "", "", "")
        )

    def write_device(self, device_id: str, group: int | None, keeps: str) -> Written:
        """Write the model of a device with its personal tensors."""
        return self._write(
            f"device-{quote(device_id, safe='')}",
            self._of_device(device_id, keeps),
            Written("", (), group, device_id, keeps, ""),
        )

    def write_one(self, name: str, group: int, device_id: str, keeps: str) -> Written:
        """Write the model of a device, or of the group if it is "", in the form of a suffix.

        Raises:
            ConfigError: it cannot be written in this form.
        """
        path = self._folder / name
        content = self._of_device(device_id, keeps) if device_id else self._of_group(group)
        if path.suffix == CORE_ML:
            self._put_core_ml(path, content)
        else:
            self._put(name, content.payload(path.suffix))
        return Written(path.stem, (name,), None if device_id else group, device_id, keeps, "")

    def finish(self) -> tuple[Written, ...]:
        """Write the list of all models, remove the files of an earlier list, and return it."""
        remove_models(self._folder, {file for one in self._written for file in one.files})
        self._put(
            INDEX,
            (json.dumps([asdict(written) for written in self._written], indent=1) + "\n").encode(),
        )
        return tuple(self._written)

    def _of_group(self, number: int) -> "_Content":
        tensors = self._held.of_group(str(number))
        objective, whose = self._held.objective, f"group {number}"
        return _Content(
            tensors | self._frozen,
            self._about | {"name": whose},
            lambda: network_with(objective, torch_tensors(tensors), whose),
            self._network_answer,
            lambda: self._network_graph,
            example_inputs(objective, self._window.shape),
        )

    def _of_device(self, device_id: str, keeps: str) -> "_Content":
        objective, whose = self._held.objective, f"device {device_id}"
        tensors = {
            key: value
            for key, value in self._held.of_device(device_id).items()
            if names.role_of(key) != names.SLOT
        }
        return _Content(
            tensors | self._frozen,
            self._about | {"name": whose} | ({"keeps": keeps} if keeps else {}),
            lambda: device_model(objective, torch_tensors(tensors), whose),
            self._device_answer,
            lambda: self._device_graph,
            example_inputs(objective, self._window.shape),
        )

    def _write(self, name: str, content: "_Content", whose: Written) -> Written:
        files, left_out = list[str](), ""
        try:
            for form in FORMS:
                self._put(name + form, content.payload(form))
                files.append(name + form)
        except ConfigError as error:
            left_out = str(error)
        written = replace(whose, name=name, files=tuple(files), left_out=left_out)
        self._written.append(written)
        return written

    def _put(self, name: str, payload: bytes) -> None:
        try:
            write_atomically(self._folder / name, payload)
        except OSError as error:
            raise ConfigError(file_error(self._folder / name, error)) from None

    def _put_core_ml(self, path: Path, content: "_Content") -> None:
        """Write a package of Core ML that answers for one window at a time."""
        try:
            with quiet():
                import coremltools
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{path}: Core ML needs the package {error.name}: pip install coremltools"
            ) from None
        graph = _FirstOutput(content.trace().module)
        x = content.example[names.X][:1]
        try:
            with quiet(), contextlib.redirect_stderr(io.StringIO()):
                model = coremltools.convert(
                    torch.export.export(graph, (x,)).run_decompositions({}),
                    convert_to="mlprogram",
                    minimum_deployment_target=coremltools.target.iOS16,
                    compute_precision=coremltools.precision.FLOAT32,
                    inputs=[coremltools.TensorType(INPUT, shape=tuple(x.shape))],
                    outputs=[coremltools.TensorType(OUTPUT)],
                )
                model.user_defined_metadata.update(content.about)
                model.save(str(path))
        except Exception as error:  # the converter raises exceptions of many types
            raise ConfigError(
                f"{path}: the model cannot be written for Core ML: {type(error).__name__}: "
                f"{next(iter(str(error).splitlines()), '')}"
            ) from error

    @cached_property
    def _frozen(self) -> Tensors:
        """Frozen tensors, which training never changes, by the slots in which devices hold them."""
        frozen = frozen_tensors(self._held.objective.model)
        return {frozen_slot(name): value.cpu().numpy().copy() for name, value in frozen.items()}

    @cached_property
    def _device_graph(self) -> tuple[OnnxGraph, bytes]:
        """The graph of a device's answer, and the part of its file without tensors."""
        return self._graph_of(self._device_answer)

    @cached_property
    def _network_graph(self) -> tuple[OnnxGraph, bytes]:
        """The graph of the network's answer alone, and the part of its file without tensors."""
        objective = self._held.objective
        if objective.model_answers and not objective.has_memory:
            return self._device_graph
        return self._graph_of(self._network_answer)

    def _graph_of(self, answer: NamedFunction) -> tuple[OnnxGraph, bytes]:
        graph = to_onnx(trace(answer, example_inputs(self._held.objective, self._window.shape)))
        return graph, to_template(graph)

    @cached_property
    def _device_answer(self) -> NamedFunction:
        """The function from all tensors and examples to a device's answer."""
        return named(self._held.objective.graphs()["predict"])

    @cached_property
    def _network_answer(self) -> NamedFunction:
        """The function from a network's tensors and examples to its answer."""
        predict = probe_of(self._held.objective, self._window.shape).predict
        assert predict is not None
        return lambda inputs: {names.PROBABILITIES: predict(inputs, inputs[names.X])}


@dataclass(frozen=True)
class _Content:
    """A model to be written in any form."""

    tensors: Tensors
    about: Mapping[str, str]
    module: Callable[[], nn.Module]
    answer: NamedFunction
    """Function from all tensors and examples to the answer."""
    graph: Callable[[], tuple[OnnxGraph, bytes]]
    """Graph of `answer`, and the part of its file without tensors."""
    example: TorchTensors
    """Example of every input of `answer`."""

    def payload(self, form: str) -> bytes:
        """Return the content of a file with this suffix.

        Raises:
            ConfigError: the model cannot be written in this form.
        """
        match form:
            case ".safetensors":
                return to_safetensors_file(self.tensors, self.about)
            case ".pt":
                return state_file(self.module().state_dict(), self.about)
            case ".onnx":
                self.module()  # refuse a network of which devices keep a part
                captured, template = self.graph()
                read = {key: self.tensors[key] for key in captured.inputs if key != names.X}
                return template + fragment(read, self.about)
        return to_executorch(self.trace(), MAX_BATCH)[EXECUTORCH][1]

    def trace(self) -> Trace:
        """Return a trace of the answers to x (n, \\*window), with all tensors inside."""
        self.module()
        tensors = torch_tensors(self.tensors)

        def answers(inputs: TorchTensors) -> TorchTensors:
            return {names.PROBABILITIES: self.answer(tensors | inputs)[names.PROBABILITIES]}

        return trace(answers, {names.X: self.example[names.X]})


class _FirstOutput(nn.Module):
    """The module of a trace, whose only output is not in a list."""

    def __init__(self, traced: nn.Module) -> None:
        super().__init__()
        self._traced = traced

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = self._traced(x)
        return outputs[0]
