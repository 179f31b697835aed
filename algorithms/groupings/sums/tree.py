"""Tree of groups from sums: the next exchanges, and what follows from their sums. Pure.

``scale`` over all devices, then for each node ``moments``, ``density`` and, if its density is that
of two populations, a split: its devices tell their sides, and each side is a node. A node has at
least `min_sum` devices, since helpers open no sum over fewer. So nothing is learned of a single
device but its side of each split, which is its group.

The tree holds facts alone. What is asked next follows from them (`next_exchanges`).
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from algorithms.core.contract import Matrix
from algorithms.groupings.sums.density import AxisCut, principal_axes, test_axes
from wire.arrays.tensors import Array, Tensors
from wire.secret.survey import (
    BINS,
    MOST_DEPTH,
    WIDTH,
    Axis,
    Plane,
    SurveyScale,
    SurveySum,
    TellGroup,
    ancestors_of,
)

CHANCE, CHANCE_OF_ONE = 0.01, 0.001
"""Probability to split a fleet of one population by both views together, and by one view alone.

It is half of it on each further level. A split by both puts more devices on their right side.
"""
LEAST_SHARE = 0.75
"""Smallest share of an axis's variance between the sides of a split: that of a uniform density."""


class ViewAxes(msgspec.Struct, frozen=True):
    """Principal axes of a node in one view: of inputs, of labels, or of both."""

    axes: tuple[Axis, ...]
    deviations: tuple[float, ...]
    """Deviations along all axes, the widest first; `axes` has those that are tested."""


class TreeNode(msgspec.Struct, frozen=True):
    """Facts about a node, from its sums."""

    views: tuple[ViewAxes, ...] = ()
    """Its principal axes in each view; none before its moments are known."""
    tested: bool = False
    """True if its density is known."""
    plane: Plane | None = None
    """Its split; None without one."""
    share: float = 0.0
    p: float = 1.0
    """Evidence for its split: the share of variance between the sides, and its chance."""


class Tree(msgspec.Struct, frozen=True):
    """Facts about a fleet, from its sums and from the sides that devices tell."""

    scale: SurveyScale | None = None
    nodes: dict[str, TreeNode] = {}
    """Nodes whose moments are known, by path."""
    places: dict[str, str] = {}
    """Node of each device, as deep as it has told."""

    @property
    def planes(self) -> tuple[Plane, ...]:
        """All splits, in the order of their nodes."""
        nodes = (self.nodes[path] for path in sorted(self.nodes, key=lambda n: (len(n), n)))
        return tuple(node.plane for node in nodes if node.plane is not None)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Nodes without a split, in order."""
        split = {plane.node for plane in self.planes}
        sides = {node + side for node in split for side in "01"}
        return tuple(sorted(({""} | sides) - split))

    @property
    def numbers(self) -> dict[str, str]:
        """Group of each leaf: its number in order. Empty before the first exchange."""
        leaves = self.leaves if self.scale is not None else ()
        return {leaf: str(number) for number, leaf in enumerate(leaves)}

    @property
    def groups(self) -> dict[str, str]:
        """Group of each device that is in a leaf."""
        numbers = self.numbers
        return {d: numbers[node] for d, node in sorted(self.places.items()) if node in numbers}


def tree_in(info: Mapping[str, Any]) -> Tree:
    """Return the tree in the `info` of a grouping's memory; an empty one if there is none."""
    return msgspec.convert(info.get("tree", {}), Tree)


def with_tree(info: Mapping[str, Any], tree: Tree) -> dict[str, Any]:
    """Return the `info` of a grouping's memory with this tree."""
    return {**info, "tree": msgspec.to_builtins(tree)}


def without_device(info: Mapping[str, Any], device_id: str) -> dict[str, Any]:
    """Return the `info` of a grouping's memory with its tree without a device.

    Nodes and devices may have the same names.
    """
    tree = tree_in(info)
    places = {d: node for d, node in tree.places.items() if d != device_id}
    return with_tree(info, replace(tree, places=places)) if "tree" in info else dict(info)


def members_of(tree: Tree, node: str) -> tuple[str, ...]:
    """Return the devices that have told that they are in a node, and not yet in one below."""
    return tuple(sorted(d for d, place in tree.places.items() if place == node))


def next_exchanges(tree: Tree, min_sum: int) -> dict[str, SurveySum]:
    """Return the exchanges that can begin now, by node; empty if no sum is to be asked for.

    Devices that have not told their side of a split tell it first (`tell_of`).
    """
    if tree.scale is None:
        return {"": SurveySum("scale")}
    exchanges: dict[str, SurveySum] = {}
    by_node = {plane.node: plane for plane in tree.planes}
    for leaf in tree.leaves:
        node = tree.nodes.get(leaf, TreeNode())
        if node.tested or len(leaf) >= MOST_DEPTH or len(members_of(tree, leaf)) < 2 * min_sum:
            continue
        planes = tuple(by_node[node] for node in ancestors_of(leaf))
        axes = tuple(axis for view in node.views for axis in view.axes)
        exchanges[leaf] = (
            SurveySum("density", leaf, tree.scale, planes, axes)
            if axes
            else SurveySum("moments", leaf, tree.scale, planes)
        )
    return exchanges


def tell_of(tree: Tree) -> TellGroup | None:
    """Return the verb by which devices tell their group; None while nothing is split."""
    if tree.scale is None or not tree.planes:
        return None
    return TellGroup(tree.scale, tree.planes)


