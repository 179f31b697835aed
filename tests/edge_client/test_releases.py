"""Releases: which model answers, whatever comes, and what the device says of it."""

import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest

from edge_client.agent.releases import AGAIN_S
from edge_client.commands.status import status
from edge_client.core.ports import Windows
from edge_client.core.session import MOST_TRIES
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import NOW_S, Device, other_model
from tests.edge_client.hostile import packed
from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays.tensors import Array, Tensors
from wire.codec import digest, encode


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state")


def answer(device: Device) -> Array:
    return device.agent.predict(device.windows.test_x)


def right(device: Device) -> int:
    return int((answer(device).argmax(1) == device.windows.test_y).sum())


def failing(fails: bool) -> Any:
    """A class of graphs that do not run as long as its `fails` is true."""

    class Failing(OnnxGraphs):
        def run(self, graph: str, inputs: Tensors) -> Tensors:
            if graphs.fails:
                raise MemoryError
            return super().run(graph, inputs)

    graphs: Any = Failing
    graphs.fails = fails
    return graphs


def fresh(device: Device, count: int = 12, since_s: float = 1.0) -> None:
    """Give the device windows of the next hour, all of class 1."""
    device.windows = replace(
        device.windows,
        test_x=device.windows.test_x[:count],
        test_y=np.ones(count, np.int64),
        test_begins_s=NOW_S + since_s + np.arange(count),
    )


class Killed(BaseException):
    """The end of the process."""


