"""Groups from secret sums: coordinates of devices, exchanges, and places (SPEC.md). Pure.

A device's coordinates are a short description of its data, in units of the fleet. A fleet begins as
one node. A node of devices that are two populations is split by a plane, and each device tells its
side. Sums over the devices of each node are all that anyone else learns of the coordinates.
"""

from typing import Annotated, Literal

import msgspec

from wire.secret.question import Part

WIDTH = 32
"""Maximum number of coordinates of a view: the statistics of inputs, or the labels."""
BINS, REACH = 32, 4.0
"""Bins of a density, over so many deviations to either side. The outermost ones have the rest."""
MOST_AXES = 12
"""Maximum number of axes along which devices tell their bins."""
MOST_DEPTH = 6
"""Maximum number of splits that a device tells its side of."""
CLIP = 4.0
"""Largest absolute value of a coordinate."""
SURVEY_BITS: Literal[32] = 32
"""Bits of an integer of a survey."""
SURVEY_MOST = 4_095
"""Largest number of devices of a survey.

It is that of every question about a survey: a sum that is rounded in another way as well would be
known more exactly.
"""
ONE = float(((1 << (SURVEY_BITS - 1)) - 1) // SURVEY_MOST - 1)
"""Clip with which the number 1 is the integer 1, so that counts are exact."""

Numbers = Annotated[tuple[float, ...], msgspec.Meta(max_length=1 << 16)]
Sketch = Annotated[tuple[float, ...], msgspec.Meta(min_length=WIDTH, max_length=WIDTH)]
Spreads = Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=2)]
Node = Annotated[str, msgspec.Meta(pattern=f"^[01]{{0,{MOST_DEPTH}}}$")]
"""Path of a node: the side of each split that leads to it; empty for the whole fleet."""


class SurveyScale(msgspec.Struct, frozen=True):
    """Units of a fleet's coordinates, from the sums of the first exchange.

    `mean` and `deviation` are those of the inputs of the model's BatchNorm layers, `origin` is the
    mean of the sketches of gradients. `spreads` are the root mean squares of devices in each view;
    that of the inputs comes first, unless there are none.
    """

    mean: Numbers
    deviation: Numbers
    origin: Sketch
    spreads: Spreads

    def __post_init__(self) -> None:
        """Raise ValueError if the lengths do not fit each other, or a unit is not positive."""
        if len(self.mean) != len(self.deviation):
            raise ValueError(
                f"mean and deviation must be alike, got {len(self.mean)} and {len(self.deviation)}"
            )
        if len(self.spreads) != (2 if self.mean else 1):
            raise ValueError(f"spreads must be those of each view, got {len(self.spreads)}")
        if not all(0 < unit < float("inf") for unit in (*self.deviation, *self.spreads)):
            raise ValueError("deviation and spreads must be positive")

    @property
    def width(self) -> int:
        """Number of coordinates of a device."""
        return WIDTH + min(WIDTH, len(self.mean))


class Plane(msgspec.Struct, frozen=True):
    """Split of a node.

    Devices are on side 1 if `axis` times their coordinates is above `threshold`, and else on side
    0.
    """

    node: Node
    axis: Numbers
    threshold: float


class Axis(msgspec.Struct, frozen=True):
    """Direction along which devices tell their bins, with the mean and deviation of their node."""

    axis: Numbers
    mean: float
    deviation: Annotated[float, msgspec.Meta(gt=0)]


class SurveySum(msgspec.Struct, frozen=True, tag="survey-sum"):
    """Make the numbers of one exchange of the survey before it; a question about them follows.

    ``scale`` asks for the means and variances of inputs and for the sketch of the gradient,
    ``moments`` for the coordinates and their products, and ``density`` for the bins along `axes`.
    The devices are those of `node`, to which `planes` lead.
    """

    kind: Literal["scale", "moments", "density"]
    node: Node = ""
    scale: SurveyScale | None = None
    planes: Annotated[tuple[Plane, ...], msgspec.Meta(max_length=MOST_DEPTH)] = ()
    axes: Annotated[tuple[Axis, ...], msgspec.Meta(max_length=MOST_AXES)] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if fields do not fit the kind or each other."""
        if (self.kind == "scale") != (self.scale is None):
            raise ValueError(f"scale must be left out of the exchange scale alone, got {self.kind}")
        if (self.kind == "density") != bool(self.axes):
            raise ValueError(f"axes must be those of an exchange density, got {self.kind}")
        if self.scale is None:
            if self.node or self.planes:
                raise ValueError("planes must be left out of the exchange scale")
            return
        if tuple(plane.node for plane in self.planes) != ancestors_of(self.node):
            raise ValueError(f"planes must be those that lead to node {self.node!r}")
        check_axes(self.scale, (*self.planes, *self.axes))


class TellGroup(msgspec.Struct, frozen=True, tag="tell-group"):
    """Report the node that the planes lead the device to, by its survey.

    No node of theirs is left out between the whole fleet and another one.
    """

    scale: SurveyScale
    planes: Annotated[
        tuple[Plane, ...], msgspec.Meta(min_length=1, max_length=(1 << MOST_DEPTH) - 1)
    ]

    def __post_init__(self) -> None:
        """Raise ValueError if the planes are no tree."""
        nodes = [plane.node for plane in self.planes]
        if len(set(nodes)) < len(nodes) or any(n and n[:-1] not in nodes for n in nodes):
            raise ValueError(f"planes must split each node once, got {', '.join(nodes)}")
        if max(map(len, nodes)) >= MOST_DEPTH:
            raise ValueError(f"planes must be at most {MOST_DEPTH} deep")
        check_axes(self.scale, self.planes)


def check_axes(scale: SurveyScale, axes: tuple[Plane | Axis, ...]) -> None:
    """Raise ValueError if an axis has another length than the coordinates."""
    for each in axes:
        if len(each.axis) != scale.width:
            raise ValueError(f"axis must have {scale.width} numbers, got {len(each.axis)}")


def ancestors_of(node: str) -> tuple[str, ...]:
    """Return the nodes that are split on the way to a node, from the whole fleet on."""
    return tuple(node[:depth] for depth in range(len(node)))


def parts_of(verb: SurveySum, num_inputs: int) -> dict[str, Part]:
    """Return the parts of the question about an exchange.

    Args:
        verb: the exchange.
        num_inputs: number of means of the inputs of BatchNorm layers.
    """
    if verb.scale is None:
        inputs = {"means": 16.0, "squares": 256.0, "variances": 256.0} if num_inputs else {}
        return {name: Part(num_inputs, clip) for name, clip in inputs.items()} | {
            "sketch": Part(WIDTH, 4.0),
            "length": Part(1, 16.0),
        }
    width = verb.scale.width
    if verb.kind == "moments":
        products = width * (width + 1) // 2
        return {"coordinates": Part(width, CLIP), "products": Part(products, CLIP * CLIP)}
    return {"bins": Part(len(verb.axes) * BINS, ONE)}
