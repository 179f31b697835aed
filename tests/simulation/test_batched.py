"""Devices trained together: the same as one after the other within rounding, whatever their numbers
of examples. On the processor, or where torch finds one, on a CUDA device."""

import re
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.composition import read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.objectives.fedavg import FedAvg
from edge_client.core.ports import Windows
from export.describe import describe_bundle, to_numpy
from simulation.datasets.windows import FleetData
from simulation.engine.backend import choose
from simulation.engine.graphs.batched import BatchedGraphs, Request
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.operators import conv1d_by_product
from simulation.engine.graphs.rendezvous import Rendezvous
from simulation.engine.graphs.stacking import Examples, stack, turns
from simulation.engine.measured import Workload, step_s
from simulation.engine.options import EngineOptions
from simulation.engine.progress import RunProgress
from simulation.objective import objective_for_fleet
from simulation.settings import SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.fleets import synthetic_fleet
from tests.support.objectives import OBJECTIVES
from wire.arrays.tensors import decode_tensors
from wire.errors import ConfigError

PROCESSOR = torch.device("cpu")
PLACE = "cuda" if torch.cuda.is_available() else "cpu"
"""On the processor, or where there is a CUDA device, on that."""
TOGETHER = EngineOptions("batched", device=PLACE)
BY_THEMSELVES = ("cgau", "feddisk", "feddisk-ab")
"""Objectives whose batches hold more than examples and labels."""
OTHERS = sorted(OBJECTIVES.keys() - {"fedavg", "ditto", "dbe", "fedprox", "fedrod", *BY_THEMSELVES})


def uneven_fleet(num_devices: int = 6) -> FleetData:
    """Devices with 40, 35, 30 ... training windows: with batches of 8, last ones of 8, 3, 6, 9, 4,
    7."""
    whole = synthetic_fleet(num_devices, shift=1.0)
    cut = {
        d: Windows(w.train_x[: 40 - 5 * i], w.train_y[: 40 - 5 * i], w.test_x[i:], w.test_y[i:])
        for i, (d, w) in enumerate(whole.devices.items())
    }
    return replace(whole, devices=cut)


def run(
    algorithm: str, engine: EngineOptions, fleet: FleetData | None = None, **others: Any
) -> SimulationResult:
    settings = SimulationSettings(read_algorithm(algorithm), 2, batch_size=8, **others)
    return simulate(uneven_fleet() if fleet is None else fleet, settings, engine=engine)


def assert_close(one: SimulationResult, two: SimulationResult) -> None:
    """Check that groups and models are the same within rounding. A step of 0.005 moves a weight by
    about 0.01 in a round."""
    assert one.summary.groups == two.summary.groups
    assert one.campaign.models.keys() == two.campaign.models.keys()
    for key in one.campaign.models:
        expected, found = (
            decode_tensors(o.blobs.get(o.campaign.models[key]))[0] for o in (one, two)
        )
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=f"{key} {name}")
    for before, after in zip(one.records, two.records, strict=True):
        assert after.trained.num_examples == before.trained.num_examples
        assert after.trained.loss_sum == pytest.approx(before.trained.loss_sum, rel=1e-3)
        for device_id, metrics in before.evaluated.items():
            assert after.evaluated[device_id].num_examples == metrics.num_examples
            assert after.evaluated[device_id].loss_sum == pytest.approx(metrics.loss_sum, rel=1e-3)


@pytest.mark.representatives("distfl")
@pytest.mark.parametrize("algorithm", ["fedavg", "distfl", "ditto", "dbe", "fedprox"])
def test_the_same_as_one_after_the_other_within_rounding(algorithm: str) -> None:
    together = run(algorithm, TOGETHER)
    assert together.summary.backend == "batched"
    assert_close(run(algorithm, EngineOptions("eager")), together)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*OTHERS, "fedrod"])
def test_the_same_for_every_objective(algorithm: str) -> None:
    assert_close(run(algorithm, EngineOptions("eager")), run(algorithm, TOGETHER))


@pytest.mark.full
def test_the_same_bits_twice_and_nearly_the_same_however_many_are_together() -> None:
    one, two, waves = (
        run("ditto", msgspec.structs.replace(TOGETHER, workers=n), local_epochs=2)
        for n in (0, 0, 4)
    )
    assert one.campaign.models == two.campaign.models
    assert_close(one, waves)


