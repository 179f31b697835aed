"""Every objective: what leaves a device, its graphs, whole rounds through the device's own
executor; and the servers' halves."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from aggregator.fleet.plan import program_for
from algorithms.algorithm import Algorithm, Contribution, decode_memory, encode_memory
from algorithms.core.contract import LocalModel, ObjectiveMemory, Work
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from algorithms.groupings.individual import Individual
from algorithms.groupings.single import SingleGroup
from algorithms.means.weighted import WeightedMean
from algorithms.objectives.apple import AppleServer
from algorithms.objectives.fedbabu import FedBabuServer
from algorithms.objectives.fedfomo import FedFomoServer
from algorithms.objectives.fedgen import (
    FedGenServer,
    diversity,
    first_generator,
    make_bank,
    train_generator,
)
from algorithms.objectives.fedpcl import FedPclServer
from algorithms.objectives.fedrod import FedRodServer
from algorithms.objectives.lgnet import FineTuned
from algorithms.objectives.perfedavg import PerFedAvgServer
from algorithms.objectives.supervised import Supervised
from algorithms.privacy.base import NoPrivacy
from edge_client.core.ports import Windows
from edge_client.work.executor import Executor
from export.capture import trace
from export.describe import describe_bundle, example_inputs, named, responses_of, to_numpy
from export.lowering.onnx_graph import to_onnx
from simulation.engine.graphs.eager import EagerGraphs
from tests.contracts.objective import (
    CLASSES,
    OBJECTIVES,
    WINDOW,
    make,
)
from wire.arrays.tensors import Tensors
from wire.bundle import Bundle, Window
from wire.messages import Evaluate, Plan, Train

BODY = {
    f"extractor.{layer}.{part}"
    for layer in ("conv1", "norm1", "conv2", "norm2")
    for part in ("weight", "bias")
}
HEAD = {"head.weight", "head.bias"}
STATISTICS = {f"extractor.norm{i}.running_{part}" for i in (1, 2) for part in ("mean", "var")}
NORMS = {name for name in BODY if "norm" in name}

LEAVES = {
    "local": (set(), set()),
    "fedpcl": (set(), set()),
    "fedbn": (BODY - NORMS | HEAD, set()),
    "apple": (BODY | HEAD, set()),
    **dict.fromkeys(
        ("fedper", "fedrep", "fedbabu", "fedper+mr", "fedrep+mr", "fedbabu+mr"), (BODY, STATISTICS)
    ),
}


@pytest.mark.representatives("fedavg", "scaffold", "ditto")
@pytest.mark.parametrize("name", OBJECTIVES)
class TestEveryObjective:
    def test_what_leaves_the_device(self, name: str) -> None:
        tensors = make(name).initial()
        shared = {k.removeprefix("shared/") for k in tensors if k.startswith("shared/")}
        statistics = {k.removeprefix("statistic/") for k in tensors if k.startswith("statistic/")}
        assert (shared, statistics) == LEAVES.get(name, (BODY | HEAD, STATISTICS))

    def test_graphs_touch_neither_inputs_nor_model_and_share_no_memory(self, name: str) -> None:
        objective = make(name)
        before = {k: v.clone() for k, v in objective.model.state_dict().items()}
        inputs = example_inputs(objective, WINDOW)
        for graph, function in objective.graphs().items():
            given = {k: v.clone() for k, v in inputs.items()}
            with torch.no_grad():
                outputs = named(function)(inputs)
                again = named(function)(inputs)
            assert all(torch.equal(v, inputs[k]) for k, v in given.items()), graph
            assert all(torch.equal(v, again[k]) for k, v in outputs.items()), graph
            places = {v.data_ptr() for v in inputs.values()}
            assert not [k for k, v in outputs.items() if v.numel() and v.data_ptr() in places], (
                graph
            )
            held = {k.removeprefix("next/"): v for k, v in outputs.items() if k.startswith("next/")}
            assert all(
                v.shape == inputs[k].shape and v.dtype == inputs[k].dtype for k, v in held.items()
            ), graph
            assert not [k for k in held if k.startswith("received/")], graph
            inputs |= {
                f"response/{graph}.{n}": torch.rand(shape) for n, shape in responses_of(outputs)
            }
        assert all(torch.equal(before[k], v) for k, v in objective.model.state_dict().items())

    def test_a_fleet_learns(self, name: str) -> None:
        """Three rounds through the executor: every layout fits, state survives serialisation, and
        the loss falls."""
        fleet = SmallFleet(name)
        losses = [fleet.round() for _ in range(4)]
        final = fleet.close()
        assert all(np.isfinite(loss) for loss in (*losses, final)), losses
        assert final < losses[0], (losses, final)

    @pytest.mark.slow
    def test_every_graph_is_captured_and_runs_alike(self, name: str) -> None:
        """Also for batches of other sizes than the one it was traced with."""
        objective = make(name)
        inputs, draw = example_inputs(objective, WINDOW), torch.Generator().manual_seed(3)
        own = {
            g: f
            for g, f in objective.graphs().items()
            if name == "fedavg" or not _inherited(type(objective), g)
        }
        for graph, function in objective.graphs().items():
            if graph in own:
                captured = to_onnx(trace(named(function), inputs))
                session = onnxruntime.InferenceSession(
                    captured.onnx, providers=["CPUExecutionProvider"]
                )
                for size in (2, 5, 9):
                    feed = {k: _drawn(k, v, size, draw) for k, v in inputs.items()}
                    with torch.no_grad():
                        expected = named(function)(feed)
                    found = session.run(None, {k: feed[k].numpy() for k in captured.inputs})
                    for key, value in zip(captured.outputs, found, strict=True):
                        scale = 1e-2 + float(expected[key].abs().max())
                        difference = float(
                            (torch.from_numpy(np.asarray(value)) - expected[key]).abs().max()
                        )
                        assert difference < 2e-4 * scale, (graph, key, size, difference)
            with torch.no_grad():
                inputs |= {
                    f"response/{graph}.{n}": torch.rand(s, generator=draw)
                    for n, s in responses_of(named(function)(inputs))
                }


def _inherited(made: type[Supervised], graph: str) -> bool:
    """Return True if a graph of an objective is FedAvg's own, which is captured once."""
    same = {"survey": "survey", "evaluate": "evaluate", "predict": "predict"}
    plain = getattr(made, "forward", None) is Supervised.forward
    return (
        graph in same and plain and getattr(made, same[graph]) is getattr(Supervised, same[graph])
    )


