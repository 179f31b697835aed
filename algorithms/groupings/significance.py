"""Groups of N devices, found by significance tests without a preset number or threshold.

Devices are seen in one or several views (their inputs, their labels, the responses of their
models). If the fleet is more grouped, in some view, than all but a share ALPHA of populations
without groups would be (`bootstrap`), it is split, and each part is tested again.

Of more than SAMPLE devices a random sample is tested, and every device joins the nearest of the
groups found in it; each part is then tested with a sample of its own. Groups too rare for a sample
show as devices that are farther from the centre than chance explains. Such outliers are tested
together with a sample of the other devices. Time and memory are linear in N.

A device that reports nothing in a view takes no part in the test of this view, and joins the
nearest of the groups found in it by what it does report. Views share ALPHA if there are enough
devices in each for a test of the fleet, so that one device hardly ever changes the level.

No device alone makes or prevents a group. What it reports counts no farther than the second most
extreme report of each number (`bounded`). If a group is not there without some one of its members,
the tree is cut into fewer groups. If every cut has such a group, its devices are set aside, and the
others are tested without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import scipy

from algorithms.core.contract import Matrix
from algorithms.groupings.bootstrap import Draws, Test, run_test
from algorithms.groupings.views import Points, View, euclidean_coordinates
from wire.arrays.tensors import Array

ALPHA = 0.05
"""Chance to split a fleet that has no groups, over all views (Bonferroni): the textbook level.

A group that the test finds without any one of its members has more evidence than one test of one
view: for it, one view at this level is enough, whatever the others show.
"""
STRONG, DOUBT = ALPHA / 10, 4 * ALPHA
"""Bounds of p between which a test does not change the number of a fleet's groups.