def test_devices_choose_among_models_together() -> None:
    assert_close(run("ifca:k=2", EngineOptions("eager")), run("ifca:k=2", TOGETHER))


def test_a_device_that_cannot_train_does_not_keep_the_others_waiting() -> None:
    fleet = uneven_fleet()
    lame = fleet.devices["d3"]
    devices = {
        **fleet.devices,
        "d3": Windows(lame.train_x[:1], lame.train_y[:1], lame.test_x, lame.test_y),
    }
    outcome = run("fedavg", TOGETHER, replace(fleet, devices=devices))
    assert [sorted(r.evaluated) for r in outcome.records if r.phase == "training"] == [
        ["d0", "d1", "d2", "d4", "d5"]
    ] * 2


class Failing(FedAvg):
    """Its step cannot be made of six examples."""

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        if batch["y"].shape[0] == 6:
            raise RuntimeError("no step of six examples")
        return super().step(tensors, batch, hyper)


def test_a_step_that_fails_ends_the_run_and_every_thread() -> None:
    fleet, before = uneven_fleet(), threading.active_count()
    objective = Failing(objective_for_fleet(fleet, read_algorithm("fedavg"), 0).model)
    with pytest.raises(RuntimeError, match="no step of six examples"):
        simulate(
            fleet,
            SimulationSettings(read_algorithm("fedavg"), 1, batch_size=8),
            objective=objective,
            engine=TOGETHER,
        )
    assert threading.active_count() == before