def _drawn(key: str, value: Tensor, size: int, draw: torch.Generator) -> Tensor:
    """Another value for a graph's input: a batch of another size, masks of zeros and ones, others
    moved a little."""
    if key == "batch/y":
        return torch.randint(0, CLASSES, (size,), generator=draw)
    if key.startswith("batch/"):
        return torch.randn(size, *value.shape[1:], generator=draw)
    if key.endswith(("known", "classes", "present")):
        return torch.randint(0, 2, value.shape, generator=draw).to(torch.float32)
    if key.startswith("hyper/") or not value.is_floating_point():
        return value
    return value + 0.1 * torch.rand(value.shape, generator=draw)


def make_bundle(objective: Supervised) -> Bundle:
    return describe_bundle(
        objective,
        name="small",
        classes=tuple("abc"),
        window=Window(("x", "y"), WINDOW[1], WINDOW[1]),
    )


class SmallFleet:
    """Four devices and the server's half of an algorithm, without messages. The last device joins
    after the first round."""

    def __init__(self, name: str) -> None:
        self.objective, coordinator = make(name), OBJECTIVES[name][2]()
        grouping = Individual() if coordinator.grouping == "individual" else SingleGroup()
        self.algorithm = Algorithm(
            name, self.objective.name, coordinator, grouping, WeightedMean(), NoPrivacy()
        )
        self.bundle, self.probe = (
            make_bundle(self.objective),
            make_probe(self.objective.model, WINDOW),
        )
        self.devices = {
            f"d{i}": Executor(self.bundle, EagerGraphs(self.objective), self._windows(i))
            for i in range(4)
        }
        self.private: dict[str, Tensors] = {d: {} for d in self.devices}
        self.work, self.number = Work(8, 2, {}), 0
        self.state = self.algorithm.begin(self.bundle.initial, self.probe, 0)

    def round(self) -> float:
        """A round, and the preparations before it; the mean loss of what devices evaluated at its
        start."""
        while self.algorithm.coordinator.preparing(self.state.context):
            assert self.number < 3
            self.state = self.algorithm.prepare(self.state, self._work("")[0])
        contributions, losses = self._work("")
        self.state, _ = self.algorithm.apply(
            self.state, contributions, self.probe, self.number, self.work
        )
        self.state = decode_memory(encode_memory(self.state), self.state.models)
        return float(np.mean(losses))

    def close(self) -> float:
        """The mean loss of the last evaluations."""
        return float(np.mean(self._work("closing")[1]))

    def _work(self, phase: str) -> tuple[list[Contribution], list[float]]:
        self.number += 1
        programs = self.algorithm.programs(
            self.state, self.work, dict.fromkeys(self.state.models, "0" * 64)
        )
        contributions, losses = [], []
        for device_id, executor in self.devices.items():
            if self.number == 1 and device_id == "d3":
                continue
            start = self.algorithm.grouping.start(self.state.memory, device_id)
            verbs = programs[phase] if phase else program_for(programs, device_id, start)
            plan = Plan("run", 1, self.number, 0, device_id, "0" * 64, "0" * 64, verbs, 7, 0.0)
            model = self.algorithm.given(self.state, start)
            result = executor.execute(plan, model, self.private[device_id], lambda digest: {})
            self.private[device_id] = result.private
            self._check_layout(verbs, result.tensors)
            losses.append(result.evaluated.loss_sum / max(1, result.evaluated.num_examples))
            contributions.append(
                Contribution(
                    device_id, 24, result.num_steps, start, result.tensors, result.trained.mean_loss
                )
            )
        return contributions, losses

    def _check_layout(self, verbs: tuple[Any, ...], tensors: Tensors) -> None:
        expected: set[str] = set()
        for verb in verbs:
            if isinstance(verb, Train):
                expected |= (
                    {k for k, _, _ in self.bundle.manifest.reported(verb.graph)}
                    if verb.report
                    else set()
                )
            elif not isinstance(verb, Evaluate) or verb.report:
                expected |= {k for k, _, _ in self.bundle.manifest.responses(verb.graph)}
        assert tensors.keys() == expected

    def _windows(self, number: int) -> Windows:
        rng = np.random.default_rng(number)
        weights = [[4, 1, 1], [1, 4, 1], [1, 1, 4], [3, 3, 0]][number]
        y = rng.choice(3, 40, p=np.array(weights) / np.sum(weights))
        x = rng.normal(0, 1, (40, *WINDOW)) + 1.5 * np.stack(
            [np.sin(y[:, None] * np.arange(16) / 2 + 1), y[:, None] - np.ones(16)], 1
        )
        x, y = x.astype(np.float32), y.astype(np.int64)
        return Windows(x[:24], y[:24], x[24:], y[24:])


