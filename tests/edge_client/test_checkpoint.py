"""Checkpoints: work that is ended at any place goes on there, with the same bits; whatever lies in
place of one is refused."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_client.core.checkpoint import (
    MOST_BYTES,
    Basis,
    Checkpoint,
    Pace,
    Random,
    decode_checkpoint,
    encode_checkpoint,
    unusable,
    windows_digest,
    work_digest,
)
from edge_client.core.ports import Windows
from edge_client.core.report import Machine
from edge_client.core.session import MOST_TRIES, Session, on_plan, on_progress, on_start
from edge_client.storage.state import DeviceState
from edge_client.work.executor import Executor, PlanResult
from edge_client.work.job import Unfit
from simulation.datasets.windows import FleetData
from tests.android.kotlin_vectors import FakeGraphs, write_executor_cases
from tests.edge_client.device import Device
from tests.support.bundles import Exported
from tests.support.plans import plan
from tests.wire.checkpoint_vectors import FILE, text
from wire import messages as m
from wire.arrays.tensors import Tensors, decode_tensors
from wire.bundle import unpack
from wire.codec import decode
from wire.errors import WireError

EAGER = Pace(0.0, 1e9)
"""A checkpoint before every batch."""


class Ended(Exception):
    """Simulated end of the process."""


class Constant:
    """Noise that is the same, whenever it is drawn: a checkpoint does not hold where a device's own
    noise was."""

    def standard_normal(self, shape: Any, dtype: Any = np.float64) -> Any:
        return np.full(shape, 0.25, dtype)


class Cases:
    """Plans of every verb over a fake bundle, and what each starts from."""

    def __init__(self, folder: Path) -> None:
        write_executor_cases(folder)
        self._folder = folder
        self.bundle = unpack((folder / "bundle.zip").read_bytes())
        held, _ = decode_tensors((folder / "windows.safetensors").read_bytes())
        self.windows = Windows(
            held["train_x"], held["train_y"], held["test_x"], held["test_y"], held["unlabelled_x"]
        )
        self.plans = [
            decode(case.joinpath("plan.json").read_bytes(), m.Plan)
            for case in sorted((folder / "cases").iterdir())
        ]

    def tensors(self, name: str) -> Tensors:
        return decode_tensors((self._folder / "blobs" / name).read_bytes())[0]

    def private(self, plan: m.Plan) -> Tensors:
        return decode_tensors(
            (self._folder / "cases" / f"{plan.round:02d}" / "before.safetensors").read_bytes()
        )[0]

    def executor(self) -> Executor:
        return Executor(
            self.bundle,
            FakeGraphs(),
            self.windows,
            lambda _plan: cast(np.random.Generator, Constant()),
        )

    def execute(
        self,
        plan: m.Plan,
        between: Callable[[], None],
        executor: Executor,
        resumed: Checkpoint | None = None,
    ) -> PlanResult:
        return executor.execute(
            plan, self.tensors(plan.model), self.private(plan), self.tensors, between, resumed
        )

    def ended_at(self, plan: m.Plan, run: int, resumed: Checkpoint | None = None) -> bytes | None:
        """The checkpoint where the work is ended before its next run number `run`; None if it is
        done before."""
        executor, written, runs = self.executor(), b"", 0

        def between() -> None:
            nonlocal written, runs
            if runs == run:
                written = encode_checkpoint(basis(plan), executor.checkpoint(1.5))
                raise Ended
            runs += 1

        try:
            self.execute(plan, between, executor, resumed)
        except Ended:
            return written
        return None


def basis(of: m.Plan) -> Basis:
    return Basis(1, "shoal", "fake", work_digest(of), "0" * 64)


def same(one: PlanResult, other: PlanResult) -> bool:
    """Return True if two results are the same, bit by bit."""

    def bits(tensors: Tensors) -> dict[str, tuple[Any, ...]]:
        return {
            key: (str(value.dtype), value.shape, value.tobytes()) for key, value in tensors.items()
        }

    def told(result: PlanResult) -> tuple[Any, ...]:
        return (
            result.model,
            repr(result.evaluated),
            repr(result.trained),
            result.num_steps,
            bits(result.tensors),
            bits(result.private),
        )

    return told(one) == told(other)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


def nothing() -> None:
    pass


class TestSameBits:
    def test_work_that_ends_at_any_run_of_a_graph_goes_on_with_the_same_bits(
        self, cases: Cases
    ) -> None:
        ends = 0
        for asked in cases.plans:
            whole, run = cases.execute(asked, nothing, cases.executor()), 0
            while (written := cases.ended_at(asked, run)) is not None:
                _, made = decode_checkpoint(written)
                assert (made.place.runs, made.place.seconds) == (run, 1.5)
                assert same(cases.execute(asked, nothing, cases.executor(), made), whole), (
                    asked.round,
                    run,
                )
                run, ends = run + 1, ends + 1
        assert ends > 100

    def test_jobs_of_one_batch_each_come_to_the_end(self, cases: Cases) -> None:
        for asked in cases.plans:
            whole, made = cases.execute(asked, nothing, cases.executor()), None
            while (written := cases.ended_at(asked, 1, made)) is not None:
                before = made.place.runs if made else 0
                _, made = decode_checkpoint(written)
                assert made.place.runs == before + 1
            assert same(cases.execute(asked, nothing, cases.executor(), made), whole), asked.round

    @given(
        seed=st.integers(0, 2**32),
        device=st.integers(0, 2**32 - 1),
        draws=st.lists(st.sampled_from("pf"), max_size=6),
    )
    def test_random_numbers_go_on(self, seed: int, device: int, draws: list[str]) -> None:
        one, other = (np.random.default_rng([seed, device]) for _ in range(2))
        for draw in draws:
            _ = one.permutation(7) if draw == "p" else one.random(3, np.float32)
        Random.of(one).put(other)
        assert one.permutation(50).tolist() == other.permutation(50).tolist()
        assert one.random(3, np.float32).tolist() == other.random(3, np.float32).tolist()


class TestCodec:
    def test_it_reads_what_it_wrote(self, cases: Cases) -> None:
        for asked in cases.plans:
            for run in (0, 3, 7):
                if (written := cases.ended_at(asked, run)) is not None:
                    assert encode_checkpoint(*decode_checkpoint(written)) == written

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(seed=st.integers(0, 2**32))
    def test_hostile_bytes_are_refused_or_are_a_checkpoint_that_fits(
        self, cases: Cases, seed: int
    ) -> None:
        rng = random.Random(seed)
        asked = rng.choice([each for each in cases.plans if each.verbs])
        written = bytearray(
            cases.ended_at(asked, rng.randrange(3)) or cases.ended_at(asked, 0) or b""
        )
        for _ in range(rng.randrange(1, 4)):
            match rng.randrange(4):
                case 0:
                    written[rng.randrange(len(written))] ^= 1 << rng.randrange(8)
                case 1:
                    del written[rng.randrange(len(written)) :]
                case 2:
                    at = rng.randrange(len(written))
                    written[at:at] = rng.randbytes(rng.randrange(9))
                case 3:
                    at = rng.randrange(len(written))
                    written[at : at + 1] = rng.choice([b"9", b"-", b"null", b"e9", b"0"])
            if not written:
                break
        try:
            _, made = decode_checkpoint(bytes(written))
            executor, runs = cases.executor(), 0

            def between() -> None:
                nonlocal runs
                runs += 1
                if runs > 200:  # counts that grew: the work is long, not wrong
                    raise Ended

            cases.execute(asked, between, executor, made)
        except (WireError, Ended):
            pass

    def test_a_checkpoint_of_other_tensors_verbs_or_windows_is_unfit(self, cases: Cases) -> None:
        asked = cases.plans[1]
        written = cases.ended_at(asked, 4)
        assert written is not None
        _, made = decode_checkpoint(written)
        three = np.zeros(3, np.float32)
        wrong = [
            replace(made, tensors={**made.tensors, "shared/w": three}),
            replace(made, tensors={**made.tensors, "shared/other": three}),
            replace(made, tensors={**made.tensors, "column/weight": three}),
            replace(made, protected={"shared/b": three.astype(np.int64)}),
            replace(made, place=msgspec.structs.replace(made.place, verb=3)),
            replace(made, place=msgspec.structs.replace(made.place, model="0" * 64)),
            replace(made, place=msgspec.structs.replace(made.place, changed=("shared/none",))),
            replace(made, within=replace(made.within, order=np.arange(1, 42))),
            replace(made, within=replace(made.within, order=np.arange(5), batches=1)),
        ]
        for other in wrong:
            with pytest.raises(Unfit):
                cases.execute(asked, nothing, cases.executor(), other)

    def test_a_checkpoint_that_lost_what_a_later_verb_reads_is_unfit(self, cases: Cases) -> None:
        asked = next(plan for plan in cases.plans if plan.verbs[1:2] == (m.Apply("shift"),))
        ends = (cases.ended_at(asked, run) for run in count())
        made = next(
            made
            for written in ends
            if written
            for _, made in [decode_checkpoint(written)]
            if made.place.verb == 1
        )
        lost = replace(
            made,
            tensors={
                key: value
                for key, value in made.tensors.items()
                if key != "response/places.holdout"
            },
        )
        assert len(lost.tensors) == len(made.tensors) - 1
        with pytest.raises(
            Unfit,
            match=r"it lacks 'response/places.holdout', which graph 'shift' reads",
        ):
            cases.execute(asked, nothing, cases.executor(), lost)


class TestRules:
    @pytest.mark.parametrize(
        "case", msgspec.json.decode(FILE.read_bytes())["usable"], ids=lambda case: case["name"]
    )
    def test_vectors(self, case: dict[str, Any]) -> None:
        stored, now = (msgspec.convert(case[which], Basis) for which in ("stored", "now"))
        assert (unusable(stored, now) == "") == case["used"]

    @pytest.mark.parametrize("case", msgspec.json.decode(FILE.read_bytes())["random"])
    def test_vectors_of_random_numbers(self, case: dict[str, Any]) -> None:
        rng = np.random.default_rng(case["seeds"])
        msgspec.convert(case["state"], Random).put(rng)
        assert rng.permutation(len(case["permutation"])).tolist() == case["permutation"]
        assert [float(x) for x in rng.random(len(case["floats"]), np.float32)] == case["floats"]

    @pytest.mark.parametrize(
        "case", msgspec.json.decode(FILE.read_bytes())["plans"], ids=lambda case: case["name"]
    )
    def test_vectors_of_plans(self, case: dict[str, Any]) -> None:
        one, other = (
            decode(msgspec.json.encode(case[which]), m.Plan) for which in ("plan", "other")
        )
        assert (work_digest(one) == work_digest(other)) == case["same"]

    def test_vectors_are_those_of_this_client(self) -> None:
        assert FILE.read_text() == text(), "run python -m tests.wire.checkpoint_vectors"

    def test_a_plan_is_the_same_work_after_the_aggregator_was_started_again(self) -> None:
        assert work_digest(plan()) == work_digest(plan(epoch=9, deadline_at_s=5.0))
        others = [
            plan(2),
            plan(run_id="s"),
            plan(attempt=1),
            plan(bundle="2" * 64),
            plan(model="2" * 64),
            plan(seed=2),
            plan(verbs=()),
        ]
        assert len({work_digest(other) for other in [plan(), *others]}) == len(others) + 1

    def test_windows_are_known_by_every_bit(self) -> None:
        x, y = np.zeros((3, 1, 2), np.float32), np.zeros(3, np.int64)
        moved = x.copy()
        moved[2, 0, 1] = np.float32(-0.0)
        seen = [
            Windows(x, y, x, y),
            Windows(moved, y, x, y),
            Windows(x, y, moved, y),
            Windows(x, y + 1, x, y),
            Windows(x[:2], y[:2], x, y),
        ]
        assert len({windows_digest(windows) for windows in [*seen, Windows(x, y, x, y, x)]}) == 6

    @given(st.lists(st.integers(0, 9), max_size=60))
    def test_work_is_ended_five_times_at_most_without_coming_further(
        self, checkpoints: list[int]
    ) -> None:
        """Each number is where the last checkpoint of a start lay, 0 for none; each start is ended
        by the process's death."""
        session, furthest, without = on_plan(Session(), plan(), "", 0.0)[0], 0, 0
        for runs in checkpoints:
            session, action = on_start(session, Machine())
            assert (action.kind == "decline") == (without >= MOST_TRIES)
            if action.kind == "decline":
                return
            without += 1
            if runs:
                session = on_progress(session, plan(), runs)
                furthest, without = max(furthest, runs), 0 if runs > furthest else without

    def test_a_pause_is_twenty_times_what_the_last_one_took(self) -> None:
        assert Pace(30.0, 0.05).pause_s(0.1) == 30.0
        assert Pace(30.0, 0.05).pause_s(6.0) == 120.0


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state", pace=EAGER)


