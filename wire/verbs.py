"""Verbs of plans (SPEC.md, 'Plans')."""

from typing import Annotated, Literal

import msgspec

from wire.fields import MOST_CHOICES, MOST_EPOCHS, MOST_PASSES, Count, Digest, Name, Positive, Share
from wire.secret.question import SumQuestion
from wire.secret.survey import SurveySum as SurveySum
from wire.secret.survey import TellGroup as TellGroup


class Train(msgspec.Struct, frozen=True, tag="train"):
    """Run a step graph over the training windows for `epochs` epochs, or exactly `steps` batches.

    An epoch is a pass over the training windows. If the device has unlabelled windows as well, an
    epoch has as many batches as a pass over all of its windows, in at most `most_passes` passes
    over the training windows.

    The changes of the roles shared and statistic go into the update, with the metrics, unless
    `report` is false. The share `holdout` of the windows, the same ones each time, is left out. A
    device that then has fewer than `least` labelled windows skips the verb.
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
    """Run a graph over a split and sum its metrics, on the current tensors or the initial ones.

    The initial tensors are the bundle's. ``loss_sum`` and ``num_correct`` become the update's
    `evaluated`; other metrics, of any shape, divided by the number of examples, are named
    ``response/GRAPH.NAME``: later graphs of the plan may read them. Nothing is sent if `report` is
    false. The split ``holdout`` is the share of the training windows that `Train` leaves out. The
    split ``windows`` is the training windows followed by the unlabelled ones, whose class is -1;
    the split ``unlabelled`` is the latter alone; the split ``inputs`` is all of these windows as if
    none had a label. These three leave out the windows whose rank among all of them is `most` or
    above, unless `most` is 0.
    """

    split: Literal["train", "test", "holdout", "windows", "unlabelled", "inputs"] = "test"
    graph: Name = "evaluate"
    model: Literal["received", "initial"] = "received"
    holdout: Share = 0.0
    report: bool = True
    most: Count = 0


class Choose(msgspec.Struct, frozen=True, tag="choose"):
    """Evaluate each of these models on the training windows and continue from the best one.

    The best one has the least mean loss; of equal ones it is the first.
    """

    models: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_CHOICES)]
    graph: Name = "evaluate"


class Annotate(msgspec.Struct, frozen=True, tag="annotate"):
    """Store a graph's per-example output as a column of the training windows.

    The column stays on the device from round to round.
    """

    graph: Name
    column: Name


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """Run a graph once over the tensors alone.

    Its metrics are sent unchanged as ``response/GRAPH.NAME``, unless `report` is false.
    """

    graph: Name
    report: bool = True


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    """Run a graph on the aggregator's inputs (blob `inputs`, tensor ``x``) and send its outputs."""

    inputs: Digest
    graph: Name = "predict"


class Protect(msgspec.Struct, frozen=True, tag="protect"):
    """Clip the change of a training to the Euclidean norm `clip_norm`, then add Gaussian noise.

    All tensors are clipped as one vector. The noise comes from the device's own secret. A plan that
    has this verb ends with it, or with `Mask` after it.
    """

    clip_norm: Annotated[float, msgspec.Meta(gt=0)]
    noise_std: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Mask(msgspec.Struct, frozen=True, tag="mask"):
    """Answer a question of a secret sum by the change of the training, and report nothing else.

    A plan that has this verb ends with it.
    """

    question: SumQuestion


Verb = (
    Train | Evaluate | Choose | Annotate | Apply | Respond | Protect | SurveySum | TellGroup | Mask
)