def test_an_exception_in_one_plan_ends_the_run_and_every_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.active_count()
    monkeypatch.setattr("simulation.engine.workers.device_host.check_tensors", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("fedavg", TOGETHER)
    assert threading.active_count() == before


@pytest.mark.parametrize("where", ["train", "between"])
def test_an_interruption_ends_every_thread(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    def tell(told: RunProgress) -> None:
        if where == "between" and told.trained:
            interrupt()

    before = threading.active_count()
    if where == "train":
        monkeypatch.setattr(BatchedGraphs, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        simulate(
            uneven_fleet(), SimulationSettings(read_algorithm("fedavg"), 2), tell, engine=TOGETHER
        )
    assert threading.active_count() == before


def test_too_little_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(BatchedGraphs, "_train", allocate)
    with pytest.raises(
        ConfigError,
        match=f"{PLACE} has too little memory for 6 devices at a time. Set fewer workers",
    ):
        run("fedavg", TOGETHER)


def test_a_closed_meeting_keeps_nobody_waiting() -> None:
    meeting: Rendezvous[int, int] = Rendezvous()
    meeting.expect(2)
    ended = []

    def take_part(number: int) -> None:
        with meeting.taking_part():
            try:
                meeting.ask(number)
            except CancelledError:
                ended.append(number)

    threads = [threading.Thread(target=take_part, args=(i,)) for i in range(2)]
    threads[0].start()
    meeting.close()
    threads[1].start()
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == [0, 1]
    assert not meeting.joined


@given(st.lists(st.lists(st.integers(1, 4), max_size=6), min_size=1, max_size=6))
def test_turns_take_every_batch_once_in_order_and_only_batches_of_one_size(
    sizes: list[list[int]],
) -> None:
    trainings = [
        [np.full(size, 100 * row + i) for i, size in enumerate(own)]
        for row, own in enumerate(sizes)
    ]
    seen: list[list[int]] = [[] for _ in sizes]
    for rows, batches in turns(trainings):
        assert len({len(batch) for batch in batches}) == 1
        assert list(rows) == sorted(set(rows))
        for row, batch in zip(rows, batches, strict=True):
            seen[row].append(int(batch[0]) - 100 * int(row))
    assert seen == [list(range(len(own))) for own in sizes]


def test_turns_are_few_where_only_last_batches_differ() -> None:
    batches = [[np.zeros(8)] * (2 + row % 3) + [np.zeros(1 + row % 2)] for row in range(12)]
    assert len(list(turns([own * 2 for own in batches]))) == 2 * (4 + 2)


def test_devices_with_the_same_array_share_one_copy_of_it() -> None:
    same, other = np.ones(3), np.zeros(3)
    assert stack([same, other, same], PROCESSOR).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 1]]
    assert stack([same, same], PROCESSOR).shape == (2, 3)


def test_examples_leave_the_accelerator_when_there_are_too_many() -> None:
    arrays = [np.full((2, 4), i, np.float32) for i in range(3)]
    held = Examples(PROCESSOR, capacity=2 * arrays[0].nbytes)
    first = held.get(arrays[0])
    assert held.get(arrays[0]) is first
    assert held.get(arrays[1][:]) is held.get(arrays[1])
    assert held.get(arrays[2]).tolist() == arrays[2].tolist()
    assert held.get(arrays[0]) is not first


@pytest.mark.representatives("ditto")
@pytest.mark.parametrize(
    "algorithm",
    ["dbe", "ditto", "fedrod", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_no_tensor_is_left_on_the_processor(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device other than the processor torch refuses tensors of both. ``meta`` is such a
    device; it has shapes, but no values."""
    monkeypatch.setattr(
        "simulation.engine.graphs.batched._adds_up",
        lambda *given: set(given[-1]) == {"metric/loss_sum", "metric/num_correct"},
    )
    monkeypatch.setattr(
        "simulation.engine.graphs.batched.unstack", lambda tensors, count: [tensors] * count
    )
    fleet = uneven_fleet(3)
    objective = objective_for_fleet(fleet, read_algorithm(algorithm), 0)
    graphs = BatchedGraphs(objective, fleet.window.shape, torch.device("meta"))
    tensors, hyper = (
        to_numpy(objective.initial()),
        {name: np.asarray(value, np.float32) for name, value in objective.hyper.items()},
    )
    asked = [
        Request(name, tensors, {"x": w.train_x, "y": w.train_y}, hyper)
        for name in ("evaluate", "survey")
        for w in fleet.devices.values()
    ]
    asked += [
        replace(r, graph="step", batches=np.array_split(np.arange(len(r.batch["y"])), 5))
        for r in asked[:3]
    ]
    assert len(graphs.together(asked)) == 9


def test_bfloat16_rounds_more_coarsely_and_learns_the_same() -> None:
    fleet = synthetic_fleet(4)
    exact, coarse = (
        run("fedavg", engine, fleet, model="cnn4")
        for engine in (TOGETHER, msgspec.structs.replace(TOGETHER, bf16=True))
    )
    assert exact.campaign.models != coarse.campaign.models
    assert coarse.records[0].trained.loss_sum == pytest.approx(
        exact.records[0].trained.loss_sum, rel=0.05
    )


def test_what_the_backend_cannot_do_is_said() -> None:
    with pytest.raises(
        ConfigError,
        match="backend batched: cgau needs uniform/units1, uniform/units2 with every batch",
    ):
        run("cgau", TOGETHER)
    with pytest.raises(
        ConfigError, match=r"device must be auto, cpu or a CUDA device \(.+\), got 'tpu'"
    ):
        EngineOptions("batched", device="tpu")
    with pytest.raises(
        ConfigError, match="device 'cpu' needs backend batched, got backend native; leave out"
    ):
        EngineOptions("native", device="cpu")
    with pytest.raises(ConfigError, match="bf16 is only for backend batched, not for auto"):
        EngineOptions(bf16=True)


def test_an_accelerator_is_taken_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulation.engine.graphs.batched._adds_up", lambda *_: False)
    monkeypatch.setattr(EngineOptions, "accelerator", torch.device("meta"))
    fleet = synthetic_fleet(2)
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
    manifest = describe_bundle(
        objective, name=fleet.name, classes=fleet.classes, window=fleet.window
    ).manifest
    named, chosen = (
        choose(objective, manifest, EngineOptions(name), ["step"]) for name in ("batched", "auto")
    )
    assert (named.name, named.reason) == ("batched", "")
    assert (chosen.name, chosen.reason) == ("native", "")


@pytest.mark.parametrize(("slower_on_the_card", "taken"), [(100.0, "native"), (0.01, "batched")])
def test_device_auto_takes_what_is_measured_to_be_faster(
    slower_on_the_card: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.engine.options.cuda_devices", lambda: ["cpu"])

    def measured(graphs: EagerGraphs, *workload: Any) -> float:
        spent = step_s(graphs, *workload)
        return slower_on_the_card * spent if isinstance(graphs, BatchedGraphs) else spent

    monkeypatch.setattr("simulation.engine.backend.step_s", measured)
    summary = run("fedavg", EngineOptions(device="auto")).summary
    assert summary.backend == taken
    assert re.fullmatch(
        r"A step takes \S+ ms per device on the processor, \d+ at a time, "
        r"and \S+ ms on cpu, 6 at a time",
        summary.backend_reason or "",
    )


def test_device_auto_stays_on_the_processor_where_the_card_cannot_run_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simulation.engine.options.cuda_devices", lambda: ["cpu"])
    summary = run("cgau", EngineOptions(device="auto")).summary
    assert summary.backend == "eager"
    assert "Device auto leaves cpu out: backend batched: cgau needs uniform/units1" in (
        summary.backend_reason or ""
    )


@pytest.mark.parametrize(
    "problem", [RuntimeError("The NVIDIA driver is too old"), torch.OutOfMemoryError("full\nmore")]
)
def test_device_auto_stays_on_the_processor_where_the_card_fails(
    problem: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise problem

    monkeypatch.setattr("simulation.engine.options.cuda_devices", lambda: ["cpu"])
    monkeypatch.setattr("torch.nn.Module.to", fail)
    summary = run("fedavg", EngineOptions(device="auto")).summary
    cause = str(problem).splitlines()[0]
    assert summary.backend == "native"
    assert summary.backend_reason == f"Device auto leaves cpu out: {cause}"


def test_a_measurement_has_the_batches_of_the_run() -> None:
    fleet = synthetic_fleet(2)
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
    window, sizes = fleet.window.shape, []

    class Recorder(EagerGraphs):
        def train(self, graph: str, *arguments: Any) -> Any:
            sizes.append([len(batch) for batch in arguments[3]])
            return super().train(graph, *arguments)

    for examples, batch_size in ((3, 8), (20, 8), (100, 8)):
        workload = Workload(1, examples, batch_size, 1)
        assert step_s(Recorder(objective), objective, window, "step", workload, 1) > 0
    assert sizes[::4] == [[3], [8, 8], [8, 8, 8, 8]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_device_auto_says_where_there_is_no_card() -> None:
    summary = run("fedavg", EngineOptions(device="auto")).summary
    assert summary.backend_reason == "Device auto: torch finds no CUDA device"


def test_device_auto_is_for_backend_auto_on_this_machine() -> None:
    with pytest.raises(
        ConfigError, match="device 'auto' needs backend auto, got backend native; leave out"
    ):
        EngineOptions("native", device="auto")
    with pytest.raises(
        ConfigError, match="cluster 'any' cannot be used with device auto, which measures"
    ):
        EngineOptions(cluster="any", device="auto")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_backend_has_to_be_given_a_device() -> None:
    with pytest.raises(ConfigError, match="backend batched: torch finds no GPU here"):
        run("fedavg", EngineOptions("batched"))
    with pytest.raises(ConfigError, match=r"a CUDA device \(torch finds no GPU here\), got 'cuda'"):
        EngineOptions(device="cuda")
    with pytest.raises(
        ConfigError, match="device 'cpu' needs backend batched, got backend auto; leave out"
    ):
        EngineOptions(device="cpu")


@given(
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 3),
    size=st.integers(1, 4),
    biased=st.booleans(),
)
def test_a_convolution_by_a_product_is_the_same(
    stride: int, padding: int, dilation: int, size: int, biased: bool
) -> None:
    drawn = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 2, 17, generator=drawn), torch.randn(5, 2, size, generator=drawn)
    bias = torch.randn(5, generator=drawn) if biased else None
    torch.testing.assert_close(
        conv1d_by_product(x, weight, bias, stride, padding, dilation),
        torch.nn.functional.conv1d(x, weight, bias, stride, padding, dilation),
    )


def test_a_network_that_the_accelerator_cannot_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failure is that of cuDNN's recurrent units below a gradient by torch.func."""

    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    monkeypatch.setattr(FedAvg, "step", fail)
    fleet = uneven_fleet(2)
    objective = FedAvg(objective_for_fleet(fleet, read_algorithm("fedavg"), 0).model)
    with pytest.raises(ConfigError, match="fedavg: graph 'step' does not run here: Cannot access"):
        BatchedGraphs(objective, fleet.window.shape, torch.device(PLACE))


@pytest.mark.full
def test_bfloat16_goes_through_batch_norm() -> None:
    fleet = synthetic_fleet(4)
    coarse = msgspec.structs.replace(TOGETHER, bf16=True)
    exact, rounded = (run("fedavg", engine, fleet, model="tcn") for engine in (TOGETHER, coarse))
    assert rounded.records[0].trained.loss_sum == pytest.approx(
        exact.records[0].trained.loss_sum, rel=0.05
    )
