"""A bundle's graphs on ExecuTorch, through the native library that `host.executorch` builds."""

import logging
from pathlib import Path

from edge_client.graphs.executorch_library import LoadedProgram, load_library
from wire.arrays.tensors import Tensors
from wire.bundle import EXECUTORCH, PORTABLE, Bundle
from wire.errors import BundleError

log = logging.getLogger("shoal.edge")


class ExecutorchGraphs:
    """A bundle's graphs as ExecuTorch programs, each loaded when its graph is first run.

    The XNNPACK program is tried first. If the runtime refuses it, the portable program of the graph
    is used and a warning is logged.
    """

    def __init__(
        self,
        bundle: Bundle,
        threads: int = 1,
        library: Path | None = None,
        runtimes: tuple[str, ...] = (EXECUTORCH, PORTABLE),
    ):
        """Check that the runtime can run the bundle's programs.

        Args:
            bundle: the bundle to run.
            threads: number of threads of the runtime.
            library: path of libshoal_executorch.so, None to build it if needed.
            runtimes: kinds of programs to try, in this order.

        Raises:
            BundleError: the bundle has no programs, its programs' batches are too small for it, or
                it was exported by a newer ExecuTorch than this runtime.
            ConfigError: the library cannot be built or loaded.
        """
        self._bundle, self._runtimes = bundle, runtimes
        self._library = load_library(library)
        self._library.shoal_set_threads(threads)
        self._programs: dict[str, LoadedProgram] = {}
        manifest = bundle.manifest
        offered = [
            p
            for graph in manifest.graphs.values()
            for name, p in graph.programs.items()
            if name in runtimes
        ]
        if not offered:
            raise BundleError(
                f"bundle {manifest.name} has no programs for {' or '.join(runtimes)}; export it "
                "with --runtimes executorch"
            )
        self.max_batch: int | None = min(program.max_batch for program in offered)
        if self.max_batch < manifest.min_batch:
            raise BundleError(
                f"bundle {manifest.name} needs batches of at least {manifest.min_batch}, and its "
                f"programs take at most {self.max_batch}"
            )
        runtime_version = self._library.shoal_executorch_version().decode()
        exporter_version = manifest.created_by.get("executorch", "")
        if _number(exporter_version) > _number(runtime_version):
            raise BundleError(
                f"bundle {manifest.name} was exported by ExecuTorch {exporter_version}, and this "
                f"runtime is older, {runtime_version}; install the same version or a newer one"
            )

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph and return its outputs by name.

        Arrays in `inputs` that the graph does not read are ignored.

        Raises:
            BundleError: the bundle has no such graph or program, an input is missing, or the
                runtime refuses the program or its inputs.
        """
        program = self._programs.get(graph) or self._load(graph)
        described = self._bundle.manifest.graphs[graph]
        if missing := [name for name in described.inputs if name not in inputs]:
            raise BundleError(f"graph {graph!r}: input {missing[0]!r} is missing")
        try:
            outputs = program.run([inputs[name] for name in described.inputs])
        except BundleError as error:
            raise BundleError(f"graph {graph!r} failed: {error}") from None
        if len(outputs) != len(described.outputs):
            raise BundleError(
                f"graph {graph!r} must have {len(described.outputs)} outputs, as in the manifest, "
                f"got {len(outputs)}"
            )
        return dict(zip(described.outputs, outputs, strict=True))

    def _load(self, graph: str) -> LoadedProgram:
        refused: list[str] = []
        for runtime in self._runtimes:
            try:
                loaded = LoadedProgram(self._library, self._bundle.program(graph, runtime)[1])
            except BundleError as error:
                refused.append(f"{runtime}: {error}")
                continue
            if refused:
                log.warning("Graph runs slower, without XNNPACK: graph=%s: %s", graph, refused[0])
            self._programs[graph] = loaded
            return loaded
        raise BundleError(f"graph {graph!r} cannot be loaded: {'; '.join(refused)}")


def _number(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: (1, 5, 1) for ``1.5.1+cpu``, () for an empty text."""
    try:
        return tuple(int(part) for part in text.split("+")[0].split(".")) if text else ()
    except ValueError:
        raise BundleError(
            f"version of ExecuTorch must be numbers between points, got {text!r}"
        ) from None
