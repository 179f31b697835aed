"""Content of a bundle by graph and runtime: files, sizes, memory, operators."""

from dataclasses import dataclass

from export.lowering.onnx_graph import count_operators
from export.runtimes import ONNX
from wire.bundle import Bundle


@dataclass(frozen=True)
class Row:
    """A graph for a runtime.

    `memory_bytes` is the memory that the runtime plans for tensors at the largest batch, 0 if it
    does not plan ahead. `operators` has the number of uses of each operator; those that a backend
    runs are named ``delegated/BACKEND/NAME``. `max_batch` is None if batches are not limited.
    """

    graph: str
    runtime: str
    file: str
    num_bytes: int
    max_batch: int | None
    memory_bytes: int
    operators: dict[str, int]


def inspect_bundle(bundle: Bundle) -> list[Row]:
    """Return a row for each graph and runtime, in the manifest's order, ONNX first."""
    rows = []
    for name, graph in bundle.manifest.graphs.items():
        data = bundle.graph_bytes(name)
        rows.append(Row(name, ONNX, graph.file, len(data), None, 0, count_operators(data)))
        for runtime, program in sorted(graph.programs.items()):
            size, memory = program.num_bytes, program.memory_bytes
            rows.append(
                Row(
                    name,
                    runtime,
                    program.file,
                    size,
                    program.max_batch,
                    memory,
                    dict(program.operators),
                )
            )
    return rows
