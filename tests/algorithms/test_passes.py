"""A model is what its passes do: whatever a module has besides is neither trained nor in the way,
and what cannot be served is refused by the name of the layer, with a way out."""

import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.contract import TorchTensors
from algorithms.core.functional import functional
from algorithms.core.probe import fold_norms, make_probe, watch_norms, whole_model
from algorithms.models.adoption.passes import copy_of
from algorithms.models.classifier import Classifier
from algorithms.objectives.fedavg import FedAvg
from algorithms.objectives.gradients import tape
from algorithms.objectives.supervised import Supervised
from export.describe import example_inputs, named, run_once
from tests.algorithms.usual_models import CLASSES, LR, MOMENTUM, adopted
from wire.arrays import names
from wire.errors import ConfigError

SHAPE = (3, 24)
Way = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    """Two convolutions and a head, further layers, and a way through them that a test gives."""

    running_mean: Tensor

    def __init__(self, way: Way, **layers: nn.Module) -> None:
        super().__init__()
        self.first, self.out = nn.Conv1d(3, 8, 5), nn.Linear(8, CLASSES)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.way = way

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def usual(net: Net, x: Tensor) -> Tensor:
    answer: Tensor = net.out(net.first(x).relu().mean(2))
    return answer


def tied() -> Net:
    net = Net(
        lambda net, x: net.out(net.b(net.a(net.first(x).relu().mean(2)).tanh())),
        a=nn.Linear(8, 8),
        b=nn.Linear(8, 8),
    )
    net.b.weight = net.a.weight
    return net


def two_names() -> Net:
    layer = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())
    return Net(
        lambda net, x: net.out(net.all(net.first(x).relu().mean(2))),
        each=layer[0],
        norm=layer[1],
        all=nn.Sequential(layer, layer),
    )


def replaced_buffer() -> Net:
    def way(net: Net, x: Tensor) -> Tensor:
        features = net.first(x).relu().mean(2)
        if net.training:
            net.running_mean = 0.9 * net.running_mean + 0.1 * features.detach().mean(0)
        answer: Tensor = net.out(features - net.running_mean)
        return answer

    net = Net(way)
    net.register_buffer("running_mean", torch.zeros(8))
    return net


def keeping_activations() -> Net:
    def way(net: Net, x: Tensor) -> Tensor:
        vars(net)["seen"] = [net.first(x), {"mean": net.first(x).relu().mean(2)}]
        answer: Tensor = net.out(vars(net)["seen"][1]["mean"])
        return answer

    net = Net(way)
    net(torch.randn(2, *SHAPE))
    return net


def squeezed(net: Net, x: Tensor) -> Tensor:
    return usual(net, x).unsqueeze(1).squeeze(1)


def by_tensors(net: Net, x: Tensor) -> Tensor:
    """A convolution that is never called as a layer."""
    conv = net.get_submodule("conv")
    assert isinstance(conv, nn.Conv1d)
    x = F.conv1d(net.first(x).relu(), conv.weight, conv.bias)
    answer: Tensor = net.out(x.mean(2))
    return answer


def norm_by_tensors(net: Net, x: Tensor) -> Tensor:
    """Batch normalisation with buffers of the model, by torch's function."""
    x = net.first(x).relu().mean(2)
    x = F.batch_norm(x, net.running_mean, net.get_buffer("running_var"), training=net.training)
    answer: Tensor = net.out(x)
    return answer


def with_buffers(way: Way) -> Net:
    net = Net(way)
    net.register_buffer("running_mean", torch.zeros(8))
    net.register_buffer("running_var", torch.ones(8))
    return net


