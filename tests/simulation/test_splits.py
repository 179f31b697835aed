"""Training and test parts anew: what each split promises, whatever was recorded; and what data say
of their recordings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.core.ports import Windows
from simulation.datasets.catalog import load_data
from simulation.datasets.npz import load_npz
from simulation.datasets.watch import load_watch
from simulation.datasets.windows import FleetData, Recordings
from simulation.splits import read_split, split_anew
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import ConfigError, DataError

LENGTH = 8
SPLITS = ("time", "session", "random", "time:test=0.5", "session:test=0.4", "random:test=0.1")


@st.composite
def recorded(draw: st.DrawFn) -> FleetData:
    """A device with a few recordings, in which activities follow each other; windows are in any
    order. A window's value is its number."""
    sessions, starts, y = [], [], []
    for session in range(draw(st.integers(1, 4))):
        at = 0
        for _ in range(draw(st.integers(1, 4))):
            label, count = draw(st.integers(0, 3)), draw(st.integers(1, 8))
            stride = draw(st.sampled_from([4, 8, 20]))
            for _ in range(count):
                sessions.append(session)
                starts.append(at)
                y.append(label)
                at += stride
    order = np.array(draw(st.permutations(range(len(y)))))
    x = np.repeat(np.arange(len(y), dtype=np.float32)[:, None, None], LENGTH, axis=2)
    own = Recordings(x, np.array(y)[order], np.array(sessions)[order], np.array(starts)[order])
    cut = len(y) // 2
    return FleetData(
        "drawn",
        Window(("a",), LENGTH, 4),
        tuple("abcd"),
        {"d": Windows(own.x[:cut], own.y[:cut], own.x[cut:], own.y[cut:])},
        recordings={"d": own},
    )


def parts(data: FleetData, text: str, seed: int = 0) -> tuple[Recordings, Array, Array]:
    """Return the recorded windows, and the numbers of the windows for training and testing; labels
    must have stayed with their windows."""
    own = data.recordings["d"]
    windows = split_anew(data, read_split(text), seed).devices["d"]
    train, test = (x[:, 0, 0].astype(int) for x in (windows.train_x, windows.test_x))
    assert windows.train_y.tolist() == own.y[train].tolist()
    assert windows.test_y.tolist() == own.y[test].tolist()
    assert not set(train) & set(test)
    return own, train, test


@given(recorded(), st.sampled_from([0.1, 0.25, 0.5]))
def test_time_tests_on_the_last_of_each_class_and_shares_no_sample(
    data: FleetData, share: float
) -> None:
    own, train, test = parts(data, f"time:test={share}")
    session, start = known(own.session), known(own.start)
    moments = [(int(s), int(t)) for s, t in zip(session, start, strict=True)]
    for label in np.unique(own.y):
        before = [moments[i] for i in train if own.y[i] == label]
        after = [moments[i] for i in test if own.y[i] == label]
        count = int((own.y == label).sum())
        assert len(after) == min(count - 1, max(1, round(share * count)) if count > 3 else 1)
        assert not before or not after or max(before) < min(after)
    left = set(range(len(own.y))) - set(train) - set(test)
    for i in (*train, *left):
        overlaps = any(
            session[i] == session[j] and abs(int(start[i] - start[j])) < LENGTH for j in test
        )
        assert overlaps == (i in left)


@given(recorded(), st.sampled_from([0.25, 0.5]))
def test_session_holds_out_whole_recordings_of_classes_that_stay(
    data: FleetData, share: float
) -> None:
    held = data.recordings["d"]
    session = known(held.session)
    if not any(
        set(held.y[session == number]) <= set(held.y[session != number])
        for number in np.unique(session)
    ):
        with pytest.raises(DataError, match="has no recording to hold out"):
            parts(data, f"session:test={share}")
        return
    own, train, test = parts(data, f"session:test={share}")
    assert len(train) + len(test) == len(own.y)
    assert not set(session[train]) & set(session[test])
    assert len(test) > 0
    assert set(own.y[test]) <= set(own.y[train])


@given(recorded(), st.integers(0, 5))
def test_random_divides_all_windows(data: FleetData, seed: int) -> None:
    own, train, test = parts(data, "random:test=0.3", seed)
    assert len(train) + len(test) == len(own.y)
    assert len(test) == (
        min(max(round(0.3 * len(own.y)), 1), len(own.y) - 1) if len(own.y) > 1 else 0
    )


@given(recorded(), st.sampled_from(SPLITS), st.integers(0, 3))
def test_a_split_is_repeatable_and_in_time_whatever_the_order_in_the_file(
    data: FleetData, text: str, seed: int
) -> None:
    try:
        own, train, test = parts(data, text, seed)
    except DataError:
        return
    again = parts(data, text, seed)
    assert [train.tolist(), test.tolist()] == [again[1].tolist(), again[2].tolist()]
    for part in (train, test):
        moments = [(int(known(own.session)[i]), int(known(own.start)[i])) for i in part]
        assert moments == sorted(moments)


def test_a_device_is_split_as_if_it_were_alone() -> None:
    watch = load_watch()
    two = split_anew(watch, read_split("random"), 7).devices["p03-left"]
    alone = split_anew(watch.only(["p03-left"]), read_split("random"), 7).devices["p03-left"]
    assert np.array_equal(two.test_x, alone.test_x)
    assert not np.array_equal(
        two.test_x, split_anew(watch, read_split("random"), 8).devices["p03-left"].test_x
    )


def test_own_is_as_the_data_have_it() -> None:
    watch = load_watch()
    assert split_anew(watch, read_split("own"), 0) is watch


