"""Training data from live data: labels, held-out windows, and windows that are neither."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.data.recordings.resampling import Resampler, Samples, Stretch
from edge_client.live.labelling.labels import (
    FILE,
    LONGEST_S,
    Labels,
    Statement,
    Timeline,
    read_statement,
)
from edge_client.live.recorder import Recorder
from edge_client.live.ring import Ring
from edge_client.live.sources.readings import Readings
from edge_client.live.sources.tally import Tally
from edge_client.live.split import HELD_OUT, NEITHER, OF, TRAIN, is_held_out, sides
from edge_client.live.store import LiveData, open_folder
from tests.edge_client.board import BLOCK_S, CLASSES, RATE_HZ, T0_S, WINDOW, Board
from wire.bundle import Window
from wire.errors import ConfigError, DataError


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


class TestWindows:
    def test_labelled_windows_are_for_training_or_held_out_and_share_no_sample(
        self, board: Board
    ) -> None:
        board.record(0, 30_000, True)
        board.labels.say("walk", T0_S, T0_S + 600)
        windows = board.data.now()
        assert set(windows.train_y.tolist()) == set(windows.test_y.tolist()) == {1}
        train, test = (set(x[:, 0].ravel().tolist()) for x in (windows.train_x, windows.test_x))
        assert not train & test
        assert windows.num_test / (windows.num_train + windows.num_test) == pytest.approx(
            1 / OF, abs=0.03
        )
        assert board.data.now().num_unlabelled == 0

    def test_a_window_without_one_label_all_the_time_is_unlabelled(self, board: Board) -> None:
        board.record(0, 3000, True)
        board.labels.say("rest", T0_S + 10, T0_S + 20)
        board.labels.say("walk", T0_S + 20, T0_S + 30)
        windows = board.data.now()
        for x, y in ((windows.train_x, windows.train_y), (windows.test_x, windows.test_y)):
            seconds = x[:, 0] / RATE_HZ
            assert (((seconds >= 10) & (seconds < 20)).all(1) | (y == 1)).all()
            assert (((seconds >= 20) & (seconds < 30)).all(1) | (y == 0)).all()
        assert windows.num_train + windows.num_test > 30
        assert windows.num_unlabelled > 60

    def test_each_step_of_a_window_has_the_label_of_its_time(self, board: Board) -> None:
        board.record(0, 3000, True)
        board.labels.say("rest", T0_S + 10, T0_S + 20)
        board.labels.say("walk", T0_S + 20, T0_S + 30)
        window = msgspec.structs.replace(WINDOW, steps=4)
        windows = board.data.now(window)
        for x, y in ((windows.train_x, windows.train_y), (windows.test_x, windows.test_y)):
            seconds = x[:, 0].reshape(len(x), 4, 8) / RATE_HZ
            for label, begin_s in enumerate((10, 20)):
                inside = ((seconds >= begin_s) & (seconds < begin_s + 10)).all(2)
                np.testing.assert_array_equal(y == label, inside)
            assert (y >= 0).any(1).all()
        assert {len(set(y.tolist())) for y in (*windows.train_y, *windows.test_y)} <= {1, 2, 3}
        whole = board.data.now()
        assert windows.num_train + windows.num_test > whole.num_train + whole.num_test, (
            "a change of label costs a step, not a window"
        )
        assert board.data.now(window).num_unlabelled < board.data.now().num_unlabelled

    @pytest.mark.parametrize("begin", ["target.", "label."])
    def test_channels_say_quantities_or_names_of_a_window(self, tmp_path: Path, begin: str) -> None:
        names = ("speed", "heat")
        open_folder(tmp_path, ("a", *(begin + name for name in names)), RATE_HZ, BLOCK_S)
        ring = Ring(tmp_path, RATE_HZ, 2**22, 1e9, 32)
        steps = np.arange(3000, dtype=np.float32)
        ring.append(
            Stretch(
                T0_S,
                np.stack([steps, steps % 64 < 32, steps % 64 >= 24], axis=1).astype(np.float32),
                True,
            )
        )
        ring.sync()
        window = Window(("a",), 32, 32, RATE_HZ)
        data = LiveData(tmp_path, Labels(tmp_path, ()), window, names)
        windows = data.now()
        assert (windows.num_unlabelled, windows.train_x.shape[1:]) == (0, (1, 32))
        share: dict[int, list[float]] = {0: [1, 0.25], 32: [0, 1]}
        for x, y in ((windows.train_x, windows.train_y), (windows.test_x, windows.test_y)):
            expected = [share[int(first % 64)] for first in x[:, 0, 0]]
            assert y.tolist() == (
                expected
                if begin == "target."
                else [[int(part >= 0.5) for part in row] for row in expected]
            )
        assert windows.train_y.dtype == (np.float32 if begin == "target." else np.int64)
        swapped = data.now(window, ("heat", "speed"))
        np.testing.assert_array_equal(swapped.train_y, windows.train_y[:, ::-1])
        assert data.now(window, ("speed", "load")).num_train == 0, (
            "what is not said of them leaves windows without a label"
        )

    def test_held_out_windows_have_the_times_of_their_first_samples(self, board: Board) -> None:
        board.record(0, 3000, True)
        board.labels.say("walk", T0_S, T0_S + 60)
        windows = board.data.now()
        assert windows.num_test
        first_s = T0_S + windows.test_x[:, 0, 0].astype(np.float64) / RATE_HZ
        ulps = np.abs(windows.test_begins_s - first_s) / np.spacing(T0_S)
        assert ulps.max() <= 1, "float64 has steps of 0.24 us at a Unix time"

    def test_no_window_spans_a_gap(self, board: Board) -> None:
        board.record(0, 1000, True)
        board.record(1100, 1000, True)
        assert (np.diff(board.data.cut().x[:, 0], axis=1) == 1).all()

    def test_what_was_held_out_once_is_never_trained_on(self, board: Board, tmp_path: Path) -> None:
        held: set[float] = set()
        for part in range(6):  # recorded, labelled late, relabelled, restarted, cut in other ways
            board.record(part * 5000, 5000, part == 0)
            board.labels.say(
                "walk" if part % 2 else "rest", T0_S + 50 * part, T0_S + 100 * part + 100
            )
            board = Board(tmp_path)
            for window in (WINDOW, Window(("b", "a"), 20, 7, RATE_HZ)):
                windows = board.data.now(window, CLASSES)
                held |= set(np.abs(windows.test_x[:, 0]).ravel().tolist())
                assert not held & set(np.abs(windows.train_x[:, 0]).ravel().tolist())
        assert len(held) > 3000

    def test_a_bundle_may_name_the_channels_in_another_order_and_classes_too(
        self, board: Board
    ) -> None:
        board.record(0, 3000, True)
        board.labels.say("walk", T0_S, T0_S + 60)
        windows = board.data.now(Window(("b",), 32, 16, RATE_HZ), ("run", "jump", "walk"))
        assert (
            windows.train_x.shape[1],
            set(windows.train_y.tolist()),
            windows.train_x.max() <= 0,
        ) == (1, {2}, True)

    @pytest.mark.parametrize(
        ("window", "error"),
        [(Window(("a", "z"), 32, 16, RATE_HZ), "'z'"), (Window(("a",), 32, 16, 100.0), "100 Hz")],
    )
    def test_a_bundle_that_asks_for_something_else(
        self, board: Board, window: Window, error: str
    ) -> None:
        with pytest.raises(DataError, match=error):
            board.data.now(window)

    def test_a_folder_of_other_samples(self, board: Board, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="hold channels a,b at 50 Hz"):
            open_folder(tmp_path, ("a", "b"), 100.0, BLOCK_S)


class TestSplit:
    def test_one_block_of_five_is_held_out_and_folders_differ(self) -> None:
        for salt in ("x", "y"):
            held = [block for block in range(5000) if is_held_out(block, salt)]
            assert [block // OF for block in held] == list(range(1000))
        assert [b for b in range(50) if is_held_out(b, "x")] != [
            b for b in range(50) if is_held_out(b, "y")
        ]

    def test_a_window_across_an_edge_is_neither(self) -> None:
        begins = np.arange(0, 1000, 1.0)
        found = sides(begins, begins + 4.0, BLOCK_S, "x")
        for begin_s, side in zip(begins.tolist(), found.tolist(), strict=True):
            blocks = {int(t // BLOCK_S) for t in (begin_s, begin_s + 4.0)}
            kinds = {is_held_out(block, "x") for block in blocks}
            assert side == (NEITHER if len(kinds) == 2 else HELD_OUT if kinds == {True} else TRAIN)
        assert sides(np.zeros(0), np.zeros(0), BLOCK_S, "x").tolist() == []


class TestLabels:
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 30), st.integers(1, 12), st.sampled_from([None, "rest", "walk"])
            ),
            max_size=12,
        )
    )
    def test_what_is_said_later_is_painted_over_what_was_said_before(
        self, said: list[tuple[int, int, str | None]]
    ) -> None:
        timeline, slow = Timeline(), dict[int, str | None]()
        for begin, length, label in said:
            timeline.paint(Statement(float(begin), float(begin + length), label))
            slow |= dict.fromkeys(range(begin, begin + length), label)
        assert [timeline.at(t + 0.5) for t in range(45)] == [slow.get(t) for t in range(45)]
        begins = np.arange(40.0)
        for span in (0.5, 2.5):
            covered = timeline.covering(begins + 0.25, begins + 0.25 + span, CLASSES).tolist()
            for t, number in enumerate(covered):
                labels = {slow.get(s) for s in range(t, int(t + 0.25 + span) + 1)}
                assert number == (
                    CLASSES.index(labels.copy().pop() or "")
                    if len(labels) == 1 and labels != {None}
                    else -1
                )

    def test_labels_survive_a_restart_and_a_line_that_was_written_in_part(
        self, tmp_path: Path
    ) -> None:
        labels = Labels(tmp_path, CLASSES)
        labels.say("walk", 100.0, 200.0)
        with (tmp_path / "labels.jsonl").open("ab") as file:
            file.write(b'{"from": 1')
        again = Labels(tmp_path, CLASSES)
        again.say("rest", 150.0, 160.0)
        assert [Labels(tmp_path, CLASSES).timeline.at(t) for t in (99, 120, 155, 170, 201)] == [
            None,
            "walk",
            "rest",
            "walk",
            None,
        ]

    def test_a_label_without_an_end_does_not_last_for_ever(self, tmp_path: Path) -> None:
        labels = Labels(tmp_path, CLASSES)
        labels.say("walk", 100.0)
        timeline = labels.timeline
        assert timeline.at(100 + LONGEST_S - 1) == "walk"
        assert timeline.at(100 + LONGEST_S + 1) is None
        labels.say(None, 300.0)
        assert labels.timeline.at(301) is None

    @pytest.mark.parametrize(
        ("payload", "expected"),
        [
            (b"walk", (5000.0, 5000.0 + LONGEST_S)),
            (b'{"label": "walk"}', (5000.0, 5000.0 + LONGEST_S)),
            (b'{"label": "walk", "from": 4000, "to": 4100}', (4000.0, 4100.0)),
        ],
    )
    def test_statements(
        self, tmp_path: Path, payload: bytes, expected: tuple[float, float]
    ) -> None:
        labels = Labels(tmp_path, CLASSES)
        read_statement(payload, 5000.0, labels)
        assert [(i.begin_s, i.end_s, i.label) for i in labels.timeline.intervals(0.0)] == [
            (*expected, "walk")
        ]
        read_statement(b'{"label": null, "from": 0, "to": 80000}', 6000.0, labels)
        assert labels.timeline.intervals(0.0) == []

    @pytest.mark.parametrize(
        "payload",
        [
            b"fly",
            b"{",
            b'{"label": 3}',
            b'{"label": "walk", "from": 9, "to": 8}',
            b'{"label": "walk", "from": "x"}',
        ],
    )
    def test_statements_that_are_none(self, tmp_path: Path, payload: bytes) -> None:
        with pytest.raises(DataError):
            read_statement(payload, 5000.0, Labels(tmp_path, CLASSES))

    def test_what_is_older_than_the_samples_is_gone_from_disk(self, tmp_path: Path) -> None:
        labels = Labels(tmp_path, CLASSES)
        labels.say("rest", 1.0, 50.0)
        labels.say("walk", 40.0, 200.0)
        for held in (labels, Labels(tmp_path, CLASSES)):
            held.forget(49.0)
            assert b"rest" in (tmp_path / FILE).read_bytes(), "samples after 49 s may need it"
        Labels(tmp_path, CLASSES).forget(50.0)
        assert Labels(tmp_path, CLASSES).timeline.intervals(0.0) == [Statement(40.0, 200.0, "walk")]
        written = (tmp_path / FILE).stat().st_ino
        Labels(tmp_path, CLASSES).forget(199.0)
        assert (tmp_path / FILE).stat().st_ino == written, "nothing was to go"
        Labels(tmp_path, CLASSES).forget(200.0)
        assert (tmp_path / FILE).read_bytes() == b""

    def test_a_long_file_is_written_anew(self, tmp_path: Path) -> None:
        labels = Labels(tmp_path, CLASSES)
        line = msgspec.json.encode(Statement(1.0, 2.0, "rest")) + b"\n"
        (tmp_path / "labels.jsonl").write_bytes(line * 30_000)
        labels = Labels(tmp_path, CLASSES)
        labels.say("walk", 100.0, 200.0)
        labels.forget(50.0)
        assert (tmp_path / "labels.jsonl").stat().st_size < 200
        assert Labels(tmp_path, CLASSES).timeline.at(150.0) == "walk"


class _List:
    """A source of what is given."""

    def __init__(self, parts: list[Samples]) -> None:
        self._parts, self.ignored, self.is_over = parts, Tally("a part"), not parts

    def read(self, timeout_s: float) -> list[Samples]:
        part = self._parts.pop(0)
        self.is_over = not self._parts
        return [part]

    def close(self) -> None:
        self._parts = []


def test_a_recorder_keeps_samples_and_the_labels_that_came_with_them(board: Board) -> None:
    readings, parts = Readings(("a", "b")), []
    for i in range(5000):
        label = {0: "rest", 1: "walk", 2: ""}.get(i // 1500, "unknown")
        readings.add({"t": T0_S + i / 50, "a": i, "b": -i, "label": label}, 0.0)
        if i % 100 == 99:
            parts += readings.take()
    Recorder(
        _List(parts), Resampler(2, RATE_HZ), RATE_HZ, ring=board.ring, labels=board.labels
    ).run(lambda: False)
    windows = board.data.now()
    at = np.concatenate([windows.train_x, windows.test_x])[:, 0]
    y = np.concatenate([windows.train_y, windows.test_y])
    assert at.max() <= 3000
    assert (y == (at.min(1) >= 1500)).all()
    assert len(y) > 100
