"""Questions for labels: which stretches they are about, when they are due, and what is asked."""

import itertools
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_client.commands.live import LiveAnswers
from edge_client.core.questions import (
    DAY_S,
    MOST_QUESTIONS,
    Question,
    due_question,
    question_of,
)
from edge_client.core.stream import Activity, StreamFilter, StreamSums
from edge_client.live.labelling.labels import Labels
from edge_client.live.labelling.questions import FILE, Questions
from edge_client.models.application import Model
from edge_client.models.description import ModelInUse
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, take_up
from tests.support.bundles import Exported
from tests.support.known import known
from wire.arrays.tensors import Array
from wire.errors import DataError

NOW_S = 1_800_000_000.0
CLASSES = ("rest", "walk", "stairs")


def stretch(before_s: float, windows: int = 60, label: str = "walk") -> Question:
    """Return a stretch of so many windows that ended so many seconds ago."""
    return Question(NOW_S - before_s - 2.0 * windows, NOW_S - before_s, windows, label)


def activities(p: Array, begins: Array | None = None) -> list[Activity]:
    followed: list[Activity] = []
    stream = StreamFilter(StreamSums("b", 90, 10), 1.0, on_activity=followed.append)
    begins = np.arange(len(p), dtype=float) if begins is None else begins
    for at, own in zip(begins, p, strict=True):
        list(stream.answer(float(at), own))
    list(stream.end())
    return followed


def sure(*numbers: int) -> Array:
    return np.asarray(np.eye(3)[list(numbers)] * 0.94 + 0.02, np.float32)


class TestActivities:
    def test_every_window_is_in_the_activity_of_its_filtered_class(self) -> None:
        of_three = activities(sure(*[0] * 20, *[1] * 30, *[0] * 10))
        assert [(a.number, a.windows) for a in of_three] == [(0, 20), (1, 30), (0, 10)]
        assert [(a.begin_s, a.last_s) for a in of_three] == [(0, 19), (20, 49), (50, 59)]

    def test_a_gap_and_a_window_without_an_answer_end_one(self) -> None:
        begins = np.arange(40.0)
        begins[20:] += 100
        assert [a.windows for a in activities(sure(*[1] * 40), begins)] == [20, 20]
        p = sure(*[1] * 40)
        p[10] = 0
        assert [a.windows for a in activities(p)] == [10, 29]


class TestLong:
    SUMS = StreamSums("b", 900, 100)

    @pytest.mark.parametrize(
        ("windows", "length_s", "is_long"),
        [(10, 20.0, True), (9, 20.0, False), (59, 2.0, True), (60, 1.0, True), (59, 1.0, False)],
    )
    def test_it_has_the_windows_of_an_activity_and_lasts_a_minute(
        self, windows: int, length_s: float, is_long: bool
    ) -> None:
        step_s = length_s / 2 if length_s > 1 else 1.0
        last_s = NOW_S + (windows - 1) * step_s
        question = question_of(Activity(NOW_S, last_s, windows, 2), self.SUMS, CLASSES, length_s)
        assert (question is not None) == is_long
        if question is not None:
            assert question == Question(NOW_S, last_s + length_s, windows, "stairs")

    def test_windows_in_no_order_have_none(self) -> None:
        activity = Activity(NOW_S, NOW_S + 5000, 5000, 0)
        assert question_of(activity, StreamSums("b", 300, 600), CLASSES, 2.0) is None
        assert question_of(activity, StreamSums("b"), CLASSES, 2.0) is None

    def test_a_label_covers_at_most_a_day(self) -> None:
        activity = Activity(NOW_S - 5 * DAY_S, NOW_S - 2, 9999, 0)
        question = known(question_of(activity, self.SUMS, CLASSES, 2.0))
        assert (question.begin_s, question.end_s) == (NOW_S - DAY_S, NOW_S)