A split needs p of at most STRONG. Groups are merged if no p of their devices is below DOUBT.
"""
FEWEST_DEVICES = 8
"""Minimum size of a set that is tested: halves of a smaller one have fewer than four devices."""
PAIR = 2
"""Minimum size of a group, in which each device must stand apart from all others by itself."""
FEWEST_MEMBERS = 3
"""Number of outliers from which a large fleet is tested again."""
ASIDE = -1
"""Label of a device that belongs to no group of a test."""
SAMPLE = 256
"""Number of devices that are tested at a time in a larger fleet."""
DRAWS = Draws(999)
"""Bootstrap populations; p is resolved to 1 / 1000, well below ALPHA over any number of views."""
DRAWS_OF_SAMPLES = Draws(199, enough=10)
"""Bootstrap populations of the many tests of a larger fleet; p is resolved to 1 / 200."""


def find_groups(
    views: Mapping[str, View | Array], num_examples: Array, seed: int = 0
) -> tuple[Array, list[Test]]:
    """Return the group labels 0..G-1 of N devices, and the tests behind them.

    `views` maps a name to a view of N devices, or to rows (N, d); `num_examples` is (N,). Devices
    must be in the order of their ids: then the result does not depend on the order in which they
    arrived.
    """
    seen, n = _bounded(views, num_examples)
    everybody, draws = np.arange(len(n)), DRAWS if len(n) <= SAMPLE else DRAWS_OF_SAMPLES
    testable = {
        k: view for k, view in seen.items() if view.tells(everybody).sum() >= FEWEST_DEVICES
    }
    return _partition(testable, n, everybody, seed, draws)


def is_split(tests: Sequence[Test]) -> bool:
    """Return True if tests are evidence enough for more groups than before."""
    level = ALPHA / max(1, len({test.view for test in tests}))
    significant = [test.p for test in tests if test.p <= level]
    return bool(significant) and max(significant) <= STRONG


def is_merged(views: Mapping[str, View], num_examples: Array, reporting: Array) -> bool:
    """Return True if tests are evidence enough that N devices of several groups are one group.

    Each view in which a device reports something is tested, and no p is below DOUBT, also without
    any one of the devices that report again: their positions are `reporting`. Of more than SAMPLE
    devices none is left out.
    """
    seen, n = _bounded(views, num_examples)
    everybody = np.arange(len(n))
    needed = {name for name, view in seen.items() if view.tells(everybody).any()}
    for left_out in (ASIDE, *(reporting if len(n) <= SAMPLE else ())):
        members = everybody[everybody != left_out]
        labels, tests = _partition(seen, n, members, 0, DRAWS_OF_SAMPLES)
        untested = needed - {test.view for test in tests}
        if labels.any() or untested or min((test.p for test in tests), default=0.0) < DOUBT:
            return False
    return True


def _bounded(
    views: Mapping[str, View | Array], num_examples: Array
) -> tuple[dict[str, View], Matrix]:
    """Return the views by name, and the numbers of examples, with bounded values."""
    n = bounded(np.asarray(num_examples, np.float64))
    everybody = np.arange(len(n))
    seen: dict[str, View] = {}
    for name, view in sorted(views.items()):
        points = Points(view) if isinstance(view, np.ndarray) else view
        if isinstance(points, Points):
            rows = points.rows
            if points.telling is None:
                rows = bounded(rows)
            else:
                rows = rows.copy()
                rows[points.telling] = bounded(rows[points.telling])
            points = Points(rows, points.telling)
        if FEWEST_DEVICES <= len(n) <= SAMPLE:
            points = Points(_coordinates(points, everybody), points.tells(everybody))
        seen[name] = points
    return seen, n


def bounded(rows: Array) -> Array:
    """Return rows (N, ...) with the extremes of each column replaced by the second ones.

    So one device is at most as far out in a column as another one is. Fewer than three rows are
    returned unchanged.
    """
    if len(rows) < 3:
        return rows
    ordered = np.partition(rows, (1, len(rows) - 2), axis=0)
    return np.asarray(np.clip(rows, ordered[1], ordered[-2]))


def _coordinates(view: View, members: Array) -> Matrix:
    points = view.points(members)
    return euclidean_coordinates(points) if isinstance(view, Points) else points


def _partition(
    views: Mapping[str, View], n: Matrix, members: Array, seed: int, draws: Draws
) -> tuple[Array, list[Test]]:
    one_group = np.zeros(len(members), np.int64)
    if len(members) < FEWEST_DEVICES or not views:
        return one_group, []
    labels, tests = _split(views, n, members, seed, draws)
    if labels is None:
        return one_group, tests
    result, count = one_group, 0
    for label in range(labels.max() + 1):
        part = np.flatnonzero(labels == label)
        inner, inner_tests = _partition(views, n, members[part], seed, draws)
        result[part] = count + inner
        count += int(inner.max()) + 1
        tests += inner_tests
    return result, tests


def _split(
    views: Mapping[str, View], n: Matrix, members: Array, seed: int, draws: Draws
) -> tuple[Array | None, list[Test]]:
    """Return the group of each member, or None if there is only one group, and the tests."""
    if len(members) <= SAMPLE:
        split, tests = _test(views, n, members, seed, draws)
        if split is None:
            return None, tests
        return _join(views, split[0], n, members, members, split[1]), tests
    rng = np.random.default_rng(seed)
    chosen = _sample(views, members, rng)
    split, tests = _test(views, n, chosen, seed, draws)
    if split is None:
        far = _outliers(views, n, members, chosen)
        if len(far) < max(FEWEST_MEMBERS, len(members) / SAMPLE):
            return None, tests
        usual = chosen
        far = rng.permutation(far)[: SAMPLE // 2]
        chosen = np.sort(
            np.concatenate([far, rng.permutation(np.setdiff1d(members, far))[: SAMPLE - len(far)]])
        )
        split, more_tests = _test(views, n, chosen, seed, draws)
        tests += more_tests
        if split is not None:
            split = split[0], _keep_compact(views[split[0]], n, usual, chosen, split[1])
    if split is None or split[1].max() == 0:
        return None, tests
    return _join(views, split[0], n, members, chosen, split[1]), tests


def _sample(views: Mapping[str, View], members: Array, rng: np.random.Generator) -> Array:
    """Return SAMPLE of the members, sorted.

    If few of them report something in a view, half of the sample is drawn among those that do.
    """
    chosen = rng.choice(members, SAMPLE, replace=False)
    for view in views.values():
        if view.tells(chosen).sum() < SAMPLE // 2:
            tellers = rng.permutation(members[view.tells(members)])[: SAMPLE // 2]
            others = rng.permutation(np.setdiff1d(members, tellers))
            chosen = np.concatenate([tellers, others[: SAMPLE - len(tellers)]])
    return np.sort(chosen)


def _keep_compact(view: View, n: Matrix, usual: Array, chosen: Array, labels: Array) -> Array:
    """Return labels without groups that are only the rim of a population with long tails.

    Such a group has fewer than half of FEWEST_DEVICES devices, or its median distance from its own
    centre is larger than all but a share ALPHA of the distances in a usual sample.
    """
    usual = usual[view.tells(usual)]
    bound = np.quantile(_roots(_own_distances(view, usual), n[usual], n[usual]), 1 - ALPHA)
    groups = [chosen[labels == g] for g in range(labels.max() + 1)]
    compact_groups = [
        g
        for g in groups
        if len(g) >= FEWEST_DEVICES // 2
        and np.median(_roots(_own_distances(view, g), n[g], n[usual])) <= bound
    ]
    result = np.where(labels == ASIDE, ASIDE, 0)
    for g, group in enumerate(sorted(compact_groups, key=len, reverse=True)):
        result[np.isin(chosen, group)] = g
    return result


def _own_distances(view: View, group: Array) -> Matrix:
    """Return the squared distances of a group's members to their centre."""
    return view.squared_distances(group, view.centre(group)[None])[:, 0]