SERVED: dict[str, Callable[[], Net]] = {
    "unused norm": lambda: Net(usual, norm=nn.BatchNorm1d(8)),
    "unused dropouts": lambda: Net(
        usual, drops=nn.ModuleList([nn.Dropout(1.0), nn.AlphaDropout()])
    ),
    "unused attention": lambda: Net(usual, attention=nn.MultiheadAttention(8, 2, kdim=3)),
    "unused branch": lambda: Net(usual, old=nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8))),
    "unused head": lambda: Net(usual, head=nn.Linear(8, CLASSES)),
    "norms in another order": lambda: Net(
        lambda net, x: net.out(net.b(net.a(net.first(x))).relu().mean(2)),
        b=nn.BatchNorm1d(8),
        a=nn.BatchNorm1d(8),
    ),
    "norm called twice": lambda: Net(
        lambda net, x: net.out(net.norm(net.norm(net.first(x)).relu() + 1).mean(2)),
        norm=nn.BatchNorm1d(8),
    ),
    "norm called by keyword": lambda: Net(
        lambda net, x: net.out(net.norm(input=net.first(x)).relu().mean(2)),
        norm=nn.BatchNorm1d(8),
    ),
    "layers under two names": two_names,
    "tied weights": tied,
    "old weight norm": lambda: Net(
        lambda net, x: net.out(net.conv(net.first(x)).relu().mean(2)),
        conv=weight_norm(nn.Conv1d(8, 8, 3)),
    ),
    "weight norm": lambda: Net(
        lambda net, x: net.out(net.conv(net.first(x)).relu().mean(2)),
        conv=parametrizations.weight_norm(nn.Conv1d(8, 8, 3)),
    ),
    "statistic that is replaced": replaced_buffer,
    "activations that stay": keeping_activations,
    "answer that is a view": lambda: Net(squeezed),
    "convolution by its tensors": lambda: Net(by_tensors, conv=nn.Conv1d(8, 8, 3)),
    "batch norm by a function": lambda: with_buffers(norm_by_tensors),
    "branch without gradient": lambda: Net(
        lambda net, x: net.out((net.first(x) + net.side(x).detach()).relu().mean(2)),
        side=nn.Conv1d(3, 8, 5),
    ),
}


def batches() -> list[tuple[Tensor, Tensor]]:
    drawing = torch.Generator().manual_seed(3)
    return [
        (3 * torch.randn(8, *SHAPE, generator=drawing), torch.arange(8) % CLASSES) for _ in range(3)
    ]


def plainly_trained(net: nn.Module, optimizer: str) -> dict[str, Tensor]:
    """Three steps of plain torch; nothing of Shoal."""
    net.train()
    moving = (
        torch.optim.SGD(net.parameters(), LR, MOMENTUM)
        if optimizer == "sgd"
        else torch.optim.AdamW(net.parameters(), LR)
    )
    for x, y in batches():
        moving.zero_grad()
        F.cross_entropy(net(x / 2.0), y).backward()
        moving.step()
    return {n: v.detach() for n, v in (*net.named_parameters(), *net.named_buffers())}


def trained(objective: Supervised, hyper: dict[str, float]) -> TorchTensors:
    step, inputs = named(objective.step), example_inputs(objective, SHAPE)
    inputs |= {names.hyper(name): torch.tensor(value) for name, value in hyper.items()}
    for x, y in batches():
        with torch.no_grad(), tape():
            outputs = step(inputs | {names.X: x, names.Y: y})
        inputs |= names.part(outputs, names.NEXT)
    return inputs


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        *((kind, "fedavg") for kind in SERVED),
        # Adam makes rounding large: layers without a norm behind them
        *((kind, "fedavg+adamw") for kind in ("unused head", "branch without gradient")),
    ],
)
def test_a_model_is_trained_as_torch_trains_it(kind: str, algorithm: str) -> None:
    torch.manual_seed(1)
    net = SERVED[kind]()
    objective = make_objective(read_algorithm(algorithm), adopted(net, SHAPE))
    hyper = {"lr": LR} | ({"momentum": MOMENTUM} if algorithm == "fedavg" else {})
    found = trained(objective, hyper)
    expected = plainly_trained(copy_of("net", net), "sgd" if algorithm == "fedavg" else "adamw")
    moved = list(names.of_role(found, *names.EXCHANGED))
    assert len(moved) >= 4
    for key in moved:
        name = names.name_of(key)
        own = f"out.{name[5:]}" if name.startswith("head.") else name.removeprefix("extractor.")
        torch.testing.assert_close(found[key], expected[own], rtol=1e-4, atol=1e-6, msg=f"{key}")


@pytest.mark.parametrize("kind", SERVED)
def test_every_graph_and_the_probe_of_a_model_run(kind: str) -> None:
    objective = make_objective(read_algorithm("distfl"), adopted(SERVED[kind](), SHAPE))
    assert dict(run_once(objective, SHAPE))
    probe = make_probe(objective.model, SHAPE)
    tensors = whole_model(objective.model)
    _, met = probe.run(tensors, torch.randn(4, *SHAPE))
    assert len(met) == len(probe.norm_layers)
    deepcopy(objective)