class TestDue:
    def test_a_window_is_drawn_at_random(self) -> None:
        rng, draws = np.random.default_rng(0), Counter[int]()
        for _ in range(2000):
            begins = NOW_S - rng.uniform(1000, 80_000, 3)
            of = [
                Question(float(b), float(b) + 100, n, "walk")
                for b, n in zip(begins, (10, 20, 70), strict=True)
            ]
            draws[known(due_question(of, None, 3, NOW_S)).windows] += 1
        for windows, share in ((10, 0.1), (20, 0.2), (70, 0.7)):
            assert abs(draws[windows] / 2000 - share) < 0.04

    def test_the_draw_is_the_same_again_and_in_any_order(self) -> None:
        of = [stretch(1000.0 * i, 30 + i) for i in range(1, 20)]
        assert {due_question(each, None, 3, NOW_S) for each in (of, of, of[::-1])} == {
            due_question(of, None, 3, NOW_S)
        }

    @pytest.mark.parametrize("most", [1, 3, 24])
    def test_questions_are_spread_over_the_day_and_ask_of_nothing_twice(self, most: int) -> None:
        of, asked = (
            [stretch(-100.0 * i, 30) for i in range(2 * 864)],
            list[tuple[float, Question]](),
        )
        for now_s in np.arange(NOW_S, NOW_S + 2 * DAY_S, 300.0).tolist():
            due = due_question(of, asked[-1][0] if asked else None, most, now_s)
            asked += [(now_s, due)] if due else []
        assert len(asked) == 2 * most
        assert len({question for _, question in asked}) == 2 * most
        assert all(question.end_s <= now_s for now_s, question in asked)

    def test_none_is_due_for_nothing_old_or_new_and_if_none_may_be(self) -> None:
        assert due_question([], None, 3, NOW_S) is None
        assert due_question([stretch(10)], None, 0, NOW_S) is None
        assert due_question([stretch(DAY_S)], None, 3, NOW_S) is None
        assert due_question([stretch(-10)], None, 3, NOW_S) is None
        assert due_question([stretch(50_000)], NOW_S - 40_000, 3, NOW_S) is None

    def test_after_a_clock_was_set_back_questions_go_on(self) -> None:
        assert due_question([stretch(10)], NOW_S + 100, 3, NOW_S) is None
        assert due_question([stretch(10)], NOW_S + 90 * DAY_S, 3, NOW_S) == stretch(10)


@pytest.fixture
def state(fleet: FleetData, exported: Exported, tmp_path: Path) -> DeviceState:
    """The state of a device with a model in use, and three long stretches."""
    take_up(Device(fleet, exported, tmp_path / "state"))
    files = DeviceState(tmp_path / "state", read_only=True)
    files.put_questions((stretch(9000), stretch(5000, 200, "rest"), stretch(1000)))
    return files


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