def _test(
    views: Mapping[str, View], n: Matrix, members: Array, seed: int, draws: Draws
) -> tuple[tuple[str, Array] | None, list[Test]]:
    """Return the clearest view with the group of each member, or None, and the test of each view.

    None means that no view is significant, or that in none enough devices report something. If a
    group hangs on one of its members, in its view alone, there may be fewer groups in which none
    does. Otherwise its members take no part: their label is `ASIDE`, and the others are tested
    without them. `ASIDE` is also the label of members that report nothing in the view.
    """
    rest, labels = np.arange(len(members)), np.full(len(members), ASIDE)
    tests: list[Test] = []
    while testable := {
        name: view
        for name, view in views.items()
        if view.tells(members[rest]).sum() >= FEWEST_DEVICES
    }:
        best, latest = _clearest(testable, n, members[rest], seed, draws)
        tests = latest if best.p <= ALPHA else tests or latest
        if best.p > ALPHA or best.labels.max() == 0:
            break
        view = {best.view: views[best.view]}
        aside = np.empty(0, np.int64)
        for cut in best.cuts:  # small parts of one clear group may hang on one device
            groups = [rest[cut == g] for g in range(cut.max() + 1)]
            doubtful = [g for g in groups if _hangs_on_one(view, n, members, rest, g, seed)]
            again = min(map(len, groups)) < FEWEST_DEVICES  # then tested without each member
            if not doubtful and (again or best.p <= ALPHA / len(views)):
                labels[rest] = cut
                return (best.view, labels), latest
            if not len(aside) and doubtful:
                aside = np.concatenate(doubtful)
        if not len(aside):
            break
        rest = np.setdiff1d(rest, aside)
    return None, tests


