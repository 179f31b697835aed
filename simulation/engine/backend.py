"""The choice of the backend that runs the graphs.

On the processor it is the fastest that can train the objective's model here, with the reason why it
is no faster one. Device auto also measures whether a CUDA device is faster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch

from algorithms.models.reading.network import Unsupported
from algorithms.objectives.supervised import Supervised
from host.compiler import CannotCompile
from host.threads import num_cores
from simulation.engine.graphs.batched import BatchedGraphs
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.hybrid import HybridGraphs
from simulation.engine.graphs.native import NativeGraphs
from simulation.engine.measured import Workload, step_s
from simulation.engine.options import AUTO, EngineOptions
from simulation.engine.workers.local import wave_size
from simulation.settings import BackendName
from wire.bundle import Manifest
from wire.errors import ConfigError
from wire.messages import Train, Verb

TOGETHER = 128
"""Default number of devices that backend batched trains together."""
PROCESSES_FROM = 1_000
"""Number of steps of training in a run from which worker processes are worth their start."""
ENGINE_HAS = (
    "The engine in C++ supports time windows and images, with layers Conv1d, Conv2d, Linear, "
    "BatchNorm, ReLU, MaxPool, AvgPool, "
    "AdaptiveAvgPool, Flatten, GRU, LayerNorm, GELU, Dropout, MultiheadAttention and "
    "TransformerEncoder, with positions, class tokens and "
    "sums of branches. Backend auto takes another backend where it has to."
)
IN_CPP: dict[BackendName, type[NativeGraphs | HybridGraphs]] = {
    "native": NativeGraphs,
    "hybrid": HybridGraphs,
}
"""Backends of the native engine, in the order in which `auto` tries them.

`native` makes whole steps in C++, `hybrid` the layers before the head. If neither can, `auto` takes
`eager`, which runs anything.
"""


@dataclass(frozen=True)
class Backend:
    """A backend with its graphs."""

    name: BackendName
    graphs: EagerGraphs
    make: Callable[[], EagerGraphs]
    """A function that makes the same graphs in another process or on another machine."""
    threads: bool = False
    """True if the graphs run without the interpreter's lock, so that threads are enough."""
    reason: str = ""
    """Reason for this backend; empty if none was ruled out or measured."""


def training_graphs(
    programs: Mapping[str, Sequence[Verb]], objective: Supervised
) -> frozenset[str]:
    """Return the graphs with which these programs train.

    Programs that only prepare train none yet: later ones train with ``step``, if the objective has
    it.
    """
    verbs = chain.from_iterable(programs.values())
    trained = {verb.graph for verb in verbs if isinstance(verb, Train)}
    return frozenset(trained or {"step"}.intersection(objective.graphs()))


def at_a_time(backend: Backend, options: EngineOptions, workload: Workload) -> int:
    """Return the maximum number of devices that train at the same time on this machine."""
    if isinstance(backend.graphs, BatchedGraphs):
        return options.workers or TOGETHER
    if not backend.threads and workload.steps < PROCESSES_FROM:
        return 1
    return options.workers or num_cores()


def choose(
    objective: Supervised,
    manifest: Manifest,
    options: EngineOptions,
    trained: Iterable[str],
    workload: Workload | None = None,
) -> Backend:
    """Return the backend for a run that trains with the graphs `trained`.

    Device auto needs the workload.

    Raises:
        ConfigError: the backend of the options cannot run this; the text says why.
    """
    window, trained = manifest.window.shape, sorted(trained)
    if options.backend == "batched":
        if options.accelerator is None:
            raise ConfigError(
                "backend batched: torch finds no GPU here. Set device to cpu to run on the "
                "processor, where it is slower than the other backends."
            )
        return _batched(objective, window, options.accelerator, options.bf16)
    backend = _on_processor(objective, window, options.backend, trained)
    if options.device != AUTO or workload is None:
        return backend
    if options.accelerator is None:
        return _with_reason(backend, "Device auto: torch finds no CUDA device")
    on_processor = min(at_a_time(backend, options, workload), num_cores(), workload.cohort_size)

    def measured_s(candidate: Backend, together: int) -> float:
        return sum(
            step_s(candidate.graphs, objective, window, graph, workload, together)
            for graph in trained
        )

    try:
        cuda = _batched(objective, window, options.accelerator)
        on_cuda = wave_size(workload.cohort_size, at_a_time(cuda, options, workload))
        processor_s, cuda_s = measured_s(backend, on_processor), measured_s(cuda, on_cuda)
    except (ConfigError, RuntimeError, TypeError) as error:  # a driver, memory or vmap may fail
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        return _with_reason(backend, f"Device auto leaves {options.accelerator} out: {cause}")
    return _with_reason(
        cuda if cuda_s < processor_s else backend,
        f"A step takes {1000 * processor_s:.3g} ms per device on the processor, {on_processor} at "
        f"a time, and {1000 * cuda_s:.3g} ms on {options.accelerator}, {on_cuda} at a time",
    )


def _with_reason(backend: Backend, reason: str) -> Backend:
    return replace(backend, reason=". ".join(filter(None, (backend.reason, reason))))


def _batched(
    objective: Supervised, window: tuple[int, ...], device: torch.device, bf16: bool = False
) -> Backend:
    make = partial(BatchedGraphs, objective, window, device, bf16)
    try:
        return Backend("batched", make(), make)
    except ConfigError as error:
        raise ConfigError(f"backend batched: {error}") from None


def _on_processor(
    objective: Supervised, window: tuple[int, ...], backend: BackendName, trained: list[str]
) -> Backend:
    reasons: list[str] = []
    for name, kind in IN_CPP.items():
        if backend not in ("auto", name):
            continue
        try:
            make = partial(kind, objective, window, trained)
            return Backend(name, make(), make, kind is NativeGraphs, _lacks(reasons))
        except (Unsupported, CannotCompile) as error:
            if backend == name:
                raise ConfigError(f"backend {name}: {error}. {ENGINE_HAS}") from None
            reasons += [] if str(error) in reasons else [str(error)]
    make_eager = partial(EagerGraphs, objective)
    return Backend("eager", make_eager(), make_eager, reason=_lacks(reasons))


def _lacks(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    return f"The engine in C++ does not have this model or step: {'; '.join(reasons)}"
