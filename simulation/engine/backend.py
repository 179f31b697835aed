"""Which backend runs the graphs: the fastest that can train the objective's model here, and why not a faster one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from algorithms.core.contract import Objective
from algorithms.models.network import Unsupported
from edge_client.core.ports import Graphs
from host.compiler import CannotCompile, find_compiler
from simulation.engine.graphs.batched import BatchedGraphs
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.hybrid import HybridGraphs
from simulation.engine.graphs.native import NativeGraphs
from simulation.engine.options import BackendName, EngineOptions
from wire.bundle import Manifest
from wire.errors import ConfigError

ENGINE_HAS = (
    "the engine in C++ has time windows, with layers Conv1d, Linear, BatchNorm1d, ReLU, MaxPool1d, AvgPool1d, AdaptiveAvgPool1d and "
    "Flatten; backend auto takes another one where it has to"
)
COMPILE_FROM = 10_000
"""Steps of training in a run from which compiling (12 to 25 s, the first time) is worth it."""


@dataclass(frozen=True)
class Backend:
    """How graphs run."""

    name: BackendName
    graphs: Graphs
    make: Callable[[], Graphs]
    """Makes the same graphs in another process, on another machine."""
    threads: bool = False
    """Whether the graphs run without the interpreter's lock, so that threads are enough."""
    reason: str = ""
    """Why it is no faster backend; empty for the fastest."""


def choose(
    objective: Objective, manifest: Manifest, options: EngineOptions, trained: Iterable[str], batch_size: int, steps: int
) -> Backend:
    """The backend for a run of so many steps of training with the graphs `trained`.

    Raises:
        ConfigError: the backend that was asked for cannot run this; the text says why.
    """
    window, trained = manifest.window.shape, sorted(trained)
    if options.backend == "batched":
        return _batched(objective, window, options)
    reason = ""
    if options.backend in ("auto", "native"):
        try:
            make_native = partial(NativeGraphs, objective, window, trained)
            return Backend("native", make_native(), make_native, threads=True)
        except (Unsupported, CannotCompile) as error:
            if options.backend == "native":
                raise ConfigError(f"backend native: {error}; {ENGINE_HAS}") from None
            reason = str(error)
    if options.backend in ("auto", "hybrid"):
        try:
            make_hybrid = partial(HybridGraphs, objective, window, trained)
            return Backend("hybrid", make_hybrid(), make_hybrid, reason=reason)
        except (Unsupported, CannotCompile) as error:
            if options.backend == "hybrid":
                raise ConfigError(f"backend hybrid: {error}; {ENGINE_HAS}") from None
            reason += "" if str(error) == reason else f"; {error}"
    if options.backend == "compiled" or (options.backend == "auto" and steps >= COMPILE_FROM):
        from simulation.engine.graphs.compiled import CompiledGraphs  # torch's compiler takes a second to load

        try:
            find_compiler()
            make_compiled = partial(CompiledGraphs, objective, window, trained, batch_size)
            return Backend("compiled", make_compiled(), make_compiled, reason=reason)
        except CannotCompile as error:
            if options.backend == "compiled":
                raise ConfigError(f"backend compiled: {error}") from None
            reason = str(error)
    elif options.backend == "auto":
        reason += f"; {steps:,} steps are too few to compile for"
    make_eager = partial(EagerGraphs, objective)
    return Backend("eager", make_eager(), make_eager, reason=reason)


def _batched(objective: Objective, window: tuple[int, ...], options: EngineOptions) -> Backend:
    if options.accelerator is None:
        raise ConfigError("backend batched: torch finds no CUDA device here; with device cpu it would run on the processor")
    try:
        make = partial(BatchedGraphs, objective, window, options.accelerator, options.bf16)
        return Backend("batched", make(), make)
    except ConfigError as error:
        raise ConfigError(f"backend batched: {error}") from None