def local_model(device_id: str, start: str, num_examples: int = 10, **responses: Any) -> LocalModel:
    held = {
        f"response/{k.replace('__', '.')}": np.asarray(v, np.float32) for k, v in responses.items()
    }
    return LocalModel(device_id, num_examples, 1, start, {}, held)


class TestServers:
    def test_fine_tuning_reports_nothing_and_may_be_left_out(self) -> None:
        work = Work(8, 3)
        assert FineTuned(5).closing(ObjectiveMemory(), work) == (
            work.train(epochs=5, report=False),
            Evaluate(),
        )
        assert FedBabuServer(5).closing(ObjectiveMemory(), work) == (
            work.train("tune", epochs=5, report=False),
            Evaluate(),
        )
        assert PerFedAvgServer().closing(ObjectiveMemory(), work) == (
            work.train("adapt", epochs=1, report=False),
            Evaluate(),
        )
        assert FineTuned(0).closing(ObjectiveMemory(), work) == (Evaluate(),)

    def test_counted_labels_of_fedrod_stay_on_the_device(self) -> None:
        verbs = FedRodServer().training(ObjectiveMemory(), Work(8, 1))
        assert Evaluate("train", "labels", report=False) in verbs

    def test_fedfomo_sends_what_was_worth_most(self) -> None:
        server = FedFomoServer(epsilon=0.0)
        context = server.begin(to_numpy(make("fedfomo").initial()), 0)
        membership = {f"d{i}": str(i) for i in range(5)}
        models = {str(i): {"shared/w": np.full(2, float(i), np.float32)} for i in range(5)} | {
            NEWCOMER: {"shared/w": np.zeros(2, np.float32)}
        }
        nothing = [local_model(d, NEWCOMER, mix__weights=[0, 0]) for d in membership]
        context = server.absorb(context, nothing, membership, models)
        assert server.sent(context, "0") == ["1", "2"]
        assert server.sent(context, NEWCOMER) == []
        trained = [
            local_model(d, k, mix__weights=[-1.0, 2.0] if k == "0" else [0, 0])
            for d, k in membership.items()
        ]
        context = server.absorb(context, trained, membership, models)
        assert server.sent(context, "0") == ["2", "3"]
        received = server.received(context, models, "0")
        np.testing.assert_array_equal(received["received/others.w"], [[2, 2], [3, 3]])
        del models["3"]
        np.testing.assert_array_equal(
            server.received(context, models, "0")["received/present"], [1, 0]
        )
        np.testing.assert_array_equal(
            server.received(context, models, NEWCOMER)["received/present"], [0, 0]
        )

    def test_fedfomo_looks_at_others_too(self) -> None:
        server = FedFomoServer(epsilon=1.0)
        context = ObjectiveMemory(
            info={
                "seed": 0,
                "round": 0,
                "num_others": 1,
                "known": [str(i) for i in range(6)],
                "affinity": {"0": {"1": 9.0}},
            }
        )
        seen = {
            server.sent(ObjectiveMemory(info={**context.info, "round": n}), "0")[0]
            for n in range(40)
        }
        assert seen == {"1", "2", "3", "4", "5"}
        in_other_runs = {
            server.sent(ObjectiveMemory(info={**context.info, "seed": n}), "0")[0]
            for n in range(40)
        }
        assert in_other_runs == seen

    def test_apple_keeps_its_places_when_devices_join(self) -> None:
        server = AppleServer(schedule_rounds=4)
        context = server.begin(to_numpy(make("apple").initial()), 0)
        models = {str(i): {"shared/w": np.full(2, float(i), np.float32)} for i in range(4)}
        first = server.received(
            context, {NEWCOMER: {"shared/w": np.zeros(2, np.float32)}}, NEWCOMER
        )
        np.testing.assert_array_equal(first["received/prior"], [1, 0, 0])
        membership = {"a": "0", "b": "1"}
        context = server.absorb(
            context,
            [local_model("a", NEWCOMER, 10), local_model("b", NEWCOMER, 30)],
            membership,
            models,
        )
        assert context.info["others"] == {"0": ["1"], "1": ["0"]}
        received = server.received(context, models, "0")
        np.testing.assert_allclose(received["received/prior"], [0.25, 0.75, 0])
        np.testing.assert_array_equal(received["received/present"], [1, 0])
        assert float(received["received/schedule"]) == pytest.approx((np.cos(np.pi / 4) + 1) / 2)
        membership |= {"c": "2", "d": "3"}
        context = server.absorb(
            context, [local_model(d, NEWCOMER, 10) for d in "cd"], membership, models
        )
        assert context.info["others"] == {
            "0": ["1", "2"],
            "1": ["0", "2"],
            "2": ["3", "0"],
            "3": ["0", "1"],
        }

    def test_fedpcl_averages_by_examples_of_the_class(self) -> None:
        server = FedPclServer()
        context = server.begin(to_numpy(make("fedpcl").initial()), 0)
        assert server.preparing(context)
        one = local_model(
            "a",
            NEWCOMER,
            10,
            prototypes__sum=[[0.5, 0], [0, 0.5], [0, 0]],
            prototypes__share=[0.5, 0.5, 0],
        )
        two = local_model(
            "b",
            NEWCOMER,
            30,
            prototypes__sum=[[0, 1.0], [0, 0], [0, 0]],
            prototypes__share=[1.0, 0, 0],
        )
        context = server.absorb(context, [one, two], {"a": NEWCOMER, "b": NEWCOMER}, {})
        assert not server.preparing(context)
        received = server.received(context, {}, "0")
        np.testing.assert_allclose(
            received["received/prototypes"], [[5 / 35, 30 / 35], [0.0, 1.0], [0.0, 0.0]], atol=1e-6
        )
        np.testing.assert_array_equal(received["received/known"], [1, 1, 0])
        np.testing.assert_allclose(
            received["received/others.prototypes"],
            [[[1, 0], [0, 1], [0, 0]], [[0, 1], [0, 0], [0, 0]]],
            atol=1e-6,
        )
        np.testing.assert_array_equal(received["received/others.known"], [[1, 1, 0], [1, 0, 0]])

    def test_fedpcl_hands_on_other_devices_in_every_round(self) -> None:
        server = FedPclServer()
        context = server.begin(to_numpy(make("fedpcl").initial()), 0)
        seen = []
        for _ in range(3):
            models = [
                local_model(
                    str(i), "0", prototypes__sum=np.full((3, 2), i), prototypes__share=np.ones(3)
                )
                for i in range(3)
            ]
            context = server.absorb(context, models, {str(i): "0" for i in range(3)}, {})
            seen.append(
                server.received(context, {}, "0")["received/others.prototypes"][:, 0, 0].tolist()
            )
        assert seen == [[0, 1], [2, 0], [1, 2]]

    def test_generator_learns_of_a_class_from_the_heads_that_know_it(self) -> None:
        rng = np.random.default_rng(0)
        weight, bias = (
            rng.normal(size=(3, 5)).astype(np.float32),
            rng.normal(size=3).astype(np.float32),
        )
        heads, counts = [(weight, bias), (-weight, -bias)], np.array([[10, 0, 0], [0, 20, 0]])
        first = first_generator(rng, 8, 3, 16, 5)
        generator = train_generator(first, heads, counts, rng, steps=300, lr=0.01, batch=32)
        bank = make_bank(generator, 3, rng, 50)
        for known, (weight, bias) in enumerate(heads):
            assert ((bank[:, known] @ weight.T + bias).argmax(1) == known).mean() > 0.95
        assert not np.array_equal(bank[0], bank[1])

    def test_diversity_is_the_double_loop(self) -> None:
        noise, made = torch.randn(6, 4), torch.randn(6, 5)
        slow = (
            sum(
                float((noise[i] - noise[j]).square().mean() * (made[i] - made[j]).abs().mean())
                for i in range(6)
                for j in range(6)
            )
            / 36
        )
        assert float(diversity(noise, made)) == pytest.approx(np.exp(-slow), rel=1e-5)

    def test_fedgen_grows_weaker_and_repeats_to_the_bit(self) -> None:
        def run(seed: int = 0) -> ObjectiveMemory:
            server = FedGenServer(generator_steps=4, generator_batch=8)
            context = server.begin(to_numpy(make("fedgen").initial()), seed)
            assert float(server.received(context, {}, "0")["received/strength"]) == 0
            head = {
                "shared/head.weight": np.ones((3, 256), np.float32),
                "shared/head.bias": np.arange(3, dtype=np.float32),
            }
            for _ in range(2):
                model = LocalModel(
                    "a",
                    10,
                    1,
                    "0",
                    head,
                    {"response/labels.share": np.array([0.5, 0.5, 0], np.float32)},
                )
                context = server.absorb(context, [model], {"a": "0"}, {})
            return context

        context = run()
        received = FedGenServer().received(context, {}, "0")
        assert float(received["received/strength"]) == pytest.approx(0.98**2)
        np.testing.assert_array_equal(received["received/classes"], [1, 1, 0])
        assert all(np.array_equal(v, run().arrays[k]) for k, v in context.arrays.items())
        assert not np.array_equal(run(seed=1).arrays["0/bank"], context.arrays["0/bank"])


def test_no_pass_is_asked_for_where_none_is_wanted() -> None:
    assert Work(8, 3).train(epochs=0).epochs == 0
    assert Work(8, 3).train().epochs == 3