def test_an_unused_layer_is_not_among_the_tensors_that_devices_exchange() -> None:
    for kind in ("unused norm", "unused branch", "unused head", "unused attention"):
        tensors = FedAvg(adopted(SERVED[kind](), SHAPE)).initial()
        assert {names.name_of(k).rpartition(".")[0] for k in names.of_role(tensors, "shared")} == {
            "extractor.first",
            "head",
        }


def test_statistics_of_norms_are_those_of_the_layer_of_their_name() -> None:
    model = adopted(SERVED["norms in another order"](), SHAPE)
    x, tensors = torch.randn(4, *SHAPE), whole_model(model)
    probe = make_probe(model, SHAPE)
    met = dict(zip(probe.norm_layers, probe.run(tensors, x)[1], strict=True))
    first = model.extractor.get_submodule("first")(x / 2)
    torch.testing.assert_close(met["extractor.a"][0], first.mean((0, 2)))


def test_a_norm_that_is_called_twice_has_the_mean_of_its_calls() -> None:
    model = adopted(SERVED["norm called twice"](), SHAPE)
    seen: list[Tensor] = []
    hook = model.get_submodule("extractor.norm").register_forward_pre_hook(
        lambda _layer, inputs: seen.append(inputs[0])
    )
    with watch_norms(model) as met, torch.no_grad():
        for _ in range(2):
            seen.clear()
            functional(model, whole_model(model), torch.randn(4, *SHAPE), training=False)
    hook.remove()
    mean = torch.stack([x.mean((0, 2)) for x in seen]).mean(0)
    torch.testing.assert_close(met["extractor.norm"][0], mean)


class Skipping(nn.Sequential):
    """A sequence whose way goes past its second layer."""

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self
        answer: Tensor = norm(conv(x).relu())
        return answer


def test_a_norm_is_folded_only_where_it_follows_its_convolution_in_a_pass() -> None:
    kinds: tuple[tuple[type[nn.Sequential], bool], ...] = ((nn.Sequential, True), (Skipping, False))
    for kind, folds in kinds:  # one way, and another
        torch.manual_seed(0)
        body = nn.Sequential(kind(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8)), nn.Flatten())
        model = Classifier(nn.Identity(), body, nn.Linear(8 * 22, CLASSES))
        assert fold_norms(model)[1]
        probe, tensors, x = make_probe(model, SHAPE), whole_model(model), torch.randn(4, *SHAPE)
        tensors["statistic/extractor.0.1.running_mean"] = torch.full((8,), 0.5)
        assert probe.predict is not None
        assert probe.predict_folded is not None
        with torch.no_grad():
            folded, plain = probe.predict_folded(tensors, x), probe.predict(tensors, x)
        torch.testing.assert_close(folded, plain)
        assert torch.equal(folded, plain) is not folds


def shared_dropout(net: Net, x: Tensor) -> Tensor:
    x = net.drop(net.first(net.drop(x)).relu().transpose(1, 2))
    x = net.drop(x.transpose(0, 1)).transpose(0, 1)
    x = net.drop(x.reshape(-1, 8)).reshape(x.shape)
    answer: Tensor = net.out(x.mean(1))
    return answer


def test_a_dropout_layer_drops_in_each_of_its_calls_whatever_the_layout() -> None:
    model = adopted(Net(shared_dropout, drop=nn.Dropout(0.5)), SHAPE)
    objective = FedAvg(model)
    assert list(objective.random.values()) == [(3, 24), (20, 8), (160,), (160,)]
    x = torch.randn(5, *SHAPE)

    def answer(drawn: float, call: int) -> Tensor:
        batch = {
            name: torch.full((5, *shape), drawn if number == call else 0.9)
            for number, (name, shape) in enumerate(objective.random.items())
        }
        return objective.forward(objective.initial(), {"x": x} | batch, training=True).logits

    kept = [answer(0.9, call) for call in range(4)]
    for call in range(4):
        dropped = answer(0.1, call)
        assert not torch.allclose(dropped, kept[call])
        if call:
            torch.testing.assert_close(dropped, model.get_parameter("head.bias").expand(5, CLASSES))


def in_training(net: Net, x: Tensor) -> Tensor:
    x = net.first(x).relu().mean(2)
    answer: Tensor = net.other(x) if net.training else net.out(x)
    return answer