def untold(tree: Tree) -> tuple[str, ...]:
    """Return the devices that have to tell their side of a split."""
    leaves = set(tree.leaves)
    return tuple(sorted(d for d, node in tree.places.items() if node not in leaves))


def with_places(tree: Tree, places: Mapping[str, str], min_sum: int) -> Tree:
    """Return the tree after devices have told their nodes.

    Devices that have not told their side of a split are left out, as newcomers are. A split with
    fewer than `min_sum` devices on a side is given up: helpers would open no sum of theirs.
    """
    tree = replace(tree, places={**tree.places, **places})
    rest = set(untold(tree))
    tree = replace(tree, places={d: n for d, n in tree.places.items() if d not in rest})
    for plane in reversed(tree.planes):  # the deepest first
        sides = [
            sum(place.startswith(plane.node + side) for place in tree.places.values())
            for side in "01"
        ]
        if min(sides) < min_sum:
            tree = _without_split(tree, plane.node)
    return tree


def _without_split(tree: Tree, node: str) -> Tree:
    """Return the tree with a node whole again, and without the nodes below it."""
    rest = {n: each for n, each in tree.nodes.items() if n == node or not n.startswith(node)}
    rest[node] = replace(rest[node], plane=None)
    places = {d: node if p.startswith(node) else p for d, p in tree.places.items()}
    return Tree(tree.scale, rest, places)


def after_sums(
    tree: Tree, exchange: SurveySum, sums: Tensors, devices: tuple[str, ...], min_sum: int
) -> Tree:
    """Return the tree after the sums of an exchange.

    Args:
        tree: the tree that the exchange followed from.
        exchange: the exchange.
        sums: sum (n,) float64 of the devices' numbers, by part.
        devices: devices of the sum.
        min_sum: smallest number of devices of a sum.
    """
    if exchange.scale is None:
        return Tree(_scale(sums, len(devices)), {}, dict.fromkeys(devices, ""))
    node = tree.nodes.get(exchange.node, TreeNode())
    if exchange.kind == "moments":
        node = _moments(sums, len(devices))
    else:
        node = _tested(node, exchange, sums, len(devices), min_sum)
    return replace(tree, nodes={**tree.nodes, exchange.node: node})


def _scale(sums: Tensors, count: int) -> SurveyScale:
    means = {name: values / count for name, values in sums.items()}
    origin = means["sketch"]
    spreads = [float(means["length"][0] - origin @ origin)]
    mean, deviation = np.zeros(0), np.zeros(0)
    if "means" in means:
        mean, deviation = means["means"], np.sqrt(np.maximum(means["variances"], 1e-6))
        scattered = np.maximum(means["squares"] - mean**2, 0.0) / deviation**2
        spreads.insert(0, float(scattered.sum()))
    return SurveyScale(
        _short(mean),
        _short(deviation),
        _short(origin),
        _short(np.sqrt(np.maximum(spreads, 1e-8))),
    )


def _short(numbers: Array) -> tuple[float, ...]:
    """Return numbers with six digits, so that a plan with many of them is a short message."""
    return tuple(float(f"{number:.6g}") for number in numbers)


def _moments(sums: Tensors, count: int) -> TreeNode:
    mean = sums["coordinates"] / count
    upper = np.zeros((len(mean), len(mean)))
    upper[np.triu_indices(len(mean))] = sums["products"] / count
    square = upper + np.triu(upper, 1).T
    covariance, inputs = square - np.outer(mean, mean), len(mean) - WIDTH
    views = [slice(0, len(mean))]
    if inputs:
        views += [slice(0, inputs), slice(inputs, len(mean))]
    return TreeNode(tuple(_view(covariance, mean, view) for view in views))


def _view(covariance: Matrix, mean: Array, view: slice) -> ViewAxes:
    """Return the principal axes of some coordinates, as axes of all of them."""
    short, deviations = principal_axes(covariance[view, view])
    axes = np.zeros((len(short), len(mean)))
    axes[:, view] = short
    rows = zip(axes, deviations, strict=False)  # there are more deviations than axes
    return ViewAxes(
        tuple(
            Axis(_short(axis), float(axis @ mean), max(float(deviation), 1e-9))
            for axis, deviation in rows
        ),
        tuple(deviations.tolist()),
    )


def _tested(
    node: TreeNode, exchange: SurveySum, sums: Tensors, count: int, min_sum: int
) -> TreeNode:
    bins = np.rint(sums["bins"]).astype(np.int64).reshape(-1, BINS)
    if (bins < 0).any() or (bins.sum(1) != count).any():  # a device lies, so nothing is known
        return replace(node, tested=True)
    cuts: list[tuple[AxisCut, Axis]] = []
    for view in node.views:
        rows, bins = bins[: len(view.axes)], bins[len(view.axes) :]
        cut = test_axes(rows, np.array(view.deviations), min_sum)
        cuts.append((cut, view.axes[cut.axis]))
    both, *single = cuts
    choices = [(both, CHANCE)] + [
        (each, CHANCE_OF_ONE)
        for each in sorted(single, key=lambda each: (each[0].p, -each[0].share))
    ]
    for (cut, axis), chance in choices:
        if cut.p <= chance / 2 ** len(exchange.node) and cut.share >= LEAST_SHARE:
            plane = Plane(exchange.node, axis.axis, axis.mean + cut.place)
            return replace(node, tested=True, plane=plane, share=cut.share, p=cut.p)
    return replace(node, tested=True, share=both[0].share, p=both[0].p)
