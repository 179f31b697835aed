"""Training graphs compiled ahead of time by inductor, for models that the native path does not know.

The gradient is traced into ordinary operators first, for one batch size; a smaller last batch runs uncompiled. What was compiled is kept
in the user's cache folder, by what it was made of, so that the next run of the same model loads it in an instant.
"""

import hashlib
import logging
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch._C._aoti import AOTIModelPackageLoader  # what torch._inductor's loader calls after seconds of looking at the compiler
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.contract import Objective, TorchTensors
from algorithms.native.build import NoCompiler, cache_folder
from export.describe import example_inputs
from simulation.torch_graphs import TorchGraphs

log = logging.getLogger("shoal.simulation")

OPTIONS = {"cpp.threads": 1}
"""Of inductor: workers have one thread each."""


class CompiledGraphs(TorchGraphs):
    """An objective's functions, some of them compiled for batches of `batch_size` examples of shape `window`."""

    def __init__(self, objective: Objective, window: tuple[int, ...], compiled: Iterable[str], batch_size: int) -> None:
        super().__init__(objective)
        self._batch_size = batch_size
        example = {k: v.detach().contiguous() for k, v in example_inputs(objective, window, batch_size).items()}
        self._compiled = {name: _compile(self._graphs[name], example) for name in compiled}

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        if graph in self._compiled and len(tensors["batch/x"]) == self._batch_size:
            return self._compiled[graph](tensors)
        return super().call(graph, tensors)


def _compile(function: Callable[[TorchTensors], TorchTensors], example: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    read, values, outputs = list(example), list(example.values()), list[str]()

    def positional(*values: Tensor) -> list[Tensor]:
        results = function(dict(zip(read, values, strict=True)))
        outputs[:] = results
        return list(results.values())

    with torch.no_grad():
        traced = make_fx(positional, _allow_non_fake_inputs=True)(*values)
        path = cache_folder("compiled") / f"{_digest(traced, values)}.pt2"
        if not path.exists():
            _build(traced, values, path)
        try:
            program = _load(path)
        except RuntimeError as error:
            log.warning("%s cannot be loaded (%s) and is compiled anew", path, error)
            _build(traced, values, path)
            program = _load(path)

    def run(tensors: TorchTensors) -> TorchTensors:
        results = program.boxed_run([tensors[name].contiguous() for name in read])  # compiled for these strides, and they are not checked
        return dict(zip(outputs, results, strict=True))

    return run


def _load(path: Path) -> AOTIModelPackageLoader:
    return AOTIModelPackageLoader(str(path), "model", False, 1, -1)


def _build(traced: GraphModule, values: Sequence[Tensor], path: Path) -> None:
    """Processes that build at the same time do so each for itself; the last rename wins.

    Raises:
        NoCompiler: the cache folder cannot be written.
    """
    from torch._inductor import aoti_compile_and_package  # takes two seconds to load

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, of its own parts
            program = torch.export.export(traced, tuple(values))
            made = aoti_compile_and_package(program, package_path=f"{folder}/program.pt2", inductor_configs=dict(OPTIONS))
            Path(made).replace(path)
    except OSError as error:
        raise NoCompiler(f"compiled code cannot be kept in {path.parent}: {error}") from error


def _digest(traced: GraphModule, values: Sequence[Tensor]) -> str:
    """A hash of everything that decides what is compiled: operators, constants, shapes, options, torch and the processor."""
    shapes = [(value.dtype, tuple(value.shape)) for value in values]
    made_of = (traced.code, shapes, OPTIONS, torch.__version__, platform.machine(), _processor())
    digest = hashlib.sha256(repr(made_of).encode())
    for name, value in sorted(traced.named_buffers()):  # tracing makes constants buffers
        digest.update(name.encode() + str((value.dtype, value.shape)).encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What the processor can do; its name where the system does not tell."""
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        told = []
    return next((line for line in told if line.startswith(("flags", "Features"))), platform.processor())