class TestQuestions:
    def opened(
        self, state: DeviceState, folder: Path, clock: Clock, most: int = 3
    ) -> tuple[Questions, Labels]:
        labels = Labels(folder, CLASSES, clock)
        return Questions(ModelInUse(state), folder, labels, most), labels

    def test_an_answer_labels_every_window_of_its_stretch(
        self, state: DeviceState, tmp_path: Path
    ) -> None:
        questions, labels = self.opened(state, tmp_path, Clock())
        question = known(questions.open())
        questions.answer(question.begin_s, "stairs")
        begins = question.begin_s + 2.0 * np.arange(question.windows)
        y = labels.timeline.covering(begins, begins + 1.98, CLASSES)
        assert set(y.tolist()) == {2}
        assert questions.open() is None

    @pytest.mark.parametrize("answer", [None, "walk"])
    def test_a_restart_asks_nothing_twice(
        self, state: DeviceState, tmp_path: Path, answer: str | None
    ) -> None:
        clock = Clock()
        first = known(self.opened(state, tmp_path, clock)[0].open())
        clock.now_s += 60
        questions, labels = self.opened(state, tmp_path, clock)
        assert questions.open() == first
        questions.answer(first.begin_s, answer)
        assert labels.has_any(first.begin_s, first.end_s) == (answer is not None)
        clock.now_s += DAY_S / 3 - 120
        assert self.opened(state, tmp_path, clock)[0].open() is None
        later = msgspec.structs.replace(first, begin_s=NOW_S + 100, end_s=NOW_S + 300)
        state.put_questions((*state.questions(), later))
        clock.now_s += 100
        assert self.opened(state, tmp_path, clock)[0].open() == later

    def test_nothing_is_asked_without_a_model_or_if_none_may_be(
        self, state: DeviceState, tmp_path: Path
    ) -> None:
        assert self.opened(state, tmp_path, Clock(), most=0)[0].open() is None
        empty = DeviceState(tmp_path / "empty", read_only=True)
        (tmp_path / "empty").mkdir()
        empty.put_questions(state.questions())
        assert self.opened(empty, tmp_path, Clock())[0].open() is None
        assert not (tmp_path / FILE).exists()

    def test_a_stretch_with_a_label_is_not_asked_about(
        self, state: DeviceState, tmp_path: Path
    ) -> None:
        questions, labels = self.opened(state, tmp_path, Clock())
        for each in state.questions()[:2]:
            labels.say("rest", each.begin_s + 5, each.begin_s + 10)
        assert questions.open() == state.questions()[2]
        labels.say("rest", NOW_S - 1010, NOW_S)
        assert questions.open() is None

    def test_only_the_open_question_can_be_answered_and_with_its_classes(
        self, state: DeviceState, tmp_path: Path
    ) -> None:
        questions, _ = self.opened(state, tmp_path, Clock())
        question = known(questions.open())
        with pytest.raises(DataError, match="no longer open"):
            questions.answer(question.begin_s - 1, "walk")
        with pytest.raises(DataError, match="No class 'swim'"):
            questions.answer(question.begin_s, "swim")
        assert questions.open() == question

    @pytest.mark.parametrize("text", ["{", "[]", '{"question": 1}'])
    def test_damaged_files_lose_what_was_in_them_alone(
        self, state: DeviceState, tmp_path: Path, text: str
    ) -> None:
        questions, _ = self.opened(state, tmp_path, Clock())
        (tmp_path / FILE).write_text(text)
        assert questions.open() is not None
        (tmp_path / FILE).unlink()
        (tmp_path / "state" / "questions.json").write_text(text)
        assert questions.open() is None

    def test_a_disk_that_is_full_asks_nothing(self, state: DeviceState, tmp_path: Path) -> None:
        questions, _ = self.opened(state, tmp_path, Clock())
        (tmp_path / FILE).mkdir()
        assert questions.open() is None


def test_live_answers_store_long_stretches_of_recorded_windows_alone(
    fleet: FleetData, state: DeviceState, tmp_path: Path
) -> None:
    model, folder = Model(tmp_path / "state"), tmp_path / "state"
    state.put_stream(StreamSums(model.current.bundle, 900, 100))
    x = np.repeat(next(iter(fleet.devices.values())).test_x[:3], 80, axis=0)
    for is_recorded in (False, True):
        state.put_questions(())
        live = LiveAnswers(model, folder, model.window.stride, 1, is_recorded)
        lines = [line for at, w in enumerate(x) for line in live.of(NOW_S + at, w)]
        lines += live.end()
        changes = [i for i in range(1, 240) if lines[i]["class"] != lines[i - 1]["class"]]
        assert bool(state.questions()) == is_recorded
    ends = [0, *changes, 240]
    long = max(itertools.pairwise(ends), key=lambda pair: pair[1] - pair[0])
    assert max(state.questions(), key=lambda q: q.windows).windows == pytest.approx(
        long[1] - long[0], abs=1
    )
    state.put_questions((stretch(1),) * 2 * MOST_QUESTIONS)
    live = LiveAnswers(model, folder, model.window.stride, 0)
    for at, w in enumerate(x):
        list(live.of(NOW_S + at, w))
    list(live.end())
    assert len(state.questions()) == MOST_QUESTIONS