def _clearest(
    views: Mapping[str, View], n: Matrix, members: Array, seed: int, draws: Draws
) -> tuple[Test, list[Test]]:
    """Return the test of the clearest view, and the test of each view.

    In each cut of the clearest one, each device is in the group with the nearest median. Ward's
    tree decides step by step, so one device can lead another one to a group that is farther away.
    The label of a device that reports nothing in the view is `ASIDE`.
    """
    telling = {name: view.tells(members) for name, view in views.items()}
    points = {name: view.points(members[telling[name]]) for name, view in views.items()}
    tests = [
        run_test(name, seen, n[members[telling[name]]], seed, draws)
        for name, seen in points.items()
    ]
    best = min(tests, key=lambda test: (test.p, -test.z))
    cuts = np.full((len(best.cuts), len(members)), ASIDE)
    for row, cut in zip(cuts, best.cuts, strict=True):
        row[telling[best.view]] = _nearest_medians(points[best.view], cut)
    return replace(best, labels=cuts[0], coarser=tuple(cuts[1:])), tests


def _nearest_medians(points: Matrix, labels: Array) -> Array:
    """Return the label of each point: that of the group with the nearest median."""
    medians = [np.median(points[labels == g], axis=0) for g in range(labels.max() + 1)]
    nearest = np.stack([((points - median) ** 2).sum(1) for median in medians]).argmin(0)
    return np.asarray(np.unique(nearest, return_inverse=True)[1])


def _hangs_on_one(
    views: Mapping[str, View], n: Matrix, members: Array, rest: Array, group: Array, seed: int
) -> bool:
    """Return True if a group is not there without some one of its members.

    `rest` are the positions among `members` of the devices that were tested, and `group` those of
    the group. A group of FEWEST_DEVICES or more does not hang on one. A group of two does not if
    each of them alone stands apart from the others.
    """
    if len(group) == PAIR:
        others = members[np.setdiff1d(rest, group)]
        return not all(
            _stands_apart(view, n, members[group], others).all() for view in views.values()
        )
    if not PAIR < len(group) < FEWEST_DEVICES:
        return len(group) < PAIR
    for member in group:
        others = rest[rest != member]
        test, _ = _clearest(views, n, members[others], seed, DRAWS_OF_SAMPLES)
        inside = np.isin(others, group)
        parts = (cut == np.bincount(cut[inside]).argmax() for cut in test.cuts)
        if test.p > ALPHA / len(views) or not any(
            (inside & part).sum() * 2 > (inside | part).sum() for part in parts
        ):
            return True
    return False


def _stands_apart(view: View, n: Matrix, devices: Array, others: Array) -> Array:
    """Return True (m,) for each device that is improbably far from the centre of the others."""
    others = others[view.tells(others)]
    apart = (len(others) + 1) / (len(others) - 1)  # a centre is nearer to its own devices
    usual = _roots(_own_distances(view, others) * apart, n[others], n[others])
    distances = view.squared_distances(devices, view.centre(others)[None])[:, 0]
    return np.asarray(
        _roots(distances, n[devices], n[others]) > _bound(usual, STRONG / len(others))
    )


def _join(
    views: Mapping[str, View], name: str, n: Matrix, members: Array, chosen: Array, labels: Array
) -> Array:
    """Return the label of each member: the nearest of the groups found in a sample by one view.

    The sampled devices keep their labels, except those that were set aside. Members that report
    nothing in the view join by the other views.

    The mean of m sampled devices is off its group's centre by a share 1 / m of their spread, so
    that small groups look farther away than they are, most of all in many dimensions. That share is
    subtracted.
    """
    view = views[name]
    groups = [chosen[labels == g] for g in range(labels.max() + 1)]
    centres = np.stack([view.centre(group) for group in groups])
    spreads = [
        view.squared_distances(group, centres[g : g + 1]).sum() / (len(group) - 1)
        for g, group in enumerate(groups)
    ]
    nearest = (
        view.squared_distances(members, centres)
        - np.array(spreads) / [len(group) for group in groups]
    ).argmin(1)
    part = labels != ASIDE
    nearest[np.searchsorted(members, chosen[part])] = labels[part]
    tells = view.tells(members)
    if not tells.all():
        placed, silent = np.full(len(n), ASIDE), members[~tells]
        placed[members[tells]] = nearest[tells]
        new = {other: seen.of(silent) for other, seen in views.items()}
        nearest[~tells] = join_groups(views, n, placed, new, n[silent])[0]
    return np.asarray(nearest)