def tied_head() -> Net:
    net = Net(
        lambda net, x: net.out(net.own(net.first(x).mean(2)[:, :8]).repeat(1, 2)),
        own=nn.Linear(8, CLASSES),
    )
    net.out = nn.Linear(8, CLASSES)
    net.own.weight = net.out.weight
    return net


class Locked(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8))
        self.guard = {"lock": threading.Lock()}


def changing(net: Net, x: Tensor) -> Tensor:
    if not net.training:
        net.running_mean.add_(1.0)
    return usual(net, x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "no statistics": (
        lambda: Net(
            lambda net, x: net.out(net.norm(net.first(x).unsqueeze(3)).mean((2, 3))),
            norm=nn.BatchNorm2d(8, track_running_stats=False),
        ),
        r"layer 'norm' \(BatchNorm2d\) answers an example by the other .*GroupNorm",
    ),
    "no statistics in a function": (
        lambda: Net(
            lambda net, x: net.out(F.batch_norm(net.first(x), None, None, training=True).mean(2))
        ),
        "answers an example by the other examples of its batch",
    ),
    "cumulative mean": (
        lambda: Net(
            lambda net, x: net.out(net.norm(net.first(x)).relu().mean(2)),
            norm=nn.BatchNorm1d(8, momentum=None),
        ),
        "'norm' is BatchNorm1d with momentum=None, .* Set momentum, for example 0.1",
    ),
    "norm in training alone": (
        lambda: Net(
            lambda net, x: net.out(
                (net.norm(net.first(x)) if net.training else net.first(x)).mean(2)
            ),
            norm=nn.BatchNorm1d(8),
        ),
        "'norm' is BatchNorm1d, and not both .* Call the layer itself in both modes",
    ),
    "head of training": (
        lambda: Net(in_training, other=nn.Linear(8, CLASSES)),
        "answers by its layer 'other' in training, and by 'out' outside of it",
    ),
    "several heads": (
        lambda: Net(
            lambda net, x: (usual(net, x), usual(net, x)) if net.training else usual(net, x)
        ),
        "must return a tensor of logits, got tuple in training. Return the logits alone",
    ),
    "softmax behind": (
        lambda: Net(lambda net, x: usual(net, x).log_softmax(1)),
        "What it does behind its layer 'out' must move .*: Shoal applies softmax itself",
    ),
    "weight of two layers": (
        tied_head,
        "last layer, 'head', shares its weight with 'extractor.own",
    ),
    "norm of the head": (
        lambda: Net(
            lambda net, x: net.last(net.first(x).mean(2)), last=weight_norm(nn.Linear(8, 4))
        ),
        "last layer, 'head', has a parametrisation, such as weight norm",
    ),
    "spectral norm": (
        lambda: Net(
            lambda net, x: net.out(net.conv(net.first(x)).relu().mean(2)),
            conv=parametrizations.spectral_norm(nn.Conv1d(8, 8, 3)),
        ),
        "changes its buffer 'conv.parametrizations.* Spectral norm does; weight norm",
    ),
    "lock": (
        lambda: Net(lambda net, x: net.out(net.mid(net.first(x).mean(2))), mid=Locked()),
        "layer 'mid' has an attribute 'guard' of type dict, which cannot be copied, .* Create it",
    ),
    "buffer in evaluation": (
        lambda: with_buffers(changing),
        "changes its buffer 'running_mean' in evaluation",
    ),
    "channels of the batch": (
        lambda: Net(
            lambda net, x: net.out(net.drop(net.first(x).transpose(0, 1)).transpose(0, 1).mean(2)),
            drop=nn.Dropout1d(0.5),
        ),
        r"layer 'extractor.drop' is Dropout1d of .* Its first dimension must be that of",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_by_name_with_a_way_out(kind: str) -> None:
    made, said = REFUSED[kind]
    with pytest.raises(ConfigError, match=said):
        FedAvg(adopted(made(), SHAPE))


@pytest.mark.parametrize("lazy", [nn.LazyConv1d(8, 3), nn.LazyBatchNorm1d(), nn.LazyLinear(20)])
def test_lazy_layers_get_their_parameters_and_the_module_of_a_user_stays_lazy(
    lazy: nn.Module,
) -> None:
    net = Net(lambda net, x: net.out(net.lazy(net.first(x)).mean(2)), lazy=lazy)
    copy = copy_of("net", net)
    FedAvg(adopted(copy, SHAPE))
    assert nn.parameter.is_lazy(next(net.lazy.parameters()))
