"""Scenarios: few labels, none, and newcomers; what goes with which partition; and that runs are
made and told in them."""

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.fleet.records import Placed
from algorithms.composition import read_algorithm
from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from simulation.newcomers import NewcomerResult, Reception, hold_out
from simulation.partition import partition, read_partition
from simulation.scenario import Labels, Scenario, check_scenario, labelled, read_labels, set_scene
from simulation.settings import SimulationSettings
from simulation.simulate import check_settings, simulate
from simulation.splits import read_split
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.bundle import Window
from wire.errors import ConfigError
from wire.messages import Metrics


def numbered(*labels: list[int]) -> FleetData:
    """Devices whose training windows have these labels in time, and their number as value."""
    devices = {}
    for i, y in enumerate(labels):
        x = np.repeat(np.arange(len(y), dtype=np.float32)[:, None, None], 4, axis=2)
        devices[f"d{i}"] = Windows(x, np.array(y, np.int64), x[:1], np.array(y[:1], np.int64))
    return FleetData("numbered", Window(("a",), 4, 4), ("a", "b", "c"), devices)


fleets = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=4).map(
    lambda labels: numbered(*labels)
)


@given(fleets, st.integers(1, 12), st.integers(0, 99))
def test_a_device_keeps_one_stretch_of_labels_of_each_class_and_all_windows(
    data: FleetData, count: int, seed: int
) -> None:
    seen = set_scene(data, Scenario(labels=count), seed)
    for device_id, before in data.devices.items():
        after = seen.devices[device_id]
        held, rest = (x[:, 0, 0].astype(int).tolist() for x in (after.train_x, after.unlabelled_x))
        assert after.train_y.tolist() == before.train_y[held].tolist()
        assert sorted([*held, *rest]) == list(range(before.num_train))
        assert held == sorted(held)
        assert rest == sorted(rest)
        for label in np.unique(before.train_y):
            of_class = np.flatnonzero(before.train_y == label).tolist()
            kept = [i for i in held if before.train_y[i] == label]
            assert len(kept) == min(count, len(of_class))
            first = of_class.index(kept[0])
            assert kept == of_class[first : first + len(kept)]
        assert (after.test_x is before.test_x, after.test_y is before.test_y) == (True, True)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 99))
def test_more_labels_include_fewer(labels: list[int], seed: int) -> None:
    y = np.array(labels, np.int64)
    chosen = [set(labelled(y, count, "d", seed).tolist()) for count in (1, 2, 5, 20, 100)]
    assert all(few <= many for few, many in pairwise(chosen))
    assert len(chosen[-1]) == len(y)


def test_labels_are_drawn_by_seed_and_device_and_from_all_over() -> None:
    y = np.zeros(40, np.int64)
    chosen = [int(labelled(y, 1, "d", seed)[0]) for seed in range(300)]
    assert len(set(chosen)) > 35
    assert int(labelled(y, 1, "d", 5)[0]) == chosen[5]
    assert [int(labelled(y, 1, "e", seed)[0]) for seed in range(300)] != chosen


@given(fleets.filter(lambda data: len(data.devices) > 1), st.integers(0, 9))
def test_without_labels_newcomers_have_none_and_the_others_have_all(
    data: FleetData, seed: int
) -> None:
    scenario = Scenario(labels="none")
    seen = set_scene(data, scenario, seed)
    count = scenario.num_newcomers(len(data.devices))
    assert count == max(1, len(data.devices) // 4)
    left, newcomers = hold_out(seen, count, seed)
    assert all(left.devices[d] is data.devices[d] for d in left.devices)
    for device_id, windows in newcomers.items():
        assert windows.num_train == 0
        assert np.array_equal(windows.unlabelled_x, data.devices[device_id].train_x)
        assert windows.test_y is data.devices[device_id].test_y


def test_the_scale_of_channels_is_that_of_all_windows() -> None:
    data = synthetic_fleet(4)
    assert set_scene(data, Scenario(labels=1), 0).channel_size() == pytest.approx(
        data.channel_size()
    )


def test_newcomers_are_as_many_as_asked() -> None:
    assert [Scenario("none", newcomers=n).num_newcomers(20) for n in (0, 3)] == [5, 3]
    assert [Scenario("all", newcomers=n).num_newcomers(20) for n in (0, 3)] == [0, 3]
    for scenario in (Scenario("none", newcomers=4), Scenario("all", newcomers=4)):
        with pytest.raises(
            ConfigError, match=r"newcomers must be less than the 4 devices, .*, got 4"
        ):
            set_scene(synthetic_fleet(4), scenario, 0)
    with pytest.raises(ConfigError, match=r"newcomers must be less than the 1 devices, .*, got 1"):
        set_scene(synthetic_fleet(1), Scenario("none"), 0)


@pytest.mark.parametrize(
    ("text", "labels"), [("all", "all"), ("none", "none"), ("1", 1), ("20", 20)]
)
def test_labels_are_read(text: str, labels: Labels) -> None:
    assert read_labels(text) == labels


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "some", "all,5", "²", "9" * 30])
def test_labels_that_are_none_are_one_error(text: str) -> None:
    with pytest.raises(ConfigError, match="labels must be all, none, or a number from 1"):
        read_labels(text)


