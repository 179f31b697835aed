"""Groups from sums: cuts of densities, and the tree of a made-up fleet whose sums are exact."""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.groupings.sums import density
from algorithms.groupings.sums.density import best_cuts, middles, one_population, principal_axes
from algorithms.groupings.sums.density import test_axes as cut_of
from algorithms.groupings.sums.tree import (
    Tree,
    TreeNode,
    after_sums,
    members_of,
    next_exchanges,
    tell_of,
    tree_in,
    untold,
    with_places,
    with_tree,
)
from edge_client.core.survey import DeviceSurvey, coordinates, numbers_of
from wire.arrays.tensors import Array, Tensors
from wire.secret.coordinates import bins_of, node_of
from wire.secret.fixed import FixedPoint
from wire.secret.survey import (
    BINS,
    MOST_DEPTH,
    SURVEY_BITS,
    SURVEY_MOST,
    WIDTH,
    Plane,
    SurveySum,
    TellGroup,
    parts_of,
)

MIN_SUM = 5


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "DRAWS", 999)


def fleet(count: int, apart: float, seed: int = 0, kinds: int = 2) -> dict[str, DeviceSurvey]:
    """Devices of some kinds, `apart` deviations of a device from each other in each mean."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 0.1, (kinds, 40)) * apart
    return {
        f"d{number:03d}": DeviceSurvey(
            centres[number % kinds] + rng.normal(0, 0.1, 40), np.ones(40), rng.normal(0, 0.2, WIDTH)
        )
        for number in range(count)
    }


class Survey:
    """A fleet that is asked until its groups are found, with the exchanges and the sets of sums."""

    def __init__(self, devices: Mapping[str, DeviceSurvey], min_sum: int = MIN_SUM) -> None:
        self.devices, self.min_sum, self.tree = devices, min_sum, Tree()
        self.sets: list[tuple[str, frozenset[str]]] = []
        self.draws = np.random.default_rng(7)
        while self.tell() or self.exchange():
            text = msgspec.json.encode(with_tree({}, self.tree))
            assert tree_in(msgspec.json.decode(text)) == self.tree, "a tree is stored as it is"

    def tell(self) -> bool:
        devices, tell = untold(self.tree), tell_of(self.tree)
        if not devices:
            return False
        assert tell is not None
        assert msgspec.json.decode(msgspec.json.encode(tell), type=TellGroup) == tell
        self.tree = with_places(self.tree, {d: self.node(d, tell) for d in devices}, self.min_sum)
        return True

    def node(self, device: str, tell: TellGroup) -> str:
        return node_of(coordinates(self.devices[device], tell.scale), tell.planes)

    def exchange(self) -> bool:
        exchanges = next_exchanges(self.tree, self.min_sum)
        for node, exchange in exchanges.items():
            devices = members_of(self.tree, node) if exchange.scale else tuple(self.devices)
            self.sets.append((f"{exchange.kind} {node}", frozenset(devices)))
            sums = self.sums(exchange, devices)
            self.tree = after_sums(self.tree, exchange, sums, devices, self.min_sum)
        return bool(exchanges)

    def sums(self, exchange: SurveySum, devices: tuple[str, ...]) -> Tensors:
        assert msgspec.json.decode(msgspec.json.encode(exchange), type=SurveySum) == exchange
        fixed = FixedPoint(SURVEY_BITS, SURVEY_MOST)
        parts = parts_of(exchange, 40)
        totals = {name: np.zeros(part.count, fixed.dtype) for name, part in parts.items()}
        for device in devices:
            numbers = numbers_of(exchange, self.devices[device])
            assert numbers.keys() == parts.keys()
            for name, part in parts.items():
                uniform = self.draws.random(part.count)
                totals[name] += fixed.encode(numbers[name], part.clip, uniform)
        return {name: fixed.decode(totals[name], part.clip) for name, part in parts.items()}


def kinds_in(survey: Survey, kinds: int = 2) -> set[tuple[int, str]]:
    return {(int(device[1:]) % kinds, group) for device, group in survey.tree.groups.items()}


class TestTree:
    def test_two_kinds_of_devices_are_two_groups_after_six_exchanges(self) -> None:
        survey = Survey(fleet(24, 4.0))
        groups = kinds_in(survey)
        assert len(groups) == 2
        assert {group for _, group in groups} == {"0", "1"}
        assert [name for name, _ in survey.sets] == [
            "scale ",
            "moments ",
            "density ",
            "moments 0",
            "moments 1",
            "density 0",
            "density 1",
        ]

    def test_four_kinds_are_four_groups(self) -> None:
        assert len(kinds_in(Survey(fleet(80, 6.0, kinds=4)), kinds=4)) == 4

    def test_a_difference_in_labels_alone_is_found(self) -> None:
        devices = fleet(40, 0.0)
        sketch = np.random.default_rng(5).normal(0, 0.5, WIDTH)
        for number, (device, measured) in enumerate(devices.items()):
            moved = measured.sketch + sketch * (number % 2)
            devices[device] = DeviceSurvey(measured.means, measured.variances, moved)
        assert len(kinds_in(Survey(devices))) == 2

    def test_a_model_without_batch_norm_is_grouped_by_labels(self) -> None:
        nothing, sketch = np.zeros(0), np.random.default_rng(5).normal(0, 0.5, WIDTH)
        devices = {
            device: DeviceSurvey(nothing, nothing, measured.sketch + sketch * (number % 2))
            for number, (device, measured) in enumerate(fleet(40, 0.0).items())
        }
        assert len(kinds_in(_WithoutInputs(devices))) == 2

    @pytest.mark.parametrize("seed", range(5))
    def test_one_kind_is_one_group(self, seed: int) -> None:
        survey = Survey(fleet(20, 0.0, seed))
        assert set(survey.tree.groups.values()) == {"0"}
        assert len(survey.sets) == 3

    def test_fewer_than_two_sums_of_devices_are_never_split(self) -> None:
        survey = Survey(fleet(9, 6.0))
        assert set(survey.tree.groups.values()) == {"0"}
        assert [name for name, _ in survey.sets] == ["scale "]

    @settings(max_examples=8, deadline=None)
    @given(st.integers(10, 40), st.floats(0, 6), st.integers(0, 99), st.integers(2, 8))
    def test_every_sum_is_over_enough_devices_and_over_whole_nodes(
        self, count: int, apart: float, seed: int, min_sum: int
    ) -> None:
        survey = Survey(fleet(count, apart, seed, kinds=3), min_sum)
        for _, devices in survey.sets:
            assert len(devices) >= min(min_sum, count)
            for _, others in survey.sets:
                both, rest = devices & others, devices - others
                assert not both or len(both) >= min(min_sum, count)
                assert not rest or len(rest) >= min_sum
        sizes = [*survey.tree.groups.values()]
        assert len(sizes) == count
        assert all(sizes.count(group) >= min(min_sum, count) for group in sizes)

    def test_a_newcomer_finds_its_group_without_a_sum(self) -> None:
        devices = fleet(30, 4.0)
        first = {d: devices[d] for d in [*devices][:24]}
        survey = Survey(first)
        survey.devices, tell = devices, tell_of(survey.tree)
        assert tell is not None
        nodes = {d: survey.node(d, tell) for d in devices if d not in first}
        survey.tree = with_places(survey.tree, nodes, MIN_SUM)
        assert not next_exchanges(survey.tree, MIN_SUM)
        assert len(kinds_in(survey)) == 2
        assert len(survey.tree.groups) == 30

    def test_a_split_with_too_few_devices_on_a_side_is_given_up(self) -> None:
        survey = Survey(fleet(24, 4.0))
        plane = known_plane(survey.tree)
        places = dict.fromkeys(survey.tree.places, "")
        root = replace_plane(survey.tree.nodes[""], plane)
        tree = Tree(survey.tree.scale, {"": root}, places)
        some = dict.fromkeys([*places][:4], "1")
        tree = with_places(tree, dict.fromkeys(places, "0") | some, MIN_SUM)
        assert tree.planes == ()
        assert set(tree.groups.values()) == {"0"}
        assert not next_exchanges(tree, MIN_SUM)

    def test_devices_that_do_not_tell_their_side_are_in_no_group(self) -> None:
        survey = Survey(fleet(24, 4.0))
        plane = known_plane(survey.tree)
        root = replace_plane(survey.tree.nodes[""], plane)
        tree = Tree(survey.tree.scale, {"": root}, dict.fromkeys(survey.devices, ""))
        ids = sorted(survey.devices)
        sides = {d: "01"[number % 2] for number, d in enumerate(ids[5:])}
        tree = with_places(tree, sides, MIN_SUM)
        assert not untold(tree)
        assert tree.groups == sides

    @pytest.mark.parametrize("lie", [-25.0, 1.0, 2.0**30])
    def test_counts_that_no_devices_can_have_split_nothing(
        self, lie: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A device whose masks are not those of its seeds makes a sum of any integers."""
        exact = Survey.sums

        def sums(survey: Survey, exchange: SurveySum, devices: tuple[str, ...]) -> Tensors:
            sums = exact(survey, exchange, devices)
            if exchange.kind == "density":
                sums["bins"][0] += lie
            return sums

        monkeypatch.setattr(Survey, "sums", sums)
        survey = Survey(fleet(24, 4.0))
        assert set(survey.tree.groups.values()) == {"0"}

    def test_nothing_is_split_deeper_than_devices_tell(self) -> None:
        survey = Survey(fleet(24, 4.0))
        deep = "0" * MOST_DEPTH
        plane = known_plane(survey.tree)
        path = [deep[:depth] for depth in range(MOST_DEPTH)]
        nodes = {n: TreeNode((), True, msgspec.structs.replace(plane, node=n)) for n in path}
        tree = Tree(survey.tree.scale, nodes, dict.fromkeys(survey.devices, deep))
        assert not next_exchanges(tree, MIN_SUM)


