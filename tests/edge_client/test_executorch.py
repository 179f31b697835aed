"""Programs of ExecuTorch on a device: the real runtime through the library, as a client without
torch uses it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_client.core.batches import evaluation_slices
from edge_client.graphs.executorch import ExecutorchGraphs
from edge_client.graphs.executorch_library import LoadedProgram, load_library
from edge_client.graphs.loading import RUNTIMES
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.options import graph_loader, parser
from edge_client.work.executor import Executor
from host.executorch.build import build
from simulation.datasets.windows import FleetData
from tests.support.bundles import ExportedPrograms
from wire import messages as m
from wire.arrays.tensors import Tensors
from wire.bundle import EXECUTORCH, PORTABLE, Bundle, unpack
from wire.errors import BundleError, ConfigError
from wire.identity.keys import new_key, public_pem


def plan(*verbs: m.Verb) -> m.Plan:
    return m.Plan("r", 1, 1, 0, "d0", "0" * 64, "1" * 64, verbs, 1, 9.0)


def inputs_of(bundle: Bundle, fleet: FleetData, size: int) -> Tensors:
    windows = fleet.devices["d0"]
    hyper = {f"hyper/{k}": np.asarray(v, np.float32) for k, v in bundle.manifest.hyper.items()}
    x, y = (np.concatenate([part] * 3)[:size] for part in (windows.train_x, windows.train_y))
    return {**bundle.initial, **hyper, "batch/x": x, "batch/y": y}


@pytest.mark.parametrize("runtime", [EXECUTORCH, PORTABLE])
def test_a_device_makes_the_same_update_as_with_onnxruntime(
    fleet: FleetData, exported_programs: ExportedPrograms, runtime: str
) -> None:
    bundle = exported_programs.bundle
    windows = replace(
        fleet.devices["d0"], test_x=fleet.devices["d0"].train_x, test_y=fleet.devices["d0"].train_y
    )
    model = {k: v for k, v in bundle.initial.items() if not k.startswith("slot/")}
    verbs = (m.Evaluate(), m.Train(16, 2), m.Evaluate("train", "evaluate"))
    graphs = (OnnxGraphs(bundle), ExecutorchGraphs(bundle, runtimes=(runtime,)))
    expected, found = (
        Executor(bundle, g, windows).execute(plan(*verbs), model, {}, lambda _name: {})
        for g in graphs
    )
    assert found.num_steps == expected.num_steps == 6
    assert found.trained.num_examples == expected.trained.num_examples
    assert found.trained.loss_sum == pytest.approx(expected.trained.loss_sum, rel=1e-4)
    assert abs(found.evaluated.num_correct - expected.evaluated.num_correct) <= 1
    assert found.tensors.keys() == expected.tensors.keys()
    for key, value in expected.tensors.items():
        assert found.tensors[key].dtype == value.dtype
        assert found.tensors[key].shape == value.shape
        scale = max(1e-3, float(np.abs(value).max()))
        assert float(np.abs(found.tensors[key] - value).max()) < 1e-3 * scale, key


class TestWhatTheRuntimeRefuses:
    def test_a_batch_above_the_maximum(
        self, fleet: FleetData, exported_programs: ExportedPrograms
    ) -> None:
        graphs = ExecutorchGraphs(exported_programs.bundle)
        assert graphs.max_batch == 32
        graphs.run("step", inputs_of(exported_programs.bundle, fleet, 32))
        with pytest.raises(
            BundleError,
            match=r"graph 'step' failed: input \d+ has shape \(33, 2, 32\), "
            r"expected at most \(32, 2, 32\)",
        ):
            graphs.run("step", inputs_of(exported_programs.bundle, fleet, 33))

    def test_a_plan_with_such_batches(
        self, fleet: FleetData, exported_programs: ExportedPrograms
    ) -> None:
        bundle = exported_programs.bundle
        executor = Executor(bundle, ExecutorchGraphs(bundle), fleet.devices["d0"])
        model = {k: v for k, v in bundle.initial.items() if not k.startswith("slot/")}
        with pytest.raises(
            BundleError, match="batches of 40 windows, and this device's programs take at most 32"
        ):
            executor.execute(plan(m.Train(64)), model, {}, lambda _name: {})

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("batch/x", np.zeros((8, 2, 31), np.float32), "0x"),
            ("batch/x", np.zeros((8, 64), np.float32), r"has shape \(8, 64\)"),
            ("batch/x", np.zeros((8, 2, 32)), "float64"),
            ("batch/y", np.zeros(8, np.float32), "data type 6, expected 4"),
            ("hyper/lr", np.zeros(2, np.float32), r"shape \(2\)"),
        ],
    )
    def test_other_shapes_and_types(
        self,
        fleet: FleetData,
        exported_programs: ExportedPrograms,
        name: str,
        value: np.ndarray,
        text: str,
    ) -> None:
        graphs, inputs = (
            ExecutorchGraphs(exported_programs.bundle),
            inputs_of(exported_programs.bundle, fleet, 8),
        )
        expected = graphs.run("step", inputs)
        with pytest.raises(BundleError, match=text):
            graphs.run("step", {**inputs, name: value})
        after = graphs.run("step", inputs)
        np.testing.assert_array_equal(
            after["next/shared/head.weight"], expected["next/shared/head.weight"]
        )

    def test_a_missing_input_and_an_unknown_graph(
        self, exported_programs: ExportedPrograms
    ) -> None:
        graphs = ExecutorchGraphs(exported_programs.bundle)
        with pytest.raises(BundleError, match="input 'batch/x' is missing"):
            graphs.run("evaluate", dict(exported_programs.bundle.initial))
        with pytest.raises(BundleError, match="no graph 'other'"):
            graphs.run("other", {})

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9])
    def test_a_truncated_program(self, exported_programs: ExportedPrograms, share: float) -> None:
        data = exported_programs.bundle.program("evaluate", EXECUTORCH)[1]
        with pytest.raises(BundleError, match="0x"):
            LoadedProgram(load_library(), data[: int(share * len(data))])

    def test_a_bundle_without_programs(self, exported_programs: ExportedPrograms) -> None:
        manifest = exported_programs.bundle.manifest
        bare = {
            name: msgspec.structs.replace(graph, programs={})
            for name, graph in manifest.graphs.items()
        }
        bundle = replace(
            exported_programs.bundle, manifest=msgspec.structs.replace(manifest, graphs=bare)
        )
        with pytest.raises(
            BundleError,
            match="no programs for executorch or executorch-portable; export it with --runtimes "
            "executorch",
        ):
            ExecutorchGraphs(bundle)

    def test_a_bundle_of_a_newer_exporter(self, exported_programs: ExportedPrograms) -> None:
        manifest = exported_programs.bundle.manifest
        newer = msgspec.structs.replace(
            manifest, created_by={**manifest.created_by, "executorch": "99.0"}
        )
        with pytest.raises(
            BundleError, match=r"exported by ExecuTorch 99\.0, and this runtime is older, \d"
        ):
            ExecutorchGraphs(replace(exported_programs.bundle, manifest=newer))

    def test_a_library_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "lib.so").write_bytes(b"nothing")
        with pytest.raises(ConfigError, match=r"library for ExecuTorch .*lib\.so cannot be loaded"):
            load_library(tmp_path / "lib.so")


def test_the_portable_program_takes_over_with_a_warning(
    fleet: FleetData, exported_programs: ExportedPrograms, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = exported_programs.bundle
    broken = bundle.manifest.graphs["evaluate"].programs[EXECUTORCH].file
    damaged = replace(bundle, files={**bundle.files, broken: b"nothing"})
    inputs = inputs_of(bundle, fleet, 8)
    found = ExecutorchGraphs(damaged).run("evaluate", inputs)
    assert "Graph runs slower, without XNNPACK: graph=evaluate: executorch: " in caplog.text
    expected = ExecutorchGraphs(bundle).run("evaluate", inputs)
    np.testing.assert_allclose(found["metric/loss_sum"], expected["metric/loss_sum"], rtol=1e-5)


def test_outputs_are_arrays_of_their_own(
    fleet: FleetData, exported_programs: ExportedPrograms
) -> None:
    graphs, inputs = (
        ExecutorchGraphs(exported_programs.bundle),
        inputs_of(exported_programs.bundle, fleet, 8),
    )
    first = graphs.run("step", inputs)
    kept = {k: v.copy() for k, v in first.items()}
    assert first["metric/loss_sum"].shape == ()
    graphs.run("step", {**inputs, "batch/x": inputs["batch/x"] * 2})
    for key, value in kept.items():
        np.testing.assert_array_equal(first[key], value)


def test_no_evaluation_batch_is_above_the_maximum() -> None:
    for num_examples in range(1, 200):
        slices = evaluation_slices(num_examples, 2, 64)
        assert [i for part in slices for i in range(num_examples)[part]] == list(
            range(num_examples)
        )
        assert all(2 <= part.stop - part.start <= 64 for part in slices) or num_examples == 1
    assert evaluation_slices(300, 2, None) == [slice(0, 150), slice(150, 300)]


def test_the_library_is_built_once() -> None:
    path = build()
    before = path.stat().st_mtime_ns
    assert (build(), build().stat().st_mtime_ns) == (path, before)


def test_a_client_loads_neither_torch_nor_executorch(
    exported_programs: ExportedPrograms, tmp_path: Path
) -> None:
    (tmp_path / "b.shoal").write_bytes(exported_programs.bundle.payload)
    code = f"""