VERBS = (m.Evaluate("inputs", "survey"), m.Train(8, 3), m.Evaluate())


def stopped_after(device: Device, batches: int, **changes: Any) -> None:
    """A plan whose work is stopped in good order before this batch."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > batches

    device.offer()
    device.send_plan(**{"verbs": VERBS, **changes})
    device.agent._stop = stop
    device.turn()


def the_update(device: Device) -> tuple[m.Update, Tensors]:
    update, tensors = device.updates()[0]
    return msgspec.structs.replace(update, train_s=0.0, bytes_received=0), tensors


class TestAgent:
    def whole(
        self, device: Device, fleet: FleetData, exported: Exported, folder: Path
    ) -> tuple[m.Update, Tensors]:
        other = Device(fleet, exported, folder)
        other.offer()
        other.send_plan(verbs=VERBS)
        other.turn()
        return the_update(other)

    def test_a_stopped_plan_goes_on_where_it_was(
        self, device: Device, fleet: FleetData, exported: Exported, tmp_path: Path
    ) -> None:
        stopped_after(device, 9)
        assert (device.updates(), device.agent.session.tries) == ([], 0)
        _, made = decode_checkpoint(DeviceState(device.folder).checkpoint() or b"")
        runs: list[str] = []
        count_runs(device, runs)
        device.start()
        device.turn()
        update, tensors = the_update(device)
        expected, whole = self.whole(device, fleet, exported, tmp_path / "other")
        assert update == expected
        assert {key: value.tobytes() for key, value in tensors.items()} == {
            key: value.tobytes() for key, value in whole.items()
        }
        total: list[str] = []
        count_runs(other := Device(fleet, exported, tmp_path / "third"), total)
        other.start()
        other.offer()
        other.send_plan(verbs=VERBS)
        other.turn()
        assert len(runs) == len(total) - made.place.runs
        assert not (device.folder / "checkpoint").exists()

    @pytest.mark.parametrize("damage", ["bit", "short", "empty", "garbage"])
    def test_a_damaged_checkpoint_is_dropped_with_a_warning(
        self,
        device: Device,
        damage: str,
        fleet: FleetData,
        exported: Exported,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        stopped_after(device, 9)
        file = device.folder / "checkpoint"
        whole = file.read_bytes()
        file.write_bytes(
            {
                "bit": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
                "short": whole[:-1],
                "empty": b"",
            }.get(damage, b"x" * 99)
        )
        device.start()
        device.turn()
        assert the_update(device)[0] == self.whole(device, fleet, exported, tmp_path / "other")[0]
        assert any("Checkpoint is damaged and deleted" in line for line in caplog.messages)

    @pytest.mark.parametrize("change", ["plan", "windows", "client"])
    def test_a_checkpoint_of_other_work_is_dropped_with_a_warning(
        self,
        device: Device,
        change: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.WARNING)
        stopped_after(device, 9)
        runs: list[str] = []
        if change == "plan":
            device.send_plan(verbs=VERBS[1:])  # of the same round and attempt
        elif change == "windows":
            device.windows = replace(device.windows, test_y=device.windows.test_y[::-1].copy())
        else:
            monkeypatch.setattr("edge_client.work.checkpoints.CLIENT", "another")
        count_runs(device, runs)
        device.start()
        device.turn()
        assert device.updates()
        assert any(
            "Checkpoint dropped, the plan starts again: device=" in line for line in caplog.messages
        )
        assert runs[0] == ("step" if change == "plan" else "survey")

    def test_an_aggregator_that_started_again_costs_no_work(self, device: Device) -> None:
        stopped_after(device, 9)
        device.send_plan(verbs=VERBS, epoch=2, deadline_at_s=8e9)
        device.turn()
        runs: list[str] = []
        count_runs(device, runs)
        device.start()
        device.turn()
        (update, _), *_ = device.updates()
        assert update.epoch == 2
        assert "survey" not in runs

    @pytest.mark.parametrize("ending", ["done", "next plan", "finish", "declined"])
    def test_it_is_deleted_when_the_plan_is_over(self, device: Device, ending: str) -> None:
        stopped_after(device, 9)
        assert (device.folder / "checkpoint").exists()
        device.start()
        match ending:
            case "next plan":
                device.agent._stop = lambda: True
                device.send_plan(2, verbs=VERBS)
            case "finish":
                device.finish()
            case "declined":
                device.now_s = 1e10
                device.say(at_s=9.1e9)
        device.turn()
        assert not (device.folder / "checkpoint").exists()

    def test_a_checkpoint_that_a_crash_left_beside_a_finished_plan_is_deleted_at_the_next_start(
        self, device: Device
    ) -> None:
        stopped_after(device, 9)
        left = (device.folder / "checkpoint").read_bytes()
        device.start()
        device.turn()
        (device.folder / "checkpoint").write_bytes(left)
        device.start()
        assert not (device.folder / "checkpoint").exists()

    def test_a_full_disk_costs_the_checkpoint_alone(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING)
        monkeypatch.setattr(
            DeviceState,
            "put_checkpoint",
            lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )
        device.offer()
        device.send_plan(verbs=VERBS)
        device.turn()
        assert len(device.updates()) == 1
        assert any(
            "Checkpoint not written, work continues: device=" in line for line in caplog.messages
        )

    def test_the_checkpoint_makes_room_for_the_update(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put = DeviceState.put_update

        def full(state: DeviceState, *arguments: Any) -> None:
            if (device.folder / "checkpoint").exists():
                raise OSError(28, "No space left on device")
            put(state, *arguments)

        monkeypatch.setattr(DeviceState, "put_update", full)
        device.offer()
        device.send_plan(verbs=VERBS)
        device.turn()
        assert len(device.updates()) == 1

    def test_one_that_is_too_large_is_not_written(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING)
        monkeypatch.setattr("edge_client.work.checkpoints.MOST_BYTES", 1000)
        device.offer()
        device.send_plan(verbs=VERBS)
        device.turn()
        assert len(device.updates()) == 1
        assert len([line for line in caplog.messages if "at most 1000 are written" in line]) == 1
        assert MOST_BYTES > 1000

    def test_a_plan_that_is_ended_again_and_again_but_comes_further_is_not_quarantined(
        self, device: Device
    ) -> None:
        device.offer()
        device.send_plan(verbs=(m.Train(8, 40),))
        device.load_graphs = lambda bundle: mortal(bundle, 4)
        for _ in range(3 * MOST_TRIES):
            killed(device)
            assert DeviceState(device.folder).load().tries == 0
        assert device.declines() == []
        device.load_graphs = lambda bundle: mortal(
            bundle, 1
        )  # from here on no start comes any further
        for number in range(MOST_TRIES):
            killed(device)
            assert DeviceState(device.folder).load().tries == number + 1
        device.start()
        device.turn()
        assert [decline.reason for decline in device.declines()] == ["quarantined"]
        assert not (device.folder / "checkpoint").exists()


class Killed(BaseException):
    """An exception that no ring contains, like the death of the process."""


def killed(device: Device) -> None:
    """Start the client, which ends at once or in its work."""

    def live() -> None:
        device.start()
        device.turn()

    with pytest.raises(Killed):
        live()


def mortal(bundle: Any, runs: int) -> Any:
    """Graphs that end the client at this run."""
    from edge_client.graphs.onnx import OnnxGraphs

    class Mortal(OnnxGraphs):
        left = runs

        def run(self, graph: str, inputs: Tensors) -> Tensors:
            self.left -= 1
            if self.left < 0 or runs == 1:
                raise Killed
            return super().run(graph, inputs)

    return Mortal(bundle)


def count_runs(device: Device, runs: list[str]) -> None:
    """Note each graph that the device runs from its next start on."""
    from edge_client.graphs.onnx import OnnxGraphs

    class Counted(OnnxGraphs):
        def run(self, graph: str, inputs: Tensors) -> Tensors:
            runs.append(graph)
            return super().run(graph, inputs)

    device.load_graphs = Counted
