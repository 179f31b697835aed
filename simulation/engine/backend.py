"""The choice of the backend that runs the graphs.

It is the fastest that can train the objective's model here, with the reason why it is no faster
one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from algorithms.models.reading.network import Unsupported
from algorithms.objectives.supervised import Supervised
from edge_client.core.ports import Graphs
from host.compiler import CannotCompile
from simulation.engine.graphs.batched import BatchedGraphs
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.hybrid import HybridGraphs
from simulation.engine.graphs.native import NativeGraphs
from simulation.engine.options import EngineOptions
from simulation.settings import BackendName
from wire.bundle import Manifest
from wire.errors import ConfigError

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
    graphs: Graphs
    make: Callable[[], Graphs]
    """A function that makes the same graphs in another process or on another machine."""
    threads: bool = False
    """True if the graphs run without the interpreter's lock, so that threads are enough."""
    reason: str = ""
    """Reason why no faster backend runs; empty for the fastest."""


def choose(
    objective: Supervised, manifest: Manifest, options: EngineOptions, trained: Iterable[str]
) -> Backend:
    """Return the backend for a run that trains with the graphs `trained`.

    Raises:
        ConfigError: the backend of the options cannot run this; the text says why.
    """
    window, trained = manifest.window.shape, sorted(trained)
    if options.backend == "batched":
        device = options.accelerator
        if device is None:
            raise ConfigError(
                "backend batched: torch finds no GPU here. Set device to cpu to run on the "
                "processor."
            )
        make_batched = partial(BatchedGraphs, objective, window, device, options.bf16)
        try:
            return Backend("batched", make_batched(), make_batched)
        except ConfigError as error:
            raise ConfigError(f"backend batched: {error}") from None
    reasons: list[str] = []
    for name, kind in IN_CPP.items():
        if options.backend not in ("auto", name):
            continue
        try:
            make = partial(kind, objective, window, trained)
            threads = kind is NativeGraphs
            return Backend(name, make(), make, threads, "; ".join(reasons))
        except (Unsupported, CannotCompile) as error:
            if options.backend == name:
                raise ConfigError(f"backend {name}: {error}. {ENGINE_HAS}") from None
            reasons += [] if str(error) in reasons else [str(error)]
    make_eager = partial(EagerGraphs, objective)
    return Backend("eager", make_eager(), make_eager, reason="; ".join(reasons))
