"""The verbs of plans (SPEC.md, 'Plans')."""

from typing import Annotated, Literal

import msgspec

from wire.fields import MOST_CHOICES, MOST_EPOCHS, MOST_PASSES, Count, Digest, Name, Positive, Share


class Train(msgspec.Struct, frozen=True, tag="train"):
    """Run a step graph over the training windows: `epochs` epochs, or exactly `steps` batches when
    given.

    An epoch is a pass over the training windows. Where the device has windows without labels as
    well, it is as many batches as a pass over all of its windows would have, in `most_passes`
    passes over those for training at most.

    What it changed of the roles shared and statistic goes into the update, with its metrics, unless
    `report` is false. The share `holdout` of the windows, the same ones each time, is left out. A
    device that then has fewer than `least` windows with labels leaves the verb out.
    """

    batch_size: Annotated[int, msgspec.Meta(ge=2, le=4096)]
    epochs: Annotated[int, msgspec.Meta(ge=1, le=MOST_EPOCHS)] = 1
    steps: Positive | None = None
    hyper: dict[str, float] = {}
    graph: Name = "step"
    report: bool = True
    holdout: Share = 0.0
    least: Count = 0
    most_passes: Annotated[int, msgspec.Meta(ge=1, le=MOST_PASSES)] = 1


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Run a graph over a split and sum its metrics; on the tensors as they are now, or on the
    bundle's initial ones.

    ``loss_sum`` and ``num_correct`` become the update's `evaluated`; other metrics, of any shape,
    divided by the number of examples, are called ``response/GRAPH.NAME``: later graphs of the plan
    may read them. Nothing goes back if `report` is false. The split ``holdout`` is the share of the
    training windows that `Train` leaves out. The split ``windows`` is the training windows and
    after them those without labels, whose class is -1; the split ``unlabelled`` is the latter
    alone. Of both, no window takes part whose rank among all of them is `most` or above, unless
    `most` is 0.
    """

    split: Literal["train", "test", "holdout", "windows", "unlabelled"] = "test"
    graph: Name = "evaluate"
    model: Literal["received", "initial"] = "received"
    holdout: Share = 0.0
    report: bool = True
    most: Count = 0


class Choose(msgspec.Struct, frozen=True, tag="choose"):
    """Evaluate each of these models on the training windows, and go on from the one with the least
    mean loss (the first such)."""

    models: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_CHOICES)]
    graph: Name = "evaluate"


class Annotate(msgspec.Struct, frozen=True, tag="annotate"):
    """Store a graph's per-example output as a column of the training windows; it stays on the
    device from round to round."""

    graph: Name
    column: Name


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """Run a graph once over the tensors alone. Its metrics go back as ``response/GRAPH.NAME``, as
    they are, unless `report` is false."""

    graph: Name
    report: bool = True


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    """Run a graph on inputs the aggregator sent (blob `inputs`, tensor ``x``) and return its
    outputs."""

    inputs: Digest
    graph: Name = "predict"


class Protect(msgspec.Struct, frozen=True, tag="protect"):
    """Clip the change that training made, all tensors as one vector, to the Euclidean norm
    `clip_norm`. Then add Gaussian noise from the device's own secret. In a plan that has this verb,
    it is the last one."""

    clip_norm: Annotated[float, msgspec.Meta(gt=0)]
    noise_std: Annotated[float, msgspec.Meta(ge=0)] = 0.0


Verb = Train | Evaluate | Choose | Annotate | Apply | Respond | Protect
