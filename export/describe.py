"""What a bundle says of an objective: its tensors, what its graphs read and return. Without an
export, for simulations too."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from algorithms.core.contract import GraphFunction, TorchTensors
from algorithms.models.adoption.draws import no_draws
from algorithms.models.classifier import some_examples
from algorithms.objectives.gradients import tape
from algorithms.objectives.supervised import Supervised
from wire.arrays import names
from wire.arrays.tensors import Tensors, TensorSpec
from wire.bundle import Bundle, Graph, Manifest, Window, pack, unpack
from wire.tasks import label_of

T = TypeVar("T")
MIN_BATCH = 2
"""BatchNorm cannot train on a single example."""
TRACE_BATCH = 7
"""Batch size of the example the graphs are traced with; any that no layer has as a size of its
own."""
DRAWN = "them among the inputs that its `random` names (docs/tutorial.md)"
"""What is expected of a graph that draws."""
NO_FILE = "none"
"""The file of a graph that is described only: in a simulation the objective's functions run
themselves."""


def to_numpy(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Torch tensors as numpy arrays, by the same names."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def specs_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    """The manifest's entries of tensors named ``ROLE/NAME``."""
    specs = []
    for key, tensor in tensors.items():
        role, name = names.role_of(key), names.name_of(key)
        fields: Any = (name, role, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        specs.append(TensorSpec(*fields))
    return tuple(specs)


def example_inputs(
    objective: Supervised, window: tuple[int, ...], batch_size: int = TRACE_BATCH
) -> TorchTensors:
    """One value for everything that a graph may read, by the names that graphs use: tensors, a
    batch of examples of shape `window`, its columns, random inputs, hyper-parameters."""
    drawing = torch.Generator().manual_seed(0)
    x = some_examples(batch_size, window, objective.model.vocabulary, drawing)
    label = label_of(objective.task.of, objective.model.num_classes, objective.model.steps)
    batch = {
        names.X: x,
        names.Y: torch.zeros(batch_size, *label.shape, dtype=getattr(torch, label.dtype)),
    }
    columns = {
        names.batch(name): torch.ones(batch_size, *shape)
        for name, shape in objective.columns.items()
    }
    columns |= {
        names.batch(name): torch.full((batch_size,), float(batch_size)) for name in names.PLACES
    }
    drawn = {
        names.batch(name): torch.rand(batch_size, *shape, generator=drawing)
        if names.role_of(name) == names.UNIFORM
        else torch.randn(shape, generator=drawing)
        for name, shape in objective.random.items()
    }
    hyper = {
        names.hyper(name): torch.tensor(float(value)) for name, value in objective.hyper.items()
    }
    return objective.initial() | batch | columns | drawn | hyper


def named(function: GraphFunction) -> Callable[[TorchTensors], TorchTensors]:
    """A graph function over one mapping of everything it may read."""

    def run(inputs: TorchTensors) -> TorchTensors:
        return function(*parts_of(inputs))

    return run


def describe_graphs(objective: Supervised, window: tuple[int, ...]) -> dict[str, Graph]:
    """The graphs of an objective as a manifest names them, without capturing any: each is run once.

    Raises:
        ConfigError: one of them draws random numbers itself.
    """
    ran = run_once(objective, window)
    return {
        name: Graph(NO_FILE, (), tuple(outputs), responses_of(outputs)) for name, outputs in ran
    }


def run_once(objective: Supervised, window: tuple[int, ...]) -> Iterator[tuple[str, TorchTensors]]:
    """Every graph's name and what it gives for `example_inputs` and what graphs before it measured.

    Raises:
        ConfigError: as `describe_graphs`.
    """
    inputs = example_inputs(objective, window)
    for name, function in objective.graphs().items():
        with (
            torch.no_grad(),
            tape(),
            no_draws(
                f"objective {objective.name}: its graph {name} draws random numbers itself", DRAWN
            ),
        ):
            outputs = named(function)(inputs)
        inputs |= {
            names.response(name, n): torch.zeros(shape) for n, shape in responses_of(outputs)
        }
        yield name, outputs


def responses_of(outputs: TorchTensors) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of the metrics that go back as responses: all but the two that become an
    update's metrics."""
    metrics = [
        (name, tuple(value.shape)) for name, value in names.part(outputs, names.METRIC).items()
    ]
    return tuple(
        (name, shape) for name, shape in metrics if name not in ("loss_sum", "num_correct")
    )


def parts_of(inputs: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T], dict[str, T]]:
    """What a graph function takes, from everything it may read: tensors by ``ROLE/NAME``, the batch
    by column, hyper-parameters by name."""
    held = {
        key: value
        for key, value in inputs.items()
        if names.role_of(key) not in (names.BATCH, names.HYPER)
    }
    return held, names.part(inputs, names.BATCH), names.part(inputs, names.HYPER)


def describe_bundle(
    objective: Supervised, *, name: str, classes: tuple[str, ...], window: Window
) -> Bundle:
    """A bundle whose graphs are described only: in a simulation the objective itself runs."""
    tensors = objective.initial()
    manifest = manifest_of(
        objective,
        specs_of(tensors),
        describe_graphs(objective, window.shape),
        name,
        1,
        {},
        classes,
        window,
    )
    return unpack(pack(manifest, {NO_FILE: b""}, to_numpy(tensors)))


def manifest_of(
    objective: Supervised,
    tensors: tuple[TensorSpec, ...],
    graphs: dict[str, Graph],
    name: str,
    bundle_version: int,
    created_by: dict[str, str],
    classes: tuple[str, ...],
    window: Window,
) -> Manifest:
    return Manifest(
        name=name,
        version=bundle_version,
        algorithm=objective.name,
        created_by=created_by,
        classes=objective.task.answers(classes),
        window=window,
        min_batch=MIN_BATCH,
        hyper=dict(objective.hyper),
        tensors=tensors,
        graphs=graphs,
        files={},
        columns=dict(objective.columns),
        random=dict(objective.random),
        task=objective.task.of,
    )
