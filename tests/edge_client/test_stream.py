"""The filter over answers to a stream of windows."""

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edge_client.commands.live import LiveAnswers
from edge_client.core.stream import MOST_WINDOWS, StreamFilter, StreamSums
from edge_client.main import _carry_out
from edge_client.models.application import Model
from edge_client.options import parser
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, take_up
from tests.support.bundles import Exported
from wire.arrays.tensors import Array

CLASSES = 5


def answers(seed: int, y: Array, sureness: float = 2.0) -> Array:
    """Return probabilities (n, classes) of a model that is right about y (n,) in four of five
    windows."""
    logits = np.random.default_rng(seed).normal(size=(len(y), CLASSES))
    logits[np.arange(len(y)), y] += sureness
    p = np.exp(logits)
    return np.asarray(p / p.sum(1, keepdims=True), np.float32)


def run(p: Array, lag: int = 0, begins: Array | None = None) -> tuple[Array, StreamFilter]:
    """Return the filter's answers to a stream with one window a second."""
    stream = StreamFilter(StreamSums("b"), 1.0, lag)
    begins = np.arange(len(p), dtype=float) if begins is None else begins
    rows = [row for at, own in zip(begins, p, strict=True) for row in stream.answer(at, own)]
    rows += stream.end()
    assert [at for at, _ in rows] == begins.tolist()
    return np.array([row for _, row in rows]), stream


