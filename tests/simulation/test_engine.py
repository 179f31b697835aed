"""The fast engine against messages: the same bits, whatever the algorithm. Workers, checkpoints and
cohorts change no result."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch

from aggregator.core.policies import read_policy
from algorithms.composition import read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.models.reading.network import Unsupported
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.supervised import following_values
from edge_client.core.ports import Windows
from export.describe import example_inputs, to_numpy
from simulation.datasets.windows import FleetData
from simulation.engine.graphs.eager import EagerGraphs
from simulation.engine.graphs.hybrid import HybridGraphs
from simulation.engine.options import EngineOptions
from simulation.engine.progress import RunProgress
from simulation.engine.schedule import Drawn, Timed
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import simulate
from simulation.timing.campaign import TimedCampaign
from simulation.timing.fleet import JobSize, TimedFleet
from simulation.timing.profiles import make_profiles, read_profiles
from tests.support.engines import run, same
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.arrays.tensors import decode_tensors
from wire.bundle import Window
from wire.errors import ConfigError, ShoalError, Stalled

QUICK = [
    "fedavg",
    "distfl",
    "local",
    "scaffold",
    "fedrep",
    "lg-net",
    "ditto",
    "dbe",
    "ifca:k=2",
    "autocfl",
    "hierarchical",
    "distfl+irls+fedyogi",
]
OTHERS = sorted(OBJECTIVES.keys() - set(QUICK))


@pytest.mark.representatives("fedavg")
@pytest.mark.parametrize("algorithm", QUICK)
def test_same_bits_as_by_messages(algorithm: str) -> None:
    same(run(algorithm, "messages"), run(algorithm, "eager"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OTHERS)
def test_same_bits_as_by_messages_for_every_objective(algorithm: str) -> None:
    same(run(algorithm, "messages"), run(algorithm, "eager"))


@pytest.mark.parametrize(
    ("others", "error"),
    [
        ({"profiles": "phones"}, "profiles phones: backend messages"),
        ({"policy": "sync"}, "policy sync: backend messages"),
    ],
)
def test_messages_refuse_what_they_do_not_do(others: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        run("fedavg", "messages", **others)


def test_a_record_has_every_device_that_has_been_in_a_group_also_those_outside_its_cohort() -> None:
    outcome = run("distfl", "eager", rounds=3, cohort=3)
    known: set[str] = set()
    for record in outcome.records[:3]:
        known |= record.evaluated.keys()
        assert record.groups.keys() == known
    assert len(known) > 3
    late = {d: held.group for d, held in outcome.records[-1].placed.items()}
    assert (
        outcome.records[-1].groups
        == {d: m.group for d, m in outcome.campaign.members.items() if m.group} | late
    )


def test_messages_refuse_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="backend messages cannot write checkpoints"):
        EngineOptions("messages", checkpoint=tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    "others",
    [
        {"attack": "replace:count=2"},
        {"attack": "nan:count=2"},
        {"newcomers": 2},
    ],
)
def test_same_bits_with_attackers_and_newcomers(others: dict[str, Any]) -> None:
    same(run("distfl", "messages", **others), run("distfl", "eager", **others))


@pytest.mark.representatives("fedavg-others0")
@pytest.mark.parametrize(
    ("algorithm", "others"),
    [
        ("fedavg", {}),
        ("distfl", {"attack": "nan:count=2", "newcomers": 1}),
        ("fedrep", {"attack": "replace:count=2"}),
        ("ifca:k=2", {}),
        ("scaffold", {}),
        pytest.param("feddisk:preparations=1", {}, marks=pytest.mark.slow),
        ("fedavg+irls+local-gaussian", {}),
        ("fedavg+gaussian", {}),
    ],
)
def test_same_bits_in_int8(algorithm: str, others: dict[str, Any]) -> None:
    by_messages, fast = (
        run(algorithm, backend, update_encoding="int8", **others)
        for backend in ("messages", "eager")
    )
    same(by_messages, fast)
    plain = run(algorithm, "eager", **others)
    assert plain.campaign.models != fast.campaign.models
    assert plain.summary.bytes.up > 1.5 * fast.summary.bytes.up


@pytest.mark.representatives("distfl+fedadam")
@pytest.mark.parametrize(
    "algorithm",
    [
        "distfl+fedadam",
        "ditto",
        pytest.param("feddisk:preparations=2", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_goes_on_with_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    whole = run(algorithm, "eager", rounds=3)
    seen: list[int] = []

    def stop(told: RunProgress) -> None:
        seen.append(told.trained)
        if len(seen) == 2:
            raise KeyboardInterrupt

    settings, fleet = (
        SimulationSettings(read_algorithm(algorithm), 3, batch_size=8),
        synthetic_fleet(8, shift=1.0),
    )
    with pytest.raises(KeyboardInterrupt):
        simulate(fleet, settings, stop, engine=EngineOptions("eager", checkpoint=tmp_path))
    again: list[int] = []
    resumed = simulate(
        fleet,
        settings,
        lambda told: again.append(told.trained),
        engine=EngineOptions("eager", checkpoint=tmp_path),
    )
    assert again[0] == seen[-1]
    same(whole, resumed)
    finished = simulate(
        fleet,
        settings,
        lambda _: pytest.fail("nothing is left to do"),
        engine=EngineOptions("eager", checkpoint=tmp_path),
    )
    assert finished.campaign.models == whole.campaign.models
    with pytest.raises(ConfigError, match="is of a run with seed 0, and this one has 1"):
        simulate(
            fleet,
            msgspec.structs.replace(settings, seed=1),
            engine=EngineOptions("eager", checkpoint=tmp_path),
        )


@pytest.mark.full
def test_worker_processes_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.engine.backend.PROCESSES_FROM", 0)
    for algorithm in ("distfl", "ditto"):
        settings = SimulationSettings(read_algorithm(algorithm), 2, batch_size=8)
        outcome = simulate(
            synthetic_fleet(8, shift=1.0), settings, engine=EngineOptions("eager", workers=3)
        )
        same(run(algorithm, "eager"), outcome)


class Fatal(FedAvg):
    """Its step ends the process, as a machine without memory does."""

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        if batch["y"].shape[0] == 8:  # not the example by which the graphs are described
            os._exit(9)
        return super().step(tensors, batch, hyper)


@pytest.mark.full
def test_a_worker_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.engine.backend.PROCESSES_FROM", 0)
    fleet = synthetic_fleet(4)
    objective = Fatal(objective_for_fleet(fleet, read_algorithm("fedavg"), 0).model)
    settings = SimulationSettings(read_algorithm("fedavg"), 1, batch_size=8)
    with pytest.raises(
        ShoalError, match="A worker process of the simulation ended, perhaps for lack of memory"
    ):
        simulate(fleet, settings, objective=objective, engine=EngineOptions("eager", workers=2))


@pytest.mark.representatives("fedavg")
@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedrep", "fedbabu", "distfl"])
def test_the_native_backend_gives_the_same_within_rounding(algorithm: str) -> None:
    eager, native = run(algorithm, "eager"), run(algorithm, "native")
    assert (eager.summary.backend, native.summary.backend) == ("eager", "native")
    assert native.summary.groups == eager.summary.groups
    for key, digest in eager.campaign.models.items():
        expected, found = (
            decode_tensors(o.blobs.get(o.campaign.models[key]))[0] for o in (eager, native)
        )
        for name, value in expected.items():
            np.testing.assert_allclose(
                found[name], value, atol=2e-4, err_msg=f"{key} {name} {digest}"
            )
    assert native.summary.accuracy.mean == pytest.approx(eager.summary.accuracy.mean, abs=0.05)


def of_images(fleet: FleetData) -> FleetData:
    """Return the signals as images, of 8 lines with 4 pixels."""
    shape = lambda x: np.ascontiguousarray(x.reshape(len(x), 2, 8, 4))  # noqa: E731
    devices = {
        d: Windows(shape(w.train_x), w.train_y, shape(w.test_x), w.test_y)
        for d, w in fleet.devices.items()
    }
    return replace(fleet, window=Window(("a", "b"), 4, 1, height=8), devices=devices)


@pytest.mark.representatives("fedavg-native-cnn2-bn-True", "*-hybrid-tcn-False")
@pytest.mark.parametrize(("model", "images"), [("cnn2-bn", True), ("tcn", False), ("tcn", True)])
@pytest.mark.parametrize(("algorithm", "backend"), [("fedavg", "native"), ("dbe", "hybrid")])
def test_images_dilation_and_sums_give_the_same_within_rounding(
    model: str, images: bool, algorithm: str, backend: str
) -> None:
    settings = SimulationSettings(read_algorithm(algorithm), 1, batch_size=8, model=model)
    fleet = of_images(synthetic_fleet(3)) if images else synthetic_fleet(3)
    eager, fast = (
        simulate(fleet, settings, engine=EngineOptions(name)) for name in ("eager", "auto")
    )
    assert fast.summary.backend == backend
    expected, found = (
        decode_tensors(o.blobs.get(o.campaign.models["0"]))[0] for o in (eager, fast)
    )
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, atol=5e-4 * max(1.0, float(np.abs(value).max())), err_msg=name
        )


def test_a_step_that_is_more_than_sgd_runs_half_in_the_engine_and_says_why() -> None:
    outcome = run("dbe", "auto", rounds=1)
    assert outcome.summary.backend == "hybrid"
    assert "of fedavg+dbe is more than plain SGD" in known(outcome.summary.backend_reason)
    with pytest.raises(ConfigError, match=r"backend native: graph '.*' of fedavg\+dbe is more"):
        run("dbe", "native")
    with pytest.raises(
        ConfigError,
        match="backend must be one of auto, native, hybrid, eager, batched, messages, got 'fast'",
    ):
        EngineOptions("fast")  # type: ignore[arg-type]  # that it is none is what is tested


def test_steps_that_look_into_the_layers_run_by_torch_alone_and_say_why() -> None:
    outcome = run("dp-sgd:noise_multiplier=0.01", "auto", rounds=1)
    assert outcome.summary.backend == "eager"
    assert "read single layers of the model" in known(outcome.summary.backend_reason)


def test_a_run_whose_first_round_only_prepares_has_the_backend_of_later_rounds() -> None:
    outcome = run("fedpcl", "auto", rounds=1)
    assert outcome.summary.backend != "native"
    assert "fedpcl" in known(outcome.summary.backend_reason)


@pytest.mark.parametrize("name", ["gaussian", "local-gaussian", "dp-sgd"])
def test_a_privacy_budget_is_spent_by_the_rounds_planned_and_told_before_them(name: str) -> None:
    events: list[RunProgress] = []
    settings = SimulationSettings(
        algorithm="fedavg", privacy=f"{name}:epsilon=8:delta=1e-4", rounds=2, batch_size=8
    )
    outcome = simulate(synthetic_fleet(3), settings, events.append)
    epsilon = known(outcome.summary.epsilon)
    assert 7.8 <= epsilon <= 8
    assert f"{name} with noise_multiplier=" in events[0].privacy
    assert events[0].privacy.endswith(f"2 rounds cost epsilon={epsilon:.4g} at delta=0.0001")
    assert not any(event.privacy for event in events[1:])


def test_a_device_below_the_privacy_mechanisms_minimum_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_examples of dp-sgd must be at most"):
        run("dp-sgd:epsilon=8:min_examples=5000", "auto", rounds=1)


@pytest.mark.parametrize("privacy", ["", "+local-gaussian"])
def test_a_learning_rate_that_is_too_high_is_named(privacy: str) -> None:
    with pytest.raises(Stalled, match=r"8 of 8 devices sent nothing usable.*rate.* too high"):
        run(f"fedavg{privacy}", "eager", hyper={"lr": 1e30})


def test_a_training_in_one_call_is_the_same_as_batch_by_batch() -> None:
    fleet = synthetic_fleet(1)
    ((_, windows),) = fleet.devices.items()
    objective = objective_for_fleet(fleet, read_algorithm("fedavg"), 0)
    graphs, tensors = EagerGraphs(objective), to_numpy(objective.initial())
    hyper = {"hyper/lr": np.asarray(0.1, np.float32), "hyper/momentum": np.asarray(0.9, np.float32)}
    batches = [np.arange(0, 8), np.arange(8, 14)]
    whole = graphs.train("step", tensors, windows.train_x, windows.train_y, batches, hyper)
    loss = 0.0
    for chosen in batches:
        outputs = graphs.run(
            "step",
            tensors
            | {"batch/x": windows.train_x[chosen], "batch/y": windows.train_y[chosen]}
            | hyper,
        )
        tensors |= {k.removeprefix("next/"): v for k, v in outputs.items() if k.startswith("next/")}
        loss += float(outputs["metric/loss_sum"])
    assert float(whole.pop("metric/loss_sum")) == loss
    assert whole.pop("metric/num_correct") >= 0
    for name, value in whole.items():
        np.testing.assert_array_equal(value, tensors[name.removeprefix("next/")], err_msg=name)


def test_a_cohort_is_drawn_anew_every_round() -> None:
    outcome = simulate(
        synthetic_fleet(8), SimulationSettings(read_algorithm("fedavg"), 4, cohort=3)
    )
    cohorts = [sorted(r.evaluated) for r in outcome.records if r.phase == "training"]
    assert [len(c) for c in cohorts] == [3, 3, 3, 3]
    assert len({tuple(c) for c in cohorts}) > 1
    assert len(outcome.records[-1].evaluated) == 8


@pytest.mark.parametrize("seed", range(3))
def test_the_same_devices_are_drawn_in_the_same_rounds_as_in_a_service(seed: int) -> None:
    settings = SimulationSettings(read_algorithm("fedavg"), 4, cohort=3, batch_size=8, seed=seed)

    def cohorts(backend: BackendName, profiles: str = "") -> list[list[str]]:
        chosen = msgspec.structs.replace(settings, profiles=profiles)
        outcome = simulate(synthetic_fleet(8), chosen, engine=EngineOptions(backend))
        return [sorted(r.evaluated) for r in outcome.records if r.phase == "training"]

    assert cohorts("messages") == cohorts("eager") == cohorts("eager", profiles="uniform")


@pytest.mark.parametrize(("devices", "cohort"), [(40, 7), (300, 300), (1200, 600)])
def test_cohorts_without_a_clock_are_those_of_the_machine(devices: int, cohort: int) -> None:
    ids = [f"device {i}" for i in range(devices)]
    fleet = TimedFleet(
        make_profiles(read_profiles("uniform"), devices, 5), JobSize(np.full(devices, 9), 1, 1), 5
    )
    timed = Timed(ids, TimedCampaign(read_policy(f"sync:cohort={cohort}"), fleet, ids))
    drawn = Drawn(ids, cohort, 5)
    for number in range(1, 4):
        assert sorted(timed.invite(number).device_ids) == drawn.invite(number).device_ids


@pytest.mark.full
@pytest.mark.parametrize(
    "policy", ["sync:cohort=3", "over-select:cohort=3:over=0.5", "buffered:concurrency=5:buffer=2"]
)
def test_rounds_on_the_virtual_clock_go_on_after_an_interruption(
    policy: str, tmp_path: Path
) -> None:
    settings = SimulationSettings(
        read_algorithm("distfl+fedadam"),
        5,
        batch_size=8,
        profiles="phones:speed=20:available=0.9",
        policy=policy,
    )
    fleet = synthetic_fleet(8, shift=1.0)
    whole = simulate(fleet, settings, engine=EngineOptions("eager"))
    times = [r.closed_at_s for r in whole.records]
    assert times == sorted(times)
    assert times[0] > 0
    time = known(whole.summary.time)
    assert time.virtual_s == pytest.approx(times[-1], abs=1e-3)
    assert time.aggregations == 5
    assert (time.staleness.max > 0) == policy.startswith("buffered")

    def stop(told: RunProgress) -> None:
        if told.trained == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(fleet, settings, stop, engine=EngineOptions("eager", checkpoint=tmp_path))
    resumed = simulate(fleet, settings, engine=EngineOptions("eager", checkpoint=tmp_path))
    same(whole, resumed)


def test_a_late_change_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimulationSettings(
        read_algorithm("fedavg"),
        4,
        batch_size=8,
        policy="buffered:concurrency=5:buffer=1",
    )
    fleet = synthetic_fleet(8)
    usual = simulate(fleet, settings, engine=EngineOptions("eager"))
    monkeypatch.setattr(
        "simulation.timing.campaign.JobBatch.weights",
        property(lambda batch: np.ones(len(batch.devices))),
    )
    unweighted = simulate(fleet, settings, engine=EngineOptions("eager"))
    assert known(usual.summary.time).staleness.max > 0
    assert usual.campaign.models != unweighted.campaign.models


def test_a_cohort_is_not_for_a_policy_without_rounds() -> None:
    with pytest.raises(ConfigError, match="cohort must be 0 with policy 'buffered', got 3"):
        simulate(
            synthetic_fleet(8),
            SimulationSettings(read_algorithm("fedavg"), 1, cohort=3, policy="buffered"),
        )


@pytest.mark.representatives("fedavg", "scaffold", "ditto")
@pytest.mark.parametrize(
    "algorithm",
    [
        *(name for name in OBJECTIVES if name != "cgau"),
        "ditto+sgd:nesterov=true:max_norm=1",
        "fedavg+classification:label_smoothing=0.1",
    ],
)
def test_a_training_step_in_the_engine_and_by_torch_is_that_by_torch_alone(algorithm: str) -> None:
    fleet = synthetic_fleet(1)
    ((_, windows),) = fleet.devices.items()
    objective = objective_for_fleet(fleet, read_algorithm(algorithm), 0)
    eager = EagerGraphs(objective)
    inputs = {
        name: value.numpy()
        for name, value in example_inputs(objective, fleet.window.shape, 8).items()
    }
    inputs |= {names.X: np.ascontiguousarray(windows.train_x[:8]), names.Y: windows.train_y[:8]}
    hybrid = HybridGraphs(objective, fleet.window.shape, objective.graphs())
    for graph in objective.graphs():
        expected, found = eager.run(graph, inputs), hybrid.run(graph, inputs)
        inputs |= {
            names.response(graph, name): value
            for name, value in names.part(expected, names.METRIC).items()
        }
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            scale = max(0.01, float(np.abs(value).max(initial=0.0)))
            np.testing.assert_allclose(
                found[name], value, atol=2e-3 * scale, err_msg=f"{graph}: {name}"
            )


class TwiceDifferentiated(FedAvg):
    """The gradient's own length is made small, too."""

    name: ClassVar[str] = "twice"

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        keys = self.trained(tensors)
        with torch.enable_grad():
            weights = {key: tensors[key].detach().requires_grad_() for key in keys}
            loss, made = self.loss({**tensors, **weights}, batch, hyper)
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            long = loss + torch.stack([gradient.square().sum() for gradient in gradients]).sum()
            moved = torch.autograd.grad(long, list(weights.values()))
        values = {
            key: tensors[key] - 0.01 * gradient for key, gradient in zip(keys, moved, strict=True)
        }
        return following_values(values) | self.metrics(
            made.logits.detach(), batch, loss.detach() * batch["y"].shape[0]
        )


