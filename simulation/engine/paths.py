"""Which way graphs run: the fastest that can train the objective's model here, and why not a faster one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from algorithms.contract import Objective
from algorithms.native.build import NoCompiler, find_compiler
from algorithms.native.plan import Unsupported
from edge_client.ports import Graphs
from simulation.engine.batched_graphs import BatchedGraphs
from simulation.engine.native_graphs import NativeGraphs
from simulation.engine.options import Engine
from simulation.torch_graphs import TorchGraphs
from wire.bundle import Manifest
from wire.errors import ConfigError

COMPILE_FROM = 10_000
"""Steps of training in a run from which compiling (12 to 25 s, the first time) is worth it."""


@dataclass(frozen=True)
class Way:
    """How graphs run. `threads`: they work without the interpreter's lock, so that threads are enough."""

    name: str
    graphs: Graphs
    make: Callable[[], Graphs]
    """Makes the same graphs in another process, on another machine."""
    threads: bool = False
    why: str = ""
    """Why it is no faster one; empty for the fastest."""


def choose(objective: Objective, manifest: Manifest, engine: Engine, trained: Iterable[str], batch_size: int, steps: int) -> Way:
    """The way for a run of so many steps of training with the graphs `trained`.

    Raises:
        ConfigError: the way that was asked for cannot be taken; the text says why.
    """
    window, why = manifest.window.shape, ""
    if engine.path == "batched" and engine.accelerator is None:
        raise ConfigError("path batched: torch finds no CUDA device here; with device cpu it would run on the processor")
    if engine.accelerator is not None and (engine.path == "batched" or (engine.path == "auto" and engine.accelerator.type != "cpu")):
        try:
            make_batched = partial(BatchedGraphs, objective, window, engine.accelerator, engine.bf16)
            return Way("batched", make_batched(), make_batched)
        except ConfigError as error:
            if engine.path == "batched":
                raise ConfigError(f"path batched: {error}") from None
            why = f"{error}; "
    if engine.path in ("auto", "native"):
        try:
            make_native = partial(NativeGraphs, objective, window, sorted(trained))
            return Way("native", make_native(), make_native, threads=True, why=why.removesuffix("; "))
        except (Unsupported, NoCompiler) as error:
            if engine.path == "native":
                raise ConfigError(f"path native: {error}") from None
            why += str(error)
    if engine.path == "compiled" or (engine.path == "auto" and steps >= COMPILE_FROM):
        from simulation.engine.compiled import CompiledGraphs  # torch's compiler takes a second to load

        try:
            find_compiler()
            make_compiled = partial(CompiledGraphs, objective, window, sorted(trained), batch_size)
            return Way("compiled", make_compiled(), make_compiled, why=why)
        except NoCompiler as error:
            if engine.path == "compiled":
                raise ConfigError(f"path compiled: {error}") from None
            why = str(error)
    elif engine.path == "auto":
        why += f"; {steps:,} steps are too few to compile for"
    make_eager = partial(TorchGraphs, objective)
    return Way("eager", make_eager(), make_eager, why=why)