def lasting(seed: int, windows: int, count: int = 600) -> Array:
    """Return classes (count,) of activities that last so many windows each, in random order."""
    rng = np.random.default_rng(seed)
    changes = rng.integers(1, CLASSES, size=count // windows + 1).cumsum() % CLASSES
    return np.repeat(changes, windows)[:count]


def accuracy(p: Array, y: Array) -> float:
    """Return the share of windows whose most probable class is theirs."""
    return float((p.argmax(1) == y).mean())


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_windows_in_no_order_are_answered_as_without_the_filter(seed: int, lag: int) -> None:
    p = answers(seed, np.random.default_rng(seed).integers(CLASSES, size=600))
    filtered, stream = run(p, lag)
    assert np.abs(filtered - p).max() < 1e-6
    assert stream.sums.stay(CLASSES) == 1 / CLASSES


@pytest.mark.parametrize("windows", [5, 10, 30])
def test_activities_that_last_are_learnt_without_labels_and_answered_better(windows: int) -> None:
    y = lasting(1, windows)
    p = answers(1, y)
    filtered, stream = run(p)
    smoothed, _ = run(p, lag=2)
    assert accuracy(filtered, y) > accuracy(p, y) + 0.03
    assert accuracy(smoothed, y) > accuracy(filtered, y)
    assert windows / 6 < stream.sums.activity(CLASSES) < 1.3 * windows
    assert np.allclose(filtered.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("jump_s", [1.0, 1000.0, -30.0])
def test_after_a_gap_windows_before_it_do_not_count(jump_s: float) -> None:
    p, begins = answers(2, lasting(2, 30)), np.arange(600.0)
    begins[300:] += jump_s
    filtered, _ = run(p, begins=begins)
    assert np.abs(filtered[300] - p[300]).max() < 1e-6
    assert np.abs(filtered[299] - p[299]).max() > 0.01
    smoothed, _ = run(p, 2, begins)
    assert np.allclose(smoothed[299], filtered[299])  # it waits for no window behind the gap


def test_times_that_waver_are_no_gap() -> None:
    p = answers(3, lasting(3, 30))
    wavering = np.arange(600) + np.random.default_rng(3).uniform(-0.2, 0.2, 600)
    assert np.array_equal(run(p)[0], run(p, begins=wavering)[0])


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_window_that_the_model_cannot_answer_is_a_gap(value: float) -> None:
    p = answers(4, lasting(4, 30))
    p[200] = value
    filtered, stream = run(p)
    assert np.array_equal(filtered[200], p[200], equal_nan=True)
    assert np.abs(filtered[201] - p[201]).max() < 1e-6
    assert np.isfinite(stream.sums.stays + stream.sums.changes)


def test_a_person_who_changes_is_learnt_again() -> None:
    sums = StreamSums("b", MOST_WINDOWS, 0.0)
    stream = StreamFilter(sums, 1.0)
    y = lasting(5, 5, 3000)
    for at, own in enumerate(answers(5, y, 4.0)):
        list(stream.answer(float(at), own))
    assert stream.sums.stays + stream.sums.changes == pytest.approx(MOST_WINDOWS)
    assert stream.sums.activity(CLASSES) < 7


@pytest.fixture
def state(fleet: FleetData, exported: Exported, tmp_path: Path) -> Path:
    """Path of a state folder with a model in use."""
    take_up(Device(fleet, exported, tmp_path / "state"))
    return tmp_path / "state"


def stream_of(fleet: FleetData) -> Array:
    x = next(iter(fleet.devices.values())).test_x
    return np.repeat(x, 6, axis=0)[:60]


class TestLiveAnswers:
    def answered(self, state: Path, x: Array, lag: int | None) -> list[dict[str, object]]:
        model = Model(state)
        live = LiveAnswers(model, state, model.window.stride, lag)
        lines = [line for at, window in enumerate(x) for line in live.of(float(at), window)]
        return [*lines, *live.end()]

    def test_what_is_learnt_survives_a_restart_and_belongs_to_the_bundle(
        self, fleet: FleetData, state: Path
    ) -> None:
        files, x = DeviceState(state, read_only=True), stream_of(fleet)
        bundle = Model(state).current.bundle
        for lag in (0, 2):
            before = files.stream(bundle)
            lines = self.answered(state, x, lag)
            assert [line["t"] for line in lines] == list(range(60))
            after = files.stream(bundle)
            windows = after.stays + after.changes - before.stays - before.changes
            assert windows == pytest.approx(59)
        assert files.stream("c" * 64) == StreamSums("c" * 64)
        for text in ("{", '{"bundle": "b", "stays": -1}', '{"bundle": "b", "stays": 1e99}'):
            (state / "stream.json").write_text(text.replace('"b"', f'"{bundle}"'))
            assert files.stream(bundle) == StreamSums(bundle)

    def test_status_says_how_long_activities_last(
        self, state: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bundle, arguments = (
            Model(state).current.bundle,
            parser().parse_args(["status", "--state", str(state)]),
        )
        for stays, changes, words in (
            (0.0, 0.0, "not known yet"),
            (90.0, 180.0, "windows have no order"),
            (900.0, 65.0, "activities last about 14 windows"),
        ):
            DeviceState(state, read_only=True).put_stream(StreamSums(bundle, stays, changes))
            assert _carry_out(arguments) == 0
            assert words in capsys.readouterr().out

    def test_without_a_filter_each_window_is_answered_alone(
        self, fleet: FleetData, state: Path
    ) -> None:
        x = stream_of(fleet)
        p = Model(state).predict(x)
        lines = self.answered(state, x, None)
        answers = [list(cast("dict[str, float]", line["probabilities"]).values()) for line in lines]
        assert np.allclose(answers, p, atol=1e-6)
        assert not (state / "stream.json").exists()

    def test_another_bundle_starts_anew_and_waiting_answers_have_their_own_classes(
        self, fleet: FleetData, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, x = Model(state), stream_of(fleet)
        live = LiveAnswers(model, state, model.window.stride, 2)
        assert [list(live.of(float(at), window)) for at, window in enumerate(x[:2])] == [[], []]
        names = model.classes
        monkeypatch.setattr(model, "predict", lambda x: np.full((len(x), 2), 0.5, np.float32))
        monkeypatch.setattr(model, "classes", ("on", "off"))
        other = type(model.current)("d" * 64, "e" * 64, "", "run", 1, 0.0)
        monkeypatch.setattr(model, "current", other)
        lines = list(live.of(2.0, x[2]))
        assert [list(line["probabilities"]) for line in lines] == [list(names)] * 2
        assert [list(line["probabilities"]) for line in live.end()] == [["on", "off"]]


class TestRecording:
    """Answers of `shoal-edge predict` to a recording are those to the same windows in a stream."""

    def predict(
        self, path: Path, state: Path, capsys: pytest.CaptureFixture[str], *words: str
    ) -> Array:
        capsys.readouterr()
        arguments = ["predict", str(path), "--state", str(state), *words]
        assert _carry_out(parser().parse_args(arguments)) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return np.array([list(line["probabilities"].values()) for line in lines])

    def test_is_filtered_stretch_by_stretch(
        self, fleet: FleetData, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        x, model, folder = stream_of(fleet), Model(state), tmp_path / "recordings"
        own, bundle = model.predict(x), model.current.bundle
        learnt = StreamSums(bundle, 400.0, 60.0)
        DeviceState(state, read_only=True).put_stream(learnt)
        folder.mkdir()
        for name, part in (("one", x[:40]), ("two", x[40:])):
            rows = np.concatenate(part.transpose(0, 2, 1)).astype(np.float64)
            np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="a,b", comments="")
        np.save(tmp_path / "x.npy", x)

        def expected(lag: int) -> Array:
            sums, rows = learnt, list[Array]()
            for p in (own[:40], own[40:]):
                stream = StreamFilter(sums, 1.0, lag)
                rows += [row for at, each in enumerate(p) for _, row in stream.answer(at, each)]
                rows += [row for _, row in stream.end()]
                sums = stream.sums
            return np.array(rows)

        for lag in (0, 2):
            answers = self.predict(folder, state, capsys, "--lag", str(lag))
            assert np.allclose(answers, expected(lag), atol=2e-6)
            assert not np.allclose(answers, own, atol=1e-2)
        assert np.allclose(self.predict(folder, state, capsys, "--stream", "off"), own, atol=2e-6)
        assert np.allclose(self.predict(tmp_path / "x.npy", state, capsys), own, atol=2e-6)
        assert DeviceState(state, read_only=True).stream(bundle) == learnt