def test_a_step_that_differentiates_twice_is_left_to_torch() -> None:
    fleet = synthetic_fleet(1)
    objective = TwiceDifferentiated(objective_for_fleet(fleet, read_algorithm("fedavg"), 0).model)
    with pytest.raises(Unsupported, match="a step differentiates twice"):
        HybridGraphs(objective, fleet.window.shape, ["step"])


def stopped(_module: object, given: Any, _got: object) -> Any:
    """A hook that lets no gradient through."""
    return (0 * given[0],)


@pytest.mark.parametrize("change", ["mode", "hook"])
def test_passes_that_are_not_the_usual_ones_are_torchs(change: str) -> None:
    fleet = synthetic_fleet(1)
    objective = objective_for_fleet(fleet, read_algorithm("ditto"), 0)
    hybrid, eager = HybridGraphs(objective, fleet.window.shape, ["step"]), EagerGraphs(objective)
    inputs = {
        name: value.numpy()
        for name, value in example_inputs(objective, fleet.window.shape, 8).items()
    }
    usual = eager.run("step", inputs)
    norm = next(
        layer for layer in objective.model.modules() if isinstance(layer, torch.nn.BatchNorm1d)
    )
    if change == "mode":  # as people freeze one
        norm.train = lambda mode=True: torch.nn.Module.train(norm, False)  # type: ignore[method-assign]
    else:
        norm.register_full_backward_hook(stopped)
    expected, found = eager.run("step", inputs), hybrid.run("step", inputs)
    assert any((usual[name] != value).any() for name, value in expected.items()), (
        "the change changes the step"
    )
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