def test_the_watches_say_where_their_windows_were_cut() -> None:
    for device_id, windows in (watch := load_watch()).devices.items():
        own = watch.recordings[device_id]
        assert np.array_equal(own.x, np.concatenate([windows.train_x, windows.test_x]))
        assert len(np.unique(known(own.session))) == len(np.unique(own.y)) == 7
        places = set(zip(known(own.session).tolist(), known(own.start).tolist(), strict=True))
        assert len(places) == len(own.y)
    with pytest.raises(
        DataError, match="device p01-left of data watch has no recording to hold out"
    ):
        split_anew(watch, read_split("session"), 0)
    windows = split_anew(watch, read_split("time:test=0.3"), 0).devices["p01-left"]
    assert windows.num_test == pytest.approx(watch.devices["p01-left"].num_test, abs=7)


def test_uci_har_has_two_or_three_recordings_of_a_person() -> None:
    try:
        data = load_data("uci-har")
    except DataError as error:
        pytest.skip(f"UCI HAR is not here: {error}")
    own = data.recordings["s01"]
    assert len(own.y) == 347
    assert len(np.unique(known(own.session))) == 2
    for device_id, windows in split_anew(data, read_split("session"), 0).devices.items():
        assert set(windows.test_y) == set(windows.train_y) == set(range(6))
        assert windows.num_train + windows.num_test == len(data.recordings[device_id].y)
    again, before = split_anew(data, read_split("time"), 0).devices["s01"], data.devices["s01"]
    assert again.num_test == before.num_test  # the file is in the order of time within a class
    assert sorted(again.test_x.sum((1, 2)).tolist()) == pytest.approx(
        sorted(before.test_x.sum((1, 2)).tolist())
    )


def npz(path: Path, **arrays: Any) -> FleetData:
    y = np.arange(24) % 2
    x = np.random.default_rng(0).normal(size=(24, 1, LENGTH)).astype(np.float32)
    np.savez(path / "own.npz", X=x, y=y, subject=np.arange(24) // 12, **arrays)
    data = load_npz(path / "own.npz")
    assert isinstance(data, FleetData)
    return data


def test_a_npz_names_its_recordings_by_number_or_by_name(tmp_path: Path) -> None:
    session = np.array(["walk", "run", "walk b"]).repeat(4)
    data = npz(
        tmp_path, session=np.concatenate([session, session]), start=np.tile(np.arange(4) * 4, 6)
    )
    held = split_anew(data, read_split("session"), 0)
    assert {d: (w.num_train, w.num_test) for d, w in held.devices.items()} == {
        "s00": (8, 4),
        "s01": (8, 4),
    }
    assert known(data.recordings["s00"].session).max() == 2
    numbered = npz(tmp_path, session=np.tile(np.array([30, 10, 20]).repeat(4), 2))
    assert [
        w.test_x.tolist() for w in split_anew(numbered, read_split("session"), 0).devices.values()
    ] == [w.test_x.tolist() for w in held.devices.values()]
    with pytest.raises(
        DataError,
        match="split time needs the start of each window, which data own do not have for device "
        "s00",
    ):
        split_anew(numbered, read_split("time"), 0)


def test_starts_alone_are_of_one_recording(tmp_path: Path) -> None:
    data = npz(tmp_path, start=np.tile(np.arange(12) * 4, 2))
    windows = split_anew(data, read_split("time"), 0).devices["s00"]
    assert (windows.num_train, windows.num_test) == (
        7,
        4,
    )  # the last two of each class, and one window reaches into them
    with pytest.raises(
        DataError,
        match="split session needs the session of each window, which data own do not have for "
        "device s00",
    ):
        split_anew(data, read_split("session"), 0)


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"session": np.zeros(3, int)}, r"session must be .* each of 24 windows, got int64\[3\]"),
        ({"session": np.zeros(24)}, r"session must be .*, got float64\[24\]"),
        ({"start": np.zeros(24)}, r"start must be int\[24\], got float64\[24\]"),
        ({"start": np.zeros((24, 1), int)}, r"start must be int\[24\], got int64\[24, 1\]"),
    ],
)
def test_places_that_are_none_are_one_error(
    tmp_path: Path, arrays: dict[str, Any], error: str
) -> None:
    with pytest.raises(DataError, match=error):
        npz(tmp_path, **arrays)


def test_data_that_know_no_recordings_are_divided_at_random_alone() -> None:
    fleet = synthetic_fleet()
    windows = split_anew(fleet, read_split("random:test=0.5"), 0).devices["d1"]
    assert (windows.num_train, windows.num_test) == (26, 26)
    for name in ("time", "session"):
        with pytest.raises(
            DataError, match=f"split {name} needs .*, which data synthetic do not have"
        ):
            split_anew(fleet, read_split(name), 0)


@pytest.mark.parametrize(
    "text", ["", "now", "own:test=0.5", "time:test=0", "time:test=1", "session:share=0.5"]
)
def test_a_split_that_is_none_is_one_error(text: str) -> None:
    with pytest.raises(ConfigError, match="split"):
        read_split(text)


def test_windows_without_labels_stay() -> None:
    fleet = synthetic_fleet(2)
    without = fleet.devices["d0"].train_x[:3] + 1
    data = replace(
        fleet, devices={**fleet.devices, "d0": replace(fleet.devices["d0"], unlabelled_x=without)}
    )
    found = split_anew(data, read_split("random"), 0)
    np.testing.assert_array_equal(found.devices["d0"].unlabelled_x, without)
    assert found.devices["d1"].num_unlabelled == 0