def _outliers(views: Mapping[str, View], n: Matrix, members: Array, chosen: Array) -> Array:
    """Return the members that are improbably far from a sample's centre in at least one view."""
    far = np.zeros(len(members), bool)
    chance = ALPHA / (len(views) * len(members))
    for view in views.values():
        usual = chosen[view.tells(chosen)]
        if not len(usual):
            continue
        distances = view.squared_distances(members, view.centre(usual)[None])[:, 0]
        far |= view.tells(members) & (
            _roots(distances, n[members], n[usual])
            > _bound(_roots(_own_distances(view, usual), n[usual], n[usual]), chance)
        )
    return members[far]


def _roots(squared: Matrix, n: Matrix, usual: Matrix) -> Matrix:
    """Return cube roots of squared distances, less for devices with few examples.

    Such a device may be far because of noise.
    """
    return np.asarray(np.cbrt(squared * np.minimum(1.0, n / usual.mean())))


def _bound(roots: Matrix, chance: float) -> float:
    """Return the cube root of a squared distance that one more device exceeds with chance `chance`.

    The device is of the same population as `roots`. A squared distance is a sum of many squares, so
    that its cube root is nearly normal (E. B. Wilson, M. M. Hilferty. The distribution of
    chi-square. PNAS 17, 1931). The median and quartiles are the sample's, which a few outliers do
    not move.
    """
    low, middle, high = np.quantile(roots, (0.25, 0.5, 0.75))
    return float(
        middle
        + (high - low)
        / (scipy.special.ndtri(0.75) - scipy.special.ndtri(0.25))
        * -scipy.special.ndtri(chance)
    )


def join_groups(
    views: Mapping[str, View],
    num_examples: Array,
    labels: Array,
    new: Mapping[str, View],
    new_examples: Array,
) -> tuple[Array, Array]:
    """Return the nearest group (M,) int of M new devices, and True (M,) for those that fit.

    N other devices form the groups; their `labels` (N,) are 0..G-1, or ASIDE for a device that is
    in none. Nearest is by the squared distance to the groups' centres, summed over the views in
    which a device reports something, each divided by its spread. Without such a view, it is the
    largest group. A device fits if in no view it is farther from the centre than any of M devices
    of that group should be. Both mappings have the same views.
    """
    groups = [np.flatnonzero(labels == g) for g in range(labels.max() + 1)]
    n, new_n = np.asarray(num_examples, np.float64), np.asarray(new_examples, np.float64)
    newcomers = np.arange(len(new_n))
    apart, comparable = np.zeros((len(new_n), len(groups))), np.zeros(len(new_n), bool)
    distances, tellers = {}, {}
    for name, view in views.items():
        tellers[name] = [group[view.tells(group)] for group in groups]
        if not all(map(len, tellers[name])):  # a group without a centre can be compared with none
            continue
        centres = np.stack([view.centre(group) for group in tellers[name]])
        distances[name] = new[name].squared_distances(newcomers, centres)
        tells, everybody = new[name].tells(newcomers), np.concatenate(tellers[name])
        spread = max(float(_own_distances(view, everybody).mean()), 1e-300)
        apart[tells] += distances[name][tells] / spread
        comparable |= tells
    nearest = np.where(
        comparable, apart.argmin(1), int(np.argmax([len(group) for group in groups]))
    )
    fits = np.ones(len(new_n), bool)
    chance = ALPHA / (len(views) * len(new_n))
    for g in np.unique(nearest):
        at = np.flatnonzero(nearest == g)
        for name in distances:
            view, group = views[name], tellers[name][g]
            wider = (len(group) + 1) / max(
                1, len(group) - 1
            )  # a group's centre is nearer to its own members than to one more device
            bound = _bound(_roots(_own_distances(view, group) * wider, n[group], n[group]), chance)
            near = _roots(distances[name][at, g], new_n[at], n[group]) <= bound
            fits[at] &= near | ~new[name].tells(at)
    return nearest, fits
