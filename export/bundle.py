"""Makes a signed bundle for devices, and the probe with which the aggregator inspects models."""

import io
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import msgspec
import torch

from algorithms.core.contract import Probe, TorchTensors
from algorithms.core.probe import PROBE_FILE, ProbeDescription
from algorithms.objectives.supervised import Supervised
from export.capture import Trace, lower, quiet, trace
from export.describe import (
    TRACE_BATCH,
    describe_graphs,
    example_inputs,
    manifest_of,
    named,
    responses_of,
    specs_of,
    to_numpy,
)
from export.lowering.executorch_program import to_executorch
from export.lowering.onnx_graph import OnnxGraph, to_onnx, to_template
from export.lowering.shared import shared_decompositions
from export.refused import refused_layers
from export.runtimes import ONNX
from export.shortcuts import no_garbage_collection
from wire.arrays import names
from wire.arrays.onnx_model import PREDICT
from wire.arrays.tensors import Tensors, TensorSpec
from wire.bundle import EXECUTORCH, Graph, Program, Window, pack
from wire.errors import ConfigError
from wire.identity.keys import PrivateKey

T = TypeVar("T")
RUNTIMES = (ONNX, EXECUTORCH)
"""Runtimes that a bundle can have graphs for.

ONNX is always among them. ExecuTorch is optional, with programs with and without XNNPACK.
"""
MAX_BATCH = 64
"""Default maximum number of examples in a batch of an ExecuTorch program.

The program's memory is planned for such a batch.
"""


@dataclass(frozen=True)
class ExportedGraphs:
    """Graphs of an objective before they are packed.

    `programs` are the programs for other runtimes than ONNX, by graph and runtime. Their file names
    are still empty.
    """

    graphs: dict[str, OnnxGraph]
    initial: Tensors
    tensors: tuple[TensorSpec, ...]
    programs: dict[str, dict[str, tuple[Program, bytes]]] = field(default_factory=dict)


def capture_graphs(
    objective: Supervised,
    window: tuple[int, ...],
    runtimes: Sequence[str] = (ONNX,),
    max_batch: int = MAX_BATCH,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> ExportedGraphs:
    """Capture every graph of an objective for each runtime.

    Args:
        objective: the objective with its model.
        window: shape of an example.
        runtimes: some of `RUNTIMES`, ONNX among them.
        max_batch: maximum number of examples in a batch of an ExecuTorch program.
        on_progress: called with the next step, such as "step: writing it for ExecuTorch".

    Raises:
        ConfigError: an operator of the model cannot be captured, or a graph draws random numbers;
            the text names it. Also if a runtime is unknown or `max_batch` is too small.
    """
    if ONNX not in runtimes or set(runtimes) - set(RUNTIMES):
        raise ConfigError(
            f"runtimes must be {ONNX}, or {ONNX} and {EXECUTORCH}, got "
            f"{', '.join(runtimes) or 'none'}"
        )
    if max_batch <= TRACE_BATCH:
        raise ConfigError(f"max_batch must be above {TRACE_BATCH}, got {max_batch}")
    # refuses graphs that draw random numbers before the slow work begins
    describe_graphs(objective, window)
    tensors = objective.initial()
    inputs, graphs, programs = example_inputs(objective, window), {}, {}
    with no_garbage_collection():
        for name, function in objective.graphs().items():
            on_progress(f"{name}: capturing it")
            traced = trace(named(function), inputs)
            on_progress(f"{name}: writing it for ONNX")
            graphs[name] = _written(to_onnx, traced, objective, window)
            if EXECUTORCH in runtimes:
                on_progress(f"{name}: writing it for ExecuTorch")
                programs[name] = _written(
                    partial(to_executorch, max_batch=max_batch), traced, objective, window
                )
            inputs = inputs | {
                names.response(name, n): torch.zeros(shape)
                for n, shape in responses_of(traced.example)
            }
    return ExportedGraphs(graphs, to_numpy(tensors), specs_of(tensors), programs)


def _written(
    write: Callable[[Trace], T], traced: Trace, objective: Supervised, window: tuple[int, ...]
) -> T:
    """Write a trace for a runtime.

    Raises:
        ConfigError: the trace cannot be written. The text names the refused layers of the model and
            the operator.
    """
    try:
        return write(traced)
    except ConfigError as error:
        if layers := refused_layers(objective, window, write):
            raise ConfigError(f"layer {', '.join(layers)}: {error}") from error
        raise


def make_bundle(
    exported: ExportedGraphs,
    *,
    name: str,
    bundle_version: int,
    objective: Supervised,
    classes: tuple[str, ...],
    window: Window,
    key: PrivateKey | None = None,
) -> bytes:
    """Pack captured graphs into a bundle, signed if there is a key.

    The same content gives the same bytes.
    """
    packages = ("shoal", "torch", "onnx", *(["executorch"] if exported.programs else []))
    created_by = {package: version(package) for package in packages} | {
        "python": platform.python_version()
    }
    files, graphs = {}, {}
    for n, graph in exported.graphs.items():
        files[f"{n}.onnx"] = graph.onnx
        programs = {}
        for runtime, (program, payload) in exported.programs.get(n, {}).items():
            file = f"{n}.{runtime.removeprefix(EXECUTORCH).removeprefix('-') or 'xnnpack'}.pte"
            files[file] = payload
            programs[runtime] = msgspec.structs.replace(program, file=file)
        template = ""
        if n == PREDICT:
            template = f"{n}.template.onnx"
            files[template] = to_template(graph)
        graphs[n] = Graph(
            f"{n}.onnx", graph.inputs, graph.outputs, responses_of(graph.shapes), programs, template
        )
    manifest = manifest_of(
        objective, exported.tensors, graphs, name, bundle_version, created_by, classes, window
    )
    return pack(manifest, files, exported.initial, key)


def save_probe(probe: Probe, model: TorchTensors, bundle: str) -> bytes:
    """Return a probe as a `torch.export` file, for an aggregator without the model's code.

    Args:
        probe: the probe.
        model: a value for each tensor that the probe reads.
        bundle: digest of the bundle that the probe belongs to.

    Raises:
        ConfigError: an operator of the model cannot be captured; the text names it.
    """

    def run(inputs: TorchTensors) -> TorchTensors:
        probabilities, met = probe.run(
            {k: v for k, v in inputs.items() if k != names.X}, inputs[names.X]
        )
        results = {"probabilities": probabilities}
        for layer, (mean, variance) in zip(probe.norm_layers, met, strict=True):
            results |= {f"mean/{layer}": mean, f"variance/{layer}": variance}
        return results

    dtype = torch.int64 if probe.of_ids else torch.float32
    traced = trace(
        run, {**model, names.X: torch.zeros(TRACE_BATCH, *probe.input_shape, dtype=dtype)}
    )
    buffer = io.BytesIO()
    read = tuple(name for name in traced.inputs if name != names.X)
    description = ProbeDescription(
        read, probe.norm_layers, probe.input_shape, probe.network, bundle, probe.of_ids
    )
    program = lower(traced, shared_decompositions())
    with quiet():
        torch.export.save(
            program,
            buffer,
            extra_files={PROBE_FILE: msgspec.json.encode(description).decode()},
        )
    return buffer.getvalue()
