"""Describes an objective as a manifest does: tensors, and the graphs' inputs and outputs.

Nothing is exported here, so simulations use it, too.
"""

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
from wire.fields import name_of
from wire.tasks import label_of

T = TypeVar("T")
MIN_BATCH = 2
"""Minimum number of examples in a batch. BatchNorm cannot train on a single one."""
TRACE_BATCH = 7
"""Batch size of the example for tracing. It must differ from the sizes in layers."""
DRAWN = "Random numbers must be inputs that its `random` names (docs/tutorial.md)."
"""End of the error text for a graph that draws random numbers."""
DEPENDS_ON_BATCH = "The model's computation depends on the number of examples in a batch"
USE_SHAPE = "Use x.shape[0] for that number, not len(x)."
NO_FILE = "none"
"""File name of a graph that is described only. A simulation runs the objective's functions."""


def to_numpy(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return torch tensors as numpy arrays by the same names."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def specs_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Return the manifest's entries of tensors named ``ROLE/NAME``."""
    specs = []
    for key, tensor in tensors.items():
        role, name = names.role_of(key), names.name_of(key)
        fields: Any = (name, role, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        specs.append(TensorSpec(*fields))
    return tuple(specs)


def example_inputs(
    objective: Supervised, window: tuple[int, ...], batch_size: int = TRACE_BATCH
) -> TorchTensors:
    """Return an example value of every input that a graph may read, by the graphs' names.

    The inputs are tensors, a batch of examples of shape `window` with its labels, columns, random
    inputs, and hyper-parameters.
    """
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
    """Return a graph function that takes all its inputs in one mapping."""

    def run(inputs: TorchTensors) -> TorchTensors:
        return function(*parts_of(inputs))

    return run


def describe_graphs(objective: Supervised, window: tuple[int, ...]) -> dict[str, Graph]:
    """Return the manifest's entries of an objective's graphs, without capturing them.

    Each graph function runs once for its outputs.

    Raises:
        ConfigError: a graph draws random numbers itself.
    """
    ran = run_once(objective, window)
    return {
        name: Graph(NO_FILE, (), tuple(outputs), responses_of(outputs)) for name, outputs in ran
    }


def run_once(
    objective: Supervised, window: tuple[int, ...], batch_size: int = TRACE_BATCH
) -> Iterator[tuple[str, TorchTensors]]:
    """Yield every graph's name and its outputs for `example_inputs`.

    A graph also reads the responses of the graphs before it, which are zero here.

    Raises:
        ConfigError: a graph draws random numbers itself.
    """
    inputs = example_inputs(objective, window, batch_size)
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
    """Return name and shape of the metrics that become responses.

    These are all except ``loss_sum`` and ``num_correct``, which become the update's metrics.
    """
    metrics = [
        (name, tuple(value.shape)) for name, value in names.part(outputs, names.METRIC).items()
    ]
    return tuple(
        (name, shape) for name, shape in metrics if name not in ("loss_sum", "num_correct")
    )


def parts_of(inputs: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T], dict[str, T]]:
    """Split the inputs of a graph into the three arguments of a graph function.

    These are the tensors by ``ROLE/NAME``, the batch by column, and the hyper-parameters by name.
    """
    tensors = {
        key: value
        for key, value in inputs.items()
        if names.role_of(key) not in (names.BATCH, names.HYPER)
    }
    return tensors, names.part(inputs, names.BATCH), names.part(inputs, names.HYPER)


def describe_bundle(
    objective: Supervised, *, name: str, classes: tuple[str, ...], window: Window
) -> Bundle:
    """Return a bundle whose graphs are described only, for simulations.

    Raises:
        ConfigError: a graph draws random numbers itself.
    """
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
    """Return the manifest of an objective, called by the `name_of` a text."""
    return Manifest(
        name=name_of(name),
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
