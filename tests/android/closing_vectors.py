"""The closing plan of `personal` for Kotlin's tests: what every graph gave, run by run, and what
Python's executor made of it.

A device decides by its graphs' outputs and by the arithmetic around them. Outputs are recorded here
from eager torch over a small model, with the SHA-256 of every input; so Kotlin needs no runtime,
and notices the first input that it would have made otherwise.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from aggregator.fleet.desired import without_labels
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Work, exchanged
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from edge_client.core.ports import Graphs, Windows
from edge_client.work.executor import Executor
from export.describe import NO_FILE, describe_bundle
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from tests.support.fleets import synthetic_fleet
from wire import messages as m
from wire.arrays.tensors import Tensors, encode_tensors
from wire.bundle import pack
from wire.codec import digest, encode, encode_update
from wire.identity.keys import new_key, public_pem

ALGORITHM = "personal:memory=16"
CHOICE = "response/choose.choice"


class Recorder:
    """Runs graphs, and notes of each run which inputs it had and what it gave."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs, self.max_batch = graphs, graphs.max_batch
        self.runs: list[dict[str, object]] = []
        self.outputs: list[Tensors] = []

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph."""
        self.runs.append(
            {
                "graph": graph,
                "inputs": {
                    key: digest(encode_tensors({key: np.asarray(v)})) for key, v in inputs.items()
                },
            }
        )
        self.outputs.append(self._graphs.run(graph, inputs))
        return self.outputs[-1]


def write_closing_cases(folder: Path) -> None:
    """A signed bundle, a model, and for each device its windows, plan, runs, update, and what it
    keeps; not all keep the same candidate."""
    folder.mkdir()
    data, spec, key = synthetic_fleet(4, num_windows=60), read_algorithm(ALGORITHM), new_key()
    objective = objective_for_fleet(data, spec, 0)
    bundle = describe_bundle(objective, name=data.name, classes=data.classes, window=data.window)
    payload = pack(bundle.manifest, {NO_FILE: b""}, bundle.initial, key)
    model = exchanged(bundle.initial)
    state = make_algorithm(spec).begin(
        bundle.initial, make_probe(objective.model, data.window.shape), 0
    )
    verbs = make_algorithm(spec).programs(state, Work(16, 5), {NEWCOMER: "0" * 64})["closing"]
    (folder / "bundle.zip").write_bytes(payload)
    (folder / "trust.pem").write_bytes(public_pem(key))
    (folder / "model.safetensors").write_bytes(encode_tensors(model))
    plan = m.Plan(
        "run", 1, 2, 0, "d", digest(payload), digest(encode_tensors(model)), verbs, 11, 1e9
    )
    whole = data.devices["d1"]
    devices = {
        "all": (whole, plan),
        "few": (_labelled(data.devices["d2"], 20), plan),
        "fewest": (_labelled(data.devices["d2"], 9), plan),
        "misled": (
            replace(data.devices["d3"], train_y=(np.arange(60) * 7 // 5 % 3).astype(np.int64)),
            plan,
        ),
        "none": (_labelled(whole, 0), structs.replace(plan, verbs=without_labels(verbs))),
        "silent": (whole, structs.replace(plan, verbs=tuple(_silent(verb) for verb in verbs))),
    }
    chosen = set()
    for name, (windows, asked) in devices.items():
        case = folder / "cases" / name
        (case / "outputs").mkdir(parents=True)
        graphs = Recorder(EagerGraphs(objective))
        result = Executor(bundle, graphs, windows).execute(asked, model, {}, _no_blob)
        if CHOICE in result.tensors:
            chosen.add(int(result.tensors[CHOICE].argmax()))
        arrays = {
            part: getattr(windows, part) for part in ("train_x", "train_y", "test_x", "test_y")
        }
        arrays["unlabelled_x"] = windows.unlabelled_x.reshape(-1, *data.window.shape)
        (case / "windows.safetensors").write_bytes(encode_tensors(arrays))
        (case / "plan.json").write_bytes(encode(asked))
        (case / "runs.json").write_text(json.dumps(graphs.runs))
        for number, outputs in enumerate(graphs.outputs):
            (case / "outputs" / f"{number}.safetensors").write_bytes(
                encode_tensors({k: np.asarray(v) for k, v in outputs.items()})
            )
        metrics = result.evaluated, result.trained
        update = m.Update(
            "run",
            1,
            2,
            0,
            "d",
            result.model,
            windows.num_train,
            result.num_steps,
            *metrics,
            7,
            0.125,
        )
        (case / "update.safetensors").write_bytes(encode_update(update, result.tensors))
        (case / "after.safetensors").write_bytes(encode_tensors(result.private))
    assert len(chosen) > 1, f"the devices keep different candidates, not {chosen} alone"


def _no_blob(name: str) -> Tensors:
    raise AssertionError(f"the plan asks for blob {name}")


def _labelled(windows: Windows, count: int) -> Windows:
    x, y = windows.train_x, windows.train_y
    return replace(windows, train_x=x[:count], train_y=y[:count], unlabelled_x=x[count:])


def _silent(verb: m.Verb) -> m.Verb:
    """Return the plan for a device whose owner lets nothing of the choice leave."""
    return structs.replace(verb, report=False) if isinstance(verb, m.Apply) else verb