import sys
from pathlib import Path
from edge_client.graphs.executorch import ExecutorchGraphs
from wire.bundle import unpack
import edge_client.main
bundle = unpack(Path({str(tmp_path / "b.shoal")!r}).read_bytes())
ExecutorchGraphs(bundle).run
print([name for name in ("torch", "executorch", "onnxruntime", "onnx") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_plain_runner_trains_as_the_client_does(
    fleet: FleetData, exported_programs: ExportedPrograms, tmp_path: Path
) -> None:
    """`shoal-train`, a C++ program without Python, leaves the same state behind."""
    bundle = exported_programs.bundle
    graph, program = bundle.manifest.graphs["step"], bundle.program("step", EXECUTORCH)[1]
    state, words, batches = inputs_of(bundle, fleet, 16), [], []
    for name in graph.inputs:
        if name.startswith("batch/"):
            words.append("batch:16")
            batches.append(state[name].tobytes())
        else:
            following = f"next/{name}"
            words.append(
                f"state:{graph.outputs.index(following)}" if following in graph.outputs else "fixed"
            )
    (tmp_path / "p.pte").write_bytes(program)
    (tmp_path / "state").write_bytes(
        b"".join(state[n].tobytes() for n in graph.inputs if not n.startswith("batch/"))
    )
    (tmp_path / "batches").write_bytes(b"".join(batches) * 3)
    command = [
        str(build().with_name("shoal-train")),
        *(str(tmp_path / n) for n in ("p.pte", "state", "out")),
        "3",
        str(tmp_path / "batches"),
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert "ms per step" in done.stdout, done.stderr
    graphs = ExecutorchGraphs(bundle)
    for _ in range(3):
        state |= {
            k.removeprefix("next/"): v
            for k, v in graphs.run("step", state).items()
            if k.startswith("next/")
        }
    expected = b"".join(state[n].tobytes() for n in graph.inputs if f"next/{n}" in graph.outputs)
    assert (tmp_path / "out").read_bytes() == expected
    short = subprocess.run(
        [*command[:4], "4", *command[5:], *words], capture_output=True, text=True
    )
    assert (short.returncode, short.stderr.strip()) == (2, "error: the file INPUTS is too short")


def test_the_bundle_names_its_programs(exported_programs: ExportedPrograms) -> None:
    bundle = unpack(exported_programs.bundle.payload)
    assert bundle.manifest.created_by["executorch"].startswith("1.")
    for name, graph in bundle.manifest.graphs.items():
        assert sorted(graph.programs) == [EXECUTORCH, PORTABLE]
        for runtime, program in graph.programs.items():
            assert program.num_bytes == len(bundle.program(name, runtime)[1])
            assert program.memory_bytes > 0
            delegated = [
                operator
                for operator in program.operators
                if operator.startswith("delegated/XnnpackBackend/")
            ]
            assert bool(delegated) == (runtime == EXECUTORCH)


class TestCommandLine:
    def test_the_runtime_is_what_was_asked_for(self, exported_programs: ExportedPrograms) -> None:
        words = ["run", "--id", "d0", "--data", "d", "--state", "s"]
        loads = {
            name: graph_loader(parser().parse_args([*words, "--runtime", name]))
            for name in RUNTIMES
        }
        assert isinstance(loads["onnx"](exported_programs.bundle), OnnxGraphs)
        assert isinstance(loads["executorch"](exported_programs.bundle), ExecutorchGraphs)
        assert isinstance(
            graph_loader(parser().parse_args(words))(exported_programs.bundle), OnnxGraphs
        )

    def test_a_library_that_is_not_there_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "trust.pem").write_bytes(public_pem(new_key()))
        paths = {"--data": "d", "--state": "s", "--trust": "trust.pem", "--library": "none.so"}
        words = ["run", "--id", "d0", "--runtime", "executorch"]
        words += [word for option, name in paths.items() for word in (option, str(tmp_path / name))]
        done = subprocess.run(
            [sys.executable, "-m", "edge_client.main", *words], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stderr.startswith("error: library for ExecuTorch")
        assert done.stderr.count("\n") == 1