def killed_at(number: int, act: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """Return `act`, which ends the process at the call of this number of all `calls`."""

    def or_killed(*arguments: Any, **options: Any) -> Any:
        calls.append(act.__name__)
        if len(calls) > number:
            raise Killed
        return act(*arguments, **options)

    return or_killed


class TestGoingBack:
    def taken(self, device: Device, count: int = 12, since_s: float = 1.0) -> tuple[Array, Array]:
        """Let the device take two models, the second of which is sure of class 0."""
        device.release(1)
        fresh(device, count, since_s)
        first = answer(device)
        device.start()
        device.turn()
        device.release(2, other_model(device, 4.0))
        return first, answer(device)

    def test_the_model_before_is_used_if_it_is_better_and_the_device_says_so(
        self, device: Device
    ) -> None:
        first, _ = self.taken(device)
        assert device.in_use().number == 2
        device.now_s = AGAIN_S
        device.turn()
        np.testing.assert_array_equal(answer(device), first)
        report = device.in_use()
        assert (report.number, report.offered) == (1, 2)
        assert "went back from model" in report.problem
        assert "12 held-out windows" in report.problem
        assert report.model == digest(device.model)

    def test_another_look_finds_the_same_also_after_a_restart(self, device: Device) -> None:
        first, _ = self.taken(device)
        for look in range(1, 5):
            device.now_s = look * AGAIN_S
            if look > 2:
                device.start()
            device.turn()
            np.testing.assert_array_equal(answer(device), first)
        before = DeviceState(device.folder).before()
        assert before is not None
        assert before.release == 2

    def test_the_newer_one_is_used_again_by_the_same_rule(self, device: Device) -> None:
        _, second = self.taken(device)
        device.now_s = AGAIN_S
        device.turn()
        device.windows = replace(device.windows, test_y=np.zeros(len(second), np.int64))
        device.start()
        device.turn()
        np.testing.assert_array_equal(answer(device), second)
        report = device.in_use()
        assert (report.number, report.problem) == (2, "")

    def test_a_release_that_comes_after_is_taken(self, device: Device) -> None:
        self.taken(device)
        device.now_s = AGAIN_S
        device.turn()
        device.release(3, other_model(device, 2.0))
        report = device.in_use()
        assert (report.number, report.problem) == (3, "")

    @pytest.mark.parametrize(
        ("count", "since_s"), [(7, 1.0), (12, -AGAIN_S)], ids=["few", "older than the model"]
    )
    def test_windows_that_are_few_or_old_decide_nothing(
        self, device: Device, count: int, since_s: float
    ) -> None:
        _, second = self.taken(device, count, since_s)
        device.now_s = AGAIN_S
        device.turn()
        np.testing.assert_array_equal(answer(device), second)

    @pytest.mark.parametrize("rule", [{"min_windows": 13}, {"verbs": ("train",)}])
    def test_neither_do_windows_that_the_owner_lets_nobody_evaluate(
        self, fleet: FleetData, exported: Exported, tmp_path: Path, rule: dict[str, Any]
    ) -> None:
        device = Device(fleet, exported, tmp_path / "state", policy=m.Policy(**rule))
        _, second = self.taken(device)
        device.now_s = AGAIN_S
        device.turn()
        np.testing.assert_array_equal(answer(device), second)

    def test_killed_at_any_write_it_ends_in_one_of_the_two(self, device: Device) -> None:
        first, second = self.taken(device)
        whole = device.folder.with_name("whole")
        copytree(device.folder, whole, symlinks=True)
        answers = []
        for number in range(20):
            rmtree(device.folder)
            copytree(whole, device.folder, symlinks=True)
            device.start()
            calls: list[str] = []
            with pytest.MonkeyPatch.context() as patch:
                for act in (os.replace, os.fsync, os.symlink):
                    patch.setattr(os, act.__name__, killed_at(number, act, calls))
                with suppress(Killed):
                    device.turn()
            device.start()
            probabilities = answer(device)
            assert any(np.array_equal(probabilities, each) for each in (first, second))
            answers.append(np.array_equal(probabilities, first))
            if len(calls) <= number:
                break
        assert len(calls) <= number, "it was killed at every write"
        assert sorted(answers) == answers, "once it has gone back, it stays there"
        assert 0 < sum(answers) < len(answers)

    def test_status_says_it(self, device: Device, capsys: pytest.CaptureFixture[str]) -> None:
        self.taken(device)
        device.now_s = AGAIN_S
        device.turn()
        assert status(Namespace(state=device.folder)) == 0
        text = capsys.readouterr().out
        assert "went back from model" in text
        assert "held-out windows: " not in text, "they were measured with the newer model"


class TestTakingUp:
    def test_a_release_answers_and_the_device_says_so(self, device: Device) -> None:
        device.release(3)
        report = device.in_use()
        assert (report.number, report.offered, report.problem, report.failures) == (3, 3, "", 0)
        assert (report.before, report.evaluated.num_examples, report.evaluated.num_correct) == (
            m.Metrics(),
            12,
            right(device),
        )
        assert 0 < report.evaluated.mean_loss < 3
        assert 0 < report.latency_ms < 1000
        current = DeviceState(device.folder).current()
        assert current is not None
        assert report.model == current.model
        assert (current.release, current.group, current.since_s) == (3, "left", NOW_S)

    def test_the_one_in_use_is_evaluated_on_the_same_windows(self, device: Device) -> None:
        device.release(1)
        first = device.in_use()
        device.release(2, other_model(device, 0.1))
        second = device.in_use()
        assert second.before == first.evaluated
        assert second.evaluated != second.before

    def test_it_is_said_again_after_a_restart_and_a_check_in(self, device: Device) -> None:
        device.release(4)
        report = device.in_use()
        device.start()
        device.turn()
        assert device.in_use() == report
        device.say("another boot", epoch=2)
        device.turn()
        assert device.in_use() == report

    def test_without_one_the_device_says_that_too(self, device: Device) -> None:
        device.turn()
        assert device.in_use() == m.InUse("d0")

    @pytest.mark.parametrize("changes", [{"number": 4}, {"number": 5}, {"number": 6, "epoch": 0}])
    def test_a_release_that_is_no_newer_changes_nothing(
        self, device: Device, changes: dict[str, Any]
    ) -> None:
        device.release(5)
        before = answer(device)
        device.release(model=other_model(device), **changes)
        np.testing.assert_array_equal(answer(device), before)
        assert device.agent.session.released == 5

    def test_back_to_an_older_model_of_an_older_bundle(self, device: Device) -> None:
        device.release(1)
        before = answer(device)
        newer = packed(device.bundle, version=device.bundle.manifest.version + 1)
        device.release(2, other_model(device), newer)
        assert np.abs(answer(device) - before).max() > 0
        device.release(3)
        assert device.in_use().number == 3
        np.testing.assert_array_equal(answer(device), before)
        device.send_plan()
        device.turn()
        (decline,) = device.declines()
        assert decline.reason == "bundle", (
            "a plan may not go back, and neither may a run that has finished"
        )
        device.offer(other_model(device))
        device.finish("s", model=digest(other_model(device)))
        device.turn()
        assert device.agent.session.offer is not None
        assert "StaleBundle" in device.agent.session.offer.problem

    def test_a_finish_beside_releases_offers_nothing(self, device: Device) -> None:
        device.release(1)
        before = answer(device)
        device.offer(other_model(device))
        device.finish("s", model=digest(other_model(device)), releases=True)
        device.turn()
        np.testing.assert_array_equal(answer(device), before)
        assert device.in_use().number == 1

    def test_an_old_finish_again_changes_nothing_also_after_a_restart(self, device: Device) -> None:
        old, new = other_model(device), other_model(device, 0.5)
        device.offer(device.bundle.payload, old, new)
        for number, run_id, model in ((1, "run-1", old), (2, "second", new)):
            device.finish(run_id, model=digest(model), number=number)
            device.turn()
        before = answer(device)
        for start in range(2):
            if start:
                device.start()
                device.turn()
            device.finish("run-1", model=digest(old), number=1)
            device.turn()
            np.testing.assert_array_equal(answer(device), before)
            report = device.in_use()
            assert (report.number, report.offered, report.model) == (0, 2, digest(new))

    def test_private_tensors_of_the_run_that_trained_it_are_used_also_after_another_run(
        self, device: Device
    ) -> None:
        device.offer()
        device.send_plan(verbs=(m.Train(16, 8, hyper={"lr": 0.05}, report=False), m.Evaluate()))
        device.turn()
        ((update, _),) = device.updates()
        device.send_plan(1, run_id="s")
        device.turn()
        device.release(1)
        assert (
            right(device) == update.evaluated.num_correct == device.in_use().evaluated.num_correct
        )


class TestFailing:
    def test_one_that_cannot_be_loaded_is_reported_and_the_one_before_stays(
        self, device: Device
    ) -> None:
        device.release(1)
        before = answer(device)
        device.release(2, b"junk")
        report = device.in_use()
        assert (report.number, report.offered) == (1, 2)
        assert report.problem.startswith("Malformed: tensor file of 4 bytes")
        np.testing.assert_array_equal(answer(device), before)
        device.release(3, other_model(device))
        assert (device.in_use().number, device.agent.session.released) == (3, 3)

    def test_one_whose_file_answers_otherwise_is_not_taken(self, device: Device) -> None:
        other = device.bundle.manifest.graphs["predict"].template
        wrong = packed(
            device.bundle, files={other: device.bundle.files[other].replace(b"Softmax", b"Sigmoid")}
        )
        device.release(1, bundle=wrong)
        assert "the model in one file" in device.in_use().problem

    def test_one_that_is_not_permitted(self, device: Device) -> None:
        device.options["policy"] = m.Policy(bundles=("other",))
        device.start()
        device.release(1)
        assert "does not permit" in device.in_use().problem

    def test_one_that_ends_the_client_is_given_up_and_said(self, device: Device) -> None:
        device.release(1)

        def end(_bundle: Any) -> Any:
            raise KeyboardInterrupt  # as a signal would, it ends the client

        device.load_graphs = end
        device.start()
        with pytest.raises(KeyboardInterrupt):
            device.release(2, other_model(device))
        for _ in range(MOST_TRIES - 1):
            device.start()
            with pytest.raises(KeyboardInterrupt):
                device.turn()
        device.load_graphs = OnnxGraphs
        device.start()
        device.turn()
        report = device.in_use()
        assert (report.number, report.offered) == (1, 2)
        assert "ended this client" in report.problem
        device.now_s += AGAIN_S
        device.start()
        device.turn()
        assert device.in_use() == report, "what was given up is not tried again"

    @pytest.mark.parametrize("method", ["put_current", "save"])
    def test_a_client_that_dies_at_any_write_has_a_model_that_answers(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        device.release(1)
        real, writes = getattr(DeviceState, method), 0

        def dying(state: DeviceState, *arguments: Any) -> None:
            nonlocal writes
            writes += 1
            if writes % 2:
                real(state, *arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(DeviceState, method, dying)
        with pytest.raises(KeyboardInterrupt):
            device.release(2, other_model(device))
        for _ in range(20):
            try:
                device.start()
                assert answer(device).shape == (12, 3)
                device.turn()
            except KeyboardInterrupt:
                continue
        monkeypatch.setattr(DeviceState, method, real)
        device.start()
        device.turn()
        report = device.in_use()
        assert report.offered == 2
        assert report.number == 2 or "ended this client" in report.problem
        assert answer(device).shape == (12, 3)

    def test_the_one_before_answers_where_the_one_in_use_is_damaged(self, device: Device) -> None:
        device.release(1)
        before = answer(device)
        device.release(2, other_model(device))
        (device.folder / "blobs" / digest(other_model(device))).write_bytes(b"damaged")
        device.start()
        np.testing.assert_array_equal(answer(device), before)
        device.turn()
        assert device.in_use().failures == 1

    def test_predictions_that_fail_are_counted_until_another_model_is_in_use(
        self, device: Device
    ) -> None:
        graphs = failing(False)
        device.load_graphs = graphs
        device.start()
        device.release(1)
        graphs.fails = True
        for _ in range(3):
            with pytest.raises(MemoryError):
                answer(device)
        device.now_s += 61
        device.turn()
        assert device.in_use().failures == 3
        graphs.fails = False
        device.start()
        device.turn()
        assert device.in_use().failures == 3
        device.release(2, other_model(device))
        assert device.in_use().failures == 0

    def test_windows_of_another_shape_are_no_failure_of_the_model(self, device: Device) -> None:
        device.release(1)
        with pytest.raises(Exception, match="x must be numbers of shape"):
            device.agent.predict(np.zeros((1, 9, 9), np.float32))
        device.now_s += 61
        device.turn()
        device.start()
        device.turn()
        assert device.in_use().failures == 0


class TestWithoutWindows:
    def test_a_device_without_any_window_takes_a_release_and_says_that_nothing_was_measured(
        self, device: Device, caplog: pytest.LogCaptureFixture
    ) -> None:
        x, y = device.windows.test_x, device.windows.test_y
        device.windows = Windows(x[:0], y[:0], x[:0], y[:0])
        device.start()
        with caplog.at_level("INFO"):
            device.release(1)
        report = device.in_use()
        assert (report.number, report.problem, report.evaluated, report.before) == (
            1,
            "",
            m.Metrics(),
            m.Metrics(),
        )
        assert "tried on zeros: this device has no window" in caplog.text
        assert device.agent.predict(x).shape == (12, 3)

    def test_a_device_without_any_window_refuses_a_release_that_does_not_answer(
        self, device: Device
    ) -> None:
        x, y = device.windows.test_x, device.windows.test_y
        device.windows = Windows(x[:0], y[:0], x[:0], y[:0])
        device.start()
        device.release(1, other_model(device, np.nan))
        assert device.in_use().problem

    def test_what_was_in_the_way_has_passed_at_the_next_start(self, device: Device) -> None:
        right = device.windows
        device.windows = Windows(
            right.train_x[:, :1], right.train_y, right.test_x[:, :1], right.test_y
        )
        device.start()
        device.release(1)
        device.send_plan(run_id="s")  # what is offered stays although it failed
        device.turn()
        first = device.in_use()
        assert "windows must have shape" in first.problem
        device.start()
        device.turn()
        assert device.in_use() == first, "it failed again"
        device.windows = right
        device.start()
        device.turn()
        report = device.in_use()
        assert (report.number, report.problem, report.evaluated.num_examples) == (1, "", 12)

    def test_what_was_in_the_way_has_passed_an_hour_later(self, device: Device) -> None:
        graphs = failing(True)
        device.load_graphs = graphs
        device.start()
        device.release(1)
        assert "MemoryError" in device.in_use().problem
        graphs.fails = False
        device.now_s += AGAIN_S / 2
        device.turn()
        assert device.agent.session.offer is not None
        assert device.agent.session.offer.problem
        device.now_s += AGAIN_S
        device.turn()
        report = device.in_use()
        assert (report.number, report.problem) == (1, "")


class TestWhatIsSaid:
    @pytest.mark.parametrize("policy", [m.Policy(min_windows=13), m.Policy(verbs=("train",))])
    def test_the_owner_may_forbid_the_evaluation(self, device: Device, policy: m.Policy) -> None:
        device.options["policy"] = policy
        device.start()
        device.release(1)
        report = device.in_use()
        assert (report.number, report.evaluated) == (1, m.Metrics())

    def test_without_test_windows_nothing_is_measured_whatever_a_plan_held_out(
        self, device: Device
    ) -> None:
        """Others trained on the windows that this plan holds out, and the memory of a closing plan
        has them with their labels."""
        x, y = device.windows.train_x, device.windows.train_y
        device.windows = Windows(x, y, x[:0], y[:0])
        device.start()
        device.release(1)
        device.offer()
        device.send_plan(verbs=(m.Train(16, holdout=0.25), m.Evaluate("holdout", holdout=0.25)))
        device.turn()
        device.release(2, other_model(device))
        report = device.in_use()
        assert (report.number, report.problem, report.evaluated, report.before) == (
            2,
            "",
            m.Metrics(),
            m.Metrics(),
        )
        assert report.latency_ms > 0

    def test_unsigned_releases_and_those_of_others_are_ignored(
        self, fleet: FleetData, exported: Exported, tmp_path: Path
    ) -> None:
        device = Device(fleet, exported, tmp_path / "state", signed=True)
        device.turn()
        device.sent("in-use")
        topic = device.topics.device("d0", "release")
        release = m.Release("d0", 1, 1, "", "r", device.bundle.digest, digest(device.model))
        device.server.publish(topic, encode(release))
        device.server.publish(
            topic,
            device.sign(m.Release("d1", 1, 1, "", "r", device.bundle.digest, digest(device.model))),
        )
        device.turn()
        assert (device.agent.session.released, device.sent("in-use")) == (0, [])
