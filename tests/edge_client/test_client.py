"""The client: sessions, batches, data folders, what it does with what arrives, and that it needs no torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.adapters.onnx_graphs import OnnxGraphs
from edge_client.adapters.state import FolderState
from edge_client.adapters.windows import load_folder
from edge_client.agent import RESEND_S, Agent
from edge_client.core.ports import Windows
from edge_client.core.session import Session, on_executed, on_plan, on_reply
from edge_client.executor import Executor, batch_slices, held_out, training_batches
from simulation.datasets.windows import FleetData
from tests.conftest import Exported
from wire import messages as m
from wire.bundle import new_key
from wire.codec import decode, decode_update, digest, encode
from wire.errors import BundleError, DataError, WrongLayout
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery, LinkUp
from wire.tensors import encode_tensors
from wire.topics import Topics


def plan(number: int = 1, run_id: str = "r", **changes: Any) -> m.Plan:
    return m.Plan(
        run_id, number, "d0", **{"bundle": "0" * 64, "model": "1" * 64, "verbs": (m.Train(8),), "seed": 1, "deadline_at_s": 9.0} | changes
    )


class TestSession:
    def test_a_plan_is_executed_once(self) -> None:
        session, action = on_plan(Session(), plan(1))
        assert action.kind == "work"
        session = on_executed(session, plan(1))
        assert on_plan(session, plan(1)) == (session, on_plan(session, plan(1))[1])
        assert on_plan(session, plan(1))[1].kind == "send"
        session, action = on_reply(session, m.Acknowledge("r", 1))
        assert (session.pending, action.kind) == (None, "drop")
        assert on_plan(session, plan(1))[1].kind == "none"
        assert on_plan(session, plan(2))[1].kind == "work"

    def test_a_refused_round_is_tried_again_only_when_it_was_opened_again(self) -> None:
        session = on_executed(on_plan(Session(), plan(2))[0], plan(2))
        session, _ = on_reply(session, m.Refuse("not-finite", "", "r", 2))
        assert on_plan(session, plan(2))[1].kind == "none"
        session, action = on_plan(session, plan(2, deadline_at_s=99.0))
        assert action.kind == "work"
        session, _ = on_reply(on_executed(session, plan(2, deadline_at_s=99.0)), m.Acknowledge("r", 2))
        assert on_plan(session, plan(2, deadline_at_s=199.0))[1].kind == "none"

    def test_another_run_starts_afresh(self) -> None:
        session, _ = on_plan(Session(run_id="old", answered=7), plan(1, "new"))
        assert (session.run_id, session.answered, session.plan) == ("new", 0, plan(1, "new"))

    def test_an_answer_to_another_round_changes_nothing(self) -> None:
        session = on_executed(on_plan(Session(), plan(2))[0], plan(2))
        assert on_reply(session, m.Acknowledge("r", 1))[0] == session
        assert on_reply(session, m.Acknowledge("other", 2))[0] == session

    @given(st.lists(st.tuples(st.sampled_from(["plan", "done", "ack", "refuse"]), st.integers(1, 5)), max_size=30))
    def test_no_round_is_worked_on_after_it_was_answered(self, history: list[tuple[str, int]]) -> None:
        session, answered = Session(), 0
        for kind, number in history:
            if kind == "plan":
                session, action = on_plan(session, plan(number))
                assert action.kind != "work" or number > answered
            elif kind == "done" and session.plan is not None:
                session = on_executed(session, session.plan)
            elif kind in ("ack", "refuse"):
                reply = m.Acknowledge("r", number) if kind == "ack" else m.Refuse("malformed", "", "r", number)
                session, action = on_reply(session, reply)
                answered = number if action.kind == "drop" else answered
            assert session.plan is None or session.plan.round > answered


class TestBatches:
    @given(n=st.integers(1, 200), size=st.integers(2, 64))
    def test_every_example_is_in_one_batch_and_none_is_too_small(self, n: int, size: int) -> None:
        slices = batch_slices(n, size, 2)
        assert [i for part in slices for i in range(n)[part]] == list(range(n))
        assert all(2 <= part.stop - part.start <= size + 1 for part in slices) or n == 1

    def test_steps_and_epochs(self) -> None:
        rng = np.random.default_rng(0)
        assert len(list(training_batches(m.Train(8, epochs=3), np.arange(20), 2, rng))) == 9
        assert len(list(training_batches(m.Train(8, steps=7), np.arange(20), 2, rng))) == 7


class TestDataFolder:
    def test_npz(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "train.npz", X=np.zeros((5, 2, 8), np.float32), y=np.arange(5) % 2)
        np.savez(tmp_path / "test.npz", X=np.zeros((3, 2, 8), np.float32), y=np.zeros(3, int))
        windows = load_folder(tmp_path)
        assert (windows.num_train, windows.num_test) == (5, 3)

    def test_npy_keeps_the_last_quarter_of_each_class_for_test(self, tmp_path: Path) -> None:
        np.save(tmp_path / "X.npy", np.arange(16, dtype=np.float32).reshape(16, 1, 1))
        np.save(tmp_path / "y.npy", np.repeat([0, 1], 8))
        assert load_folder(tmp_path).test_x.ravel().tolist() == [6, 7, 14, 15]

    def test_recordings_are_split_in_time_without_a_shared_sample(self, tmp_path: Path) -> None:
        (tmp_path / "classes.txt").write_text("rest\nwalk\n")
        rows = [f"{i},{i},0,{'walk' if i >= 100 else 'rest'}" for i in range(200)]
        (tmp_path / "one.csv").write_text("\n".join(["t,ax,ay,label", *rows]))
        windows = load_folder(tmp_path, length=16, stride=8)
        assert windows.train_x.shape[1:] == (2, 16)
        assert windows.train_x[:, 0].max() < 150 <= windows.test_x[:, 0].min()
        assert set(windows.train_y.tolist()) == {0, 1}
        assert all((w < 100).all() or (w >= 100).all() for w in windows.train_x[:, 0])

    @pytest.mark.parametrize(
        ("files", "error"),
        [
            ({}, "expected train.npz"),
            ({"train.npz": "junk"}, "train.npz"),
            ({"a.csv": "x,y\n1,2"}, "no column 'label'"),
            ({"a.csv": "x,label\n1,zero"}, "line 2"),
            ({"a.csv": "x,label\n1,0\n2"}, "line 3"),
            ({"a.csv": "x,label\nnan,0"}, "not finite"),
            ({"a.csv": "x,label\n1,0", "b.csv": "z,label\n1,0"}, "channels"),
            ({"a.csv": "x,label\n1,0"}, "no recording has 128 samples"),
        ],
    )
    def test_unusable_folder_is_one_clear_error(self, tmp_path: Path, files: dict[str, str], error: str) -> None:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=error):
            load_folder(tmp_path)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no such folder"):
            load_folder(tmp_path / "x")


class TestExecutor:
    def test_train_evaluate_respond_annotate(self, fleet: FleetData, exported: Exported) -> None:
        bundle, windows = exported.bundle, fleet.devices["d0"]
        executor = Executor(bundle, OnnxGraphs(bundle), windows)
        model = {k: v for k, v in bundle.initial.items() if not k.startswith("slot/")}
        inputs = {"x": windows.test_x[:5]}
        verbs = (
            m.Evaluate(),
            m.Evaluate("train", "survey", "initial"),
            m.Respond("2" * 64),
            m.Annotate("predict", "weight"),
            m.Train(16, 2),
        )
        result = executor.execute(plan(verbs=verbs), model, {}, lambda _name: inputs)
        assert result.evaluated.num_examples == windows.num_test
        assert result.trained.num_examples == 2 * windows.num_train
        assert result.num_steps == 6
        assert result.tensors["response/predict"].shape == (5, 3)
        np.testing.assert_allclose(result.tensors["response/predict"].sum(1), 1, rtol=1e-5)
        assert result.tensors["response/survey.gradient"].shape == model["shared/head.weight"].shape
        layout = {name for name, _, _ in bundle.manifest.reported("step")}
        assert layout <= result.tensors.keys()
        assert np.abs(result.tensors["delta/head.weight"]).max() > 0

    def test_annotated_columns_stay_on_the_device(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        result = executor.execute(plan(verbs=(m.Annotate("predict", "weight"),)), model, {}, lambda _n: {})
        assert list(result.private) == ["column/weight"]
        assert len(result.private["column/weight"]) == fleet.devices["d0"].num_train
        again = executor.execute(plan(verbs=(m.Evaluate(),)), model, result.private, lambda _n: {})
        np.testing.assert_array_equal(again.private["column/weight"], result.private["column/weight"])

    def test_choose_goes_on_from_the_model_that_fits_best(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        trained = executor.execute(plan(verbs=(m.Train(16, 5, hyper={"lr": 0.05}),)), model, {}, lambda _n: {})
        better = {k: v + trained.tensors.get(k.replace("shared/", "delta/"), np.float32(0)) for k, v in model.items()}
        blobs = {"1" * 64: model, "2" * 64: better}
        result = executor.execute(plan(verbs=(m.Choose(("1" * 64, "2" * 64)), m.Train(16))), model, {}, blobs.__getitem__)
        assert result.model == "2" * 64
        expected = executor.execute(plan(verbs=(m.Train(16),)), better, {}, lambda _n: {})
        np.testing.assert_array_equal(result.tensors["delta/head.weight"], expected.tensors["delta/head.weight"])

    def test_protect_clips_and_noises_everything_that_training_changed(self, fleet: FleetData, exported: Exported) -> None:
        secret = lambda _plan: np.random.default_rng(7)  # noqa: E731
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"], secret)
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}

        def change(*verbs: m.Verb) -> np.ndarray:
            sent = executor.execute(plan(verbs=(m.Train(16), *verbs)), model, {}, lambda _n: {}).tensors
            parts = [sent[f"delta/{k[7:]}"] if k.startswith("shared/") else sent[k] - v for k, v in model.items()]
            return np.concatenate([part.ravel() for part in parts])

        free, clipped, noised = change(), change(m.Protect(0.1)), change(m.Protect(0.1, 0.01))
        assert np.linalg.norm(free) > 0.2
        assert np.linalg.norm(clipped) == pytest.approx(0.1, rel=1e-3)
        np.testing.assert_allclose(clipped, free * 0.1 / np.linalg.norm(free), atol=1e-6)
        assert np.std(noised - clipped) == pytest.approx(0.01, rel=0.1)

    def test_what_is_held_out_is_not_trained_on_and_is_the_same_each_time(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        num_train = fleet.devices["d0"].num_train
        mask = held_out(num_train, 0.25, "d0")
        assert mask.sum() == round(0.25 * num_train)
        np.testing.assert_array_equal(mask, held_out(num_train, 0.25, "d0"))
        verbs = (m.Train(16, holdout=0.25), m.Evaluate("holdout", holdout=0.25))
        result = executor.execute(plan(verbs=verbs), model, {}, lambda _n: {})
        assert (result.trained.num_examples, result.evaluated.num_examples) == ((~mask).sum(), mask.sum())

    def test_a_model_tuned_for_the_device_alone_is_kept_and_not_sent(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        model = {k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")}
        verbs = (m.Train(16, 8, hyper={"lr": 0.05}, report=False), m.Evaluate())
        result = executor.execute(plan(verbs=verbs), model, {}, lambda _n: {})
        assert result.tensors == {}
        windows = fleet.devices["d0"]
        predicted = executor.predict(model, result.private, windows.test_x).argmax(1)
        assert (predicted == windows.test_y).sum() == result.evaluated.num_correct
        untuned = executor.predict(model, {}, windows.test_x).argmax(1)
        assert (untuned == windows.test_y).sum() < result.evaluated.num_correct
        after = executor.execute(plan(verbs=(m.Evaluate(),)), model, result.private, lambda _n: {})
        assert after.evaluated.num_correct == (untuned == windows.test_y).sum()

    def test_one_example_can_be_predicted(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        assert executor.predict(exported.bundle.initial, {}, fleet.devices["d0"].test_x[:1]).shape == (1, 3)

    def test_model_of_another_layout_is_refused(self, fleet: FleetData, exported: Exported) -> None:
        executor = Executor(exported.bundle, OnnxGraphs(exported.bundle), fleet.devices["d0"])
        with pytest.raises(WrongLayout, match="is missing"):
            executor.execute(plan(), {}, {}, lambda _n: {})

    def test_windows_that_do_not_fit_the_bundle_are_refused(self, exported: Exported) -> None:
        x, y = np.zeros((4, 3, 32), np.float32), np.zeros(4, np.int64)
        with pytest.raises(DataError, match=r"expects \(2, 32\)"):
            Executor(exported.bundle, OnnxGraphs(exported.bundle), Windows(x, y, x, y))
        x, y = np.zeros((4, 2, 32), np.float32), np.full(4, 7)
        with pytest.raises(DataError, match=r"classes 0\.\.2"):
            Executor(exported.bundle, OnnxGraphs(exported.bundle), Windows(x, y, x, y))

    def test_unknown_graph_is_one_clear_error(self, exported: Exported) -> None:
        with pytest.raises(BundleError, match="no graph 'other'"):
            OnnxGraphs(exported.bundle).run("other", {})


class Device:
    """An agent on an in-process broker, and the aggregator's side of the conversation."""

    def __init__(self, fleet: FleetData, exported: Exported, folder: Path, trusted: Any = None) -> None:
        self.fleet, self.exported, self.folder, self.trusted = fleet, exported, folder, trusted
        self.topics, self.broker, self.now_s = Topics("f"), InProcessBroker(), 0.0
        self.server = self.broker.connect("server")
        self.server.subscribe(*self.topics.from_devices)
        self.model = encode_tensors({k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")})
        self.start()

    def start(self) -> None:
        windows = self.fleet.devices["d0"]
        link = self.broker.connect("d0")
        self.agent = Agent(
            "d0", self.topics, link, windows, FolderState(self.folder), OnnxGraphs, trusted=self.trusted, clock=lambda: self.now_s
        )

    def turn(self) -> None:
        while (event := self.agent.link.receive(timeout_s=0)) is not None:
            self.agent.handle(event)
        self.agent.tick()

    def offer(self) -> None:
        for payload in (self.exported.bundle.payload, self.model):
            self.server.publish(self.topics.blob(digest(payload)), payload, retain=True)

    def send_plan(self, number: int = 1, **changes: Any) -> None:
        sent = plan(number, bundle=self.exported.bundle.digest, model=digest(self.model), **changes)
        self.server.publish(self.topics.device("d0", "plan"), encode(sent))

    def reply(self, message: Any) -> None:
        self.server.publish(self.topics.device("d0", "reply"), encode(message))

    def sent(self, kind: str) -> list[bytes]:
        found = []
        while (event := self.server.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery) and event.topic.endswith(f"/{kind}"):
                found.append(event.payload)
        return found


class TestAgent:
    @pytest.fixture
    def device(self, fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
        return Device(fleet, exported, tmp_path / "state")

    def test_a_round(self, device: Device) -> None:
        device.turn()
        assert decode(device.sent("check-in")[0], m.CheckIn).num_train == 40
        device.offer()
        device.send_plan()
        device.turn()
        update, tensors = decode_update(device.sent("update")[0])
        assert (update.round, update.num_steps) == (1, 5)
        assert "delta/head.weight" in tensors
        device.reply(m.Acknowledge("r", 1))
        device.turn()
        assert device.agent.session.answered == 1
        assert FolderState(device.folder).update() is None

    def test_update_is_kept_and_sent_again_until_it_is_acknowledged(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        (first,) = device.sent("update")
        device.now_s += RESEND_S[0]
        device.turn()
        assert device.sent("update") == [first]
        device.start()
        device.turn()
        assert first in device.sent("update")
        device.reply(m.Acknowledge("r", 1))
        device.turn()
        device.now_s += 10_000
        device.turn()
        assert device.sent("update") == []

    def test_plan_that_a_restart_interrupted_is_taken_up(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.start()
        device.offer()
        device.turn()
        assert len(device.sent("update")) >= 1

    def test_update_that_was_finished_before_a_crash_is_not_made_again(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        (first,) = device.sent("update")
        before = device.agent.session
        state = FolderState(device.folder)
        state.save(
            Session(run_id="r", plan=plan(bundle=device.exported.bundle.digest, model=digest(device.model)), versions=before.versions)
        )
        device.start()
        device.turn()
        assert device.agent.session.pending == before.pending
        assert set(device.sent("update")) == {first}

    def test_missing_blob_is_asked_for(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.now_s += RESEND_S[0]
        device.turn()
        asked = {decode(p, m.Fetch).digest for p in device.sent("fetch")}
        assert asked == {device.exported.bundle.digest, digest(device.model)}

    def test_blob_of_a_plan_that_was_overtaken_is_not_waited_for(self, device: Device) -> None:
        missed = plan(1, bundle=device.exported.bundle.digest, model="9" * 64)
        device.server.publish(device.topics.device("d0", "plan"), encode(missed))
        device.turn()
        device.offer()
        device.send_plan(2)
        device.turn()
        assert [decode_update(p)[0].round for p in device.sent("update")] == [2]

    def test_blob_with_another_hash_is_ignored(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.server.publish(device.topics.blob(device.exported.bundle.digest), b"something else")
        device.turn()
        assert FolderState(device.folder).blob(device.exported.bundle.digest) is None

    def test_new_aggregator_makes_it_check_in(self, device: Device) -> None:
        device.turn()
        device.sent("check-in")
        for boot in ("one", "one", "two"):
            device.server.publish(device.topics.aggregator, encode(m.AggregatorStatus(True, boot)))
        device.turn()
        assert len(device.sent("check-in")) == 2

    def test_garbage_changes_nothing(self, device: Device) -> None:
        device.turn()
        before = device.agent.session
        for topic in (device.topics.device("d0", "plan"), device.topics.device("d0", "reply"), device.topics.aggregator):
            device.agent.handle(Delivery(topic, b"\xff\x00garbage"))
        device.agent.handle(Delivery("other", b""))
        device.agent.handle(LinkUp())
        assert device.agent.session == before

    def test_refused_update_is_dropped(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        device.reply(m.Refuse("not-finite", "x", "r", 1))
        device.turn()
        assert device.agent.session.pending is None
        assert device.agent.session.answered == 1

    def test_refusal_of_an_unreadable_update_drops_it(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        device.reply(m.Refuse("malformed", "x", about="check-in"))
        device.turn()
        assert device.agent.session.pending is not None
        device.reply(m.Refuse("too-large", "x", about="update"))
        device.turn()
        assert device.agent.session.pending is None

    def test_bundle_by_another_key_is_not_loaded(self, fleet: FleetData, exported: Exported, tmp_path: Path) -> None:
        device = Device(fleet, exported, tmp_path / "state", trusted=new_key().public_key())
        device.offer()
        device.send_plan()
        device.turn()
        (declined,) = device.sent("decline")
        assert "not made with the trusted key" in decode(declined, m.Decline).detail
        assert device.agent.session.plan is None

    def test_older_bundle_is_not_loaded(self, device: Device) -> None:
        FolderState(device.folder).save(Session(versions={device.exported.bundle.manifest.name: 2}))
        device.start()
        device.offer()
        device.send_plan()
        device.turn()
        assert device.sent("update") == []


def test_importing_the_client_loads_no_torch() -> None:
    code = (
        "import sys, edge_client.main; "
        "print([n for n in ('torch', 'onnx', 'sklearn', 'scipy', 'sqlalchemy', 'fastapi', 'matplotlib') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_command_line_errors_are_one_line_and_status_2(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "edge_client.main",
        "run",
        "--id",
        "d",
        "--data",
        str(tmp_path / "none"),
        "--state",
        str(tmp_path / "s"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: data folder")
    assert "Traceback" not in done.stderr