class _WithoutInputs(Survey):
    def sums(self, exchange: SurveySum, devices: tuple[str, ...]) -> Tensors:
        parts = parts_of(exchange, 0)
        rows = [numbers_of(exchange, self.devices[device]) for device in devices]
        assert all(row.keys() == parts.keys() for row in rows)
        return {name: np.sum([row[name] for row in rows], 0) for name in parts}


def known_plane(tree: Tree) -> Plane:
    (plane,) = tree.planes
    return plane


def replace_plane(node: TreeNode, plane: Plane) -> TreeNode:
    return msgspec.structs.replace(node, plane=plane)


def partitions(points: Array, least: int) -> Iterator[tuple[float, int]]:
    """The share between the sides of every cut, by its definition."""
    for lower in range(least, len(points) - least + 1):
        if points[lower] > points[lower - 1]:
            sides = points[:lower], points[lower:]
            inside = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
            yield 1 - inside / float(((points - points.mean()) ** 2).sum()), lower


class TestDensity:
    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.integers(0, 31), min_size=4, max_size=30), st.integers(2, 6))
    def test_the_best_cut_is_the_best_of_all_cuts(self, bins: list[int], least: int) -> None:
        points = np.sort(middles(np.array(bins), 1.0))
        share, lower = best_cuts(points, least)
        cuts = [*partitions(points, least)] if len(points) >= 2 * least else []
        best = max(cuts, default=(0.0, 0))
        assert share == pytest.approx(best[0], abs=1e-9)
        if cuts:
            assert {below: each for each, below in cuts}[int(lower)] == pytest.approx(best[0])

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 1000), st.integers(10, 40))
    def test_sides_by_bins_are_the_sides_that_devices_tell(self, seed: int, count: int) -> None:
        """So a split has as many devices on each side as the density says."""
        rng = np.random.default_rng(seed)
        points = rng.normal(0, 1, (count, 3)) + 4 * (rng.random((count, 1)) > 0.5)
        axes, deviations = principal_axes(np.cov(points.T, bias=True))
        along = points @ axes.T - axes @ points.mean(0)
        bins = np.stack(
            [
                np.bincount(bins_of(along[:, k], deviations[k]), minlength=BINS)
                for k in range(len(axes))
            ]
        )
        cut = cut_of(bins, deviations, MIN_SUM)
        below = int((along[:, cut.axis] <= cut.place).sum())
        if cut.share:
            assert MIN_SUM <= below <= count - MIN_SUM

    def test_one_population_rarely_has_a_small_p(self) -> None:
        rng, small = np.random.default_rng(3), 0
        for _ in range(40):
            points = rng.standard_normal((20, 8)) * np.linspace(1, 3, 8)
            axes, deviations = principal_axes(np.cov(points.T, bias=True))
            along = (points - points.mean(0)) @ axes.T
            rows = [bins_of(along[:, k], deviations[k]) for k in range(len(axes))]
            bins = np.stack([np.bincount(row, minlength=BINS) for row in rows])
            small += cut_of(bins, deviations, MIN_SUM).p <= 0.1
        assert small <= 10, "4 are expected"

    def test_shares_of_one_population_are_near_that_of_a_gaussian(self) -> None:
        shares = one_population(np.array([2.0, 1.0]), 50, 2, MIN_SUM)
        assert 0.6 < float(shares[:, 0].mean()) < 0.75

    def test_the_sign_of_an_axis_is_fixed(self) -> None:
        axes, _ = principal_axes(np.diag([1.0, 9.0, 4.0]))
        np.testing.assert_allclose(axes, [[0, 1, 0], [0, 0, 1], [1, 0, 0]], atol=1e-12)