@pytest.mark.parametrize(
    ("split", "assigned", "error"),
    [
        (
            "session",
            "iid",
            "split session does not work with partition iid, which puts the examples of all "
            "devices together",
        ),
        ("time", "dirichlet:alpha=0.3", "split time does not work with partition dirichlet"),
        ("random", "drawn", "split random does not work with partition drawn"),
        (
            "session",
            "real-world",
            "split session does not work with partition real-world, which divides each person's",
        ),
        ("time", "user:split=random", "split time does not work with partition user:split=random"),
    ],
)
def test_a_split_that_a_partition_leaves_no_room_for_is_refused_by_name(
    split: str, assigned: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        check_scenario(Scenario(split=read_split(split)), read_partition(assigned))


@pytest.mark.parametrize("assigned", ["user", "user:devices=3", "iid", "real-world:split=time"])
def test_labels_go_with_every_partition(assigned: str) -> None:
    check_scenario(Scenario(labels=2), read_partition(assigned))
    data = partition(synthetic_fleet(4), read_partition(f"{assigned.split(':')[0]}:devices=2"), 0)
    counts = [
        np.bincount(w.train_y) for w in set_scene(data, Scenario(labels=2), 0).devices.values()
    ]
    assert [c.tolist() for c in counts] == [[2, 2, 2], [2, 2, 2]]


def test_a_run_is_made_and_told_in_its_scenario() -> None:
    settings = SimulationSettings(
        read_algorithm("fedavg"), 2, labels="3", split="random:test=0.5", newcomers=1
    )
    summary = simulate(synthetic_fleet(4), settings).summary
    assert [(d.num_train, d.num_test) for d in summary.devices.values()] == [(9, 26)] * 3
    assert (summary.labels, summary.split) == ("3", "random:test=0.5")
    assert len(known(summary.newcomers).devices) == 1


def test_a_run_has_the_same_bits_by_messages() -> None:
    from simulation.engine.options import EngineOptions

    settings = SimulationSettings(read_algorithm("fedavg"), 2, labels="3", split="random")
    runs = [
        simulate(synthetic_fleet(3), settings, engine=EngineOptions(backend=b)).summary
        for b in ("eager", "messages")
    ]
    assert runs[0].devices == runs[1].devices
    assert runs[0].macro_f1 == runs[1].macro_f1


def test_newcomers_without_labels_are_received_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reception decides by itself: it gets all their windows, and no label but those of the
    test part."""
    seen: dict[str, Any] = {}

    def receive(_self: object, newcomers: dict[str, Windows]) -> dict[str, NewcomerResult]:
        seen.update(newcomers)
        metrics = {
            d: Metrics(w.num_test, 1.0, w.num_test // (1 + i))
            for i, (d, w) in enumerate(newcomers.items())
        }
        return {
            d: NewcomerResult(Placed("0", 0.8), made, np.eye(4)[newcomers[d].test_y], {})
            for d, made in metrics.items()
        }

    monkeypatch.setattr(Reception, "receive", receive)
    summary = simulate(
        synthetic_fleet(8), SimulationSettings(read_algorithm("fedavg"), 1, labels="none")
    ).summary
    assert [(w.num_train, len(w.unlabelled_x), w.num_test) for w in seen.values()] == [
        (0, 40, 12)
    ] * 2
    assert len(summary.devices) == 6
    assert all(d.num_train == 40 for d in summary.devices.values())
    newcomers = known(summary.newcomers)
    assert list(newcomers.devices.values()) == [1.0, 0.5]
    assert (newcomers.mean, newcomers.worst, newcomers.worst_tenth) == (0.75, 0.5, 0.5)
    assert (
        known(newcomers.macro_f1).mean,
        set(newcomers.placed.values()),
    ) == (1.0, {Placed("0", 0.8)})


def test_settings_are_checked_with_the_data() -> None:
    with pytest.raises(ConfigError, match="newcomers must be less than the 4 devices"):
        check_settings(synthetic_fleet(4), SimulationSettings(labels="none", newcomers=4))
    assert msgspec.convert({"algorithm": "x", "labels": 5}, _Settings).labels == 5
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"algorithm": "x", "labels": 0}, _Settings)


class _Settings(msgspec.Struct):
    algorithm: str
    labels: Labels
