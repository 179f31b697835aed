"""The model in use: what answers predictions, apart from any run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.core.session import MOST_TRIES, ModelOffer
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import BLOBS, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, other_model, take_up
from tests.edge_client.hostile import hostile_bundles, packed, with_graph
from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays.tensors import Array, Tensors, encode_tensors
from wire.codec import digest
from wire.errors import ConfigError


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state")


def answer(device: Device) -> Array:
    return device.agent.predict(device.windows.test_x)


def offer_of(device: Device) -> ModelOffer:
    offer = device.agent.session.offer
    assert offer is not None
    return offer


def problem_of(device: Device) -> str:
    return offer_of(device).problem


class TestTakingUp:
    def test_there_is_none_before_a_run_has_finished(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        with pytest.raises(ConfigError, match="no model yet"):
            answer(device)

    def test_what_a_run_leaves_answers_also_after_a_restart(self, device: Device) -> None:
        take_up(device)
        before = answer(device)
        assert before.shape == (12, 3)
        device.start()
        np.testing.assert_array_equal(answer(device), before)
        current = DeviceState(device.folder).current()
        assert current is not None
        assert (current.bundle, current.model, current.run_id) == (
            device.bundle.digest,
            digest(device.model),
            "r",
        )

    def test_it_answers_while_other_runs_are_carried_out(self, device: Device) -> None:
        take_up(device)
        before, seen = answer(device), []

        class Watching(OnnxGraphs):
            def run(self, graph: str, inputs: Tensors) -> Tensors:
                if graph == "step":
                    seen.append(answer(device))
                return super().run(graph, inputs)

        other = packed(device.bundle, name="other")
        agent, device.load_graphs = device.agent, Watching
        device.start()
        assert device.agent is not agent
        device.offer(other, other_model(device))
        device.send_plan(1, run_id="s", bundle=digest(other), model=digest(other_model(device)))
        device.turn()
        assert len(device.updates()) == 1
        assert len(seen) == 5
        for now in (*seen, answer(device)):
            np.testing.assert_array_equal(now, before)
        device.start()
        np.testing.assert_array_equal(answer(device), before)

    @pytest.mark.parametrize(
        "name",
        [
            "truncated",
            "encrypted",
            "a graph that is no graph",
            "no graphs",
            "another window",
            "a later format",
            "no inputs",
        ],
    )
    def test_a_bundle_that_cannot_be_used_leaves_the_model_before(
        self, device: Device, name: str
    ) -> None:
        take_up(device)
        before = answer(device)
        bundle = hostile_bundles(device.bundle)[name]
        if name == "no inputs":
            bundle = with_graph(device.bundle, "predict", inputs=())
        if name == "a graph that is no graph":
            bundle = packed(
                device.bundle, files={device.bundle.manifest.graphs["predict"].file: b"junk"}
            )
        take_up(device, bundle=bundle, run_id="s")
        assert problem_of(device)
        np.testing.assert_array_equal(answer(device), before)
        device.start()
        np.testing.assert_array_equal(answer(device), before)
        assert DeviceState(device.folder).load().offer == device.agent.session.offer

    @pytest.mark.parametrize(
        ("graph", "problem"),
        [
            (
                lambda x: np.full((len(x), 3), np.nan, np.float32),
                "probabilities that sum to 1, got nan",
            ),
            (
                lambda x: np.full((len(x), 3), 0.5, np.float32),
                "probabilities that sum to 1, got 1.5",
            ),
            (lambda x: np.full((len(x), 2), 0.5, np.float32), "with shape (1, 3), got (1, 2)"),
        ],
    )
    def test_a_model_that_does_not_answer_in_probabilities(
        self, device: Device, graph: Any, problem: str
    ) -> None:
        take_up(device)
        before = answer(device)

        class Wrong(OnnxGraphs):
            def run(self, name: str, inputs: Tensors) -> Tensors:
                return {"output/probabilities": graph(inputs["batch/x"])}

        device.load_graphs = Wrong
        device.start()
        take_up(device, other_model(device), run_id="s")
        assert problem in problem_of(device)
        device.load_graphs = OnnxGraphs
        device.start()
        np.testing.assert_array_equal(answer(device), before)

    @pytest.mark.parametrize("payload", [b"junk", encode_tensors({})])
    def test_a_model_of_another_layout(self, device: Device, payload: bytes) -> None:
        take_up(device)
        before = answer(device)
        take_up(device, payload, run_id="s")
        np.testing.assert_array_equal(answer(device), before)
        take_up(device, other_model(device), run_id="t")
        assert np.abs(answer(device) - before).max() > 0
        assert problem_of(device) == ""

    def test_an_older_bundle_and_one_that_the_policy_does_not_permit(self, device: Device) -> None:
        device.options["policy"] = m.Policy(bundles=(device.bundle.manifest.name,))
        newer = packed(device.bundle, version=device.bundle.manifest.version + 1)
        device.start()
        take_up(device, bundle=newer)
        take_up(device, run_id="s")
        assert "StaleBundle" in problem_of(device)
        take_up(device, bundle=packed(device.bundle, name="other"), run_id="t")
        assert "does not permit" in problem_of(device)
        current = DeviceState(device.folder).current()
        assert current is not None
        assert current.bundle == digest(newer)

    def test_a_model_that_ends_the_client_is_given_up(self, device: Device) -> None:
        take_up(device)
        before = answer(device)

        def end(_bundle: Any) -> Any:
            raise KeyboardInterrupt  # as a signal would, it ends the client

        device.load_graphs = end
        for _ in range(MOST_TRIES):
            device.start()
            with pytest.raises(KeyboardInterrupt):
                take_up(device, other_model(device), run_id="s")
        device.start()
        take_up(device, other_model(device), run_id="s")
        assert "ended this client" in problem_of(device)
        device.load_graphs = OnnxGraphs
        device.start()
        device.turn()
        np.testing.assert_array_equal(answer(device), before)

    def test_a_finish_of_an_epoch_that_is_over_changes_nothing(self, device: Device) -> None:
        take_up(device)
        device.finish("s", epoch=0, model="9" * 64)
        device.turn()
        assert offer_of(device).model == digest(device.model)


class TestKeeping:
    def test_its_blobs_stay_whatever_is_carried_out(self, device: Device) -> None:
        take_up(device)
        other = packed(device.bundle, name="other")
        device.offer(other)
        for number in (1, 2, 3):
            model = other_model(device, 1 + number / 10)
            device.offer(model)
            device.send_plan(number, run_id="s", bundle=digest(other), model=digest(model))
            device.turn()
        state = DeviceState(device.folder)
        assert all(state.blob(name) for name in device.agent._model.blobs)
        assert not state.files.size(BLOBS + digest(other_model(device, 1.1)))

    def test_private_tensors_of_its_run_stay(self, device: Device) -> None:
        device.offer()
        device.send_plan(verbs=(m.Train(16, 8, hyper={"lr": 0.05}, report=False), m.Evaluate()))
        device.turn()
        ((update, _),) = device.updates()
        take_up(device)
        assert (
            answer(device).argmax(1) == device.windows.test_y
        ).sum() == update.evaluated.num_correct
        for number in (2, 3, 4):
            device.send_plan(number)
            device.turn()
        device.start()
        assert (
            answer(device).argmax(1) == device.windows.test_y
        ).sum() == update.evaluated.num_correct

    @pytest.mark.parametrize("which", ["bundle", "model"])
    def test_a_damaged_blob_of_it_is_fetched_again(self, device: Device, which: str) -> None:
        take_up(device)
        before = answer(device)
        name = device.bundle.digest if which == "bundle" else digest(device.model)
        (device.folder / "blobs" / name).write_bytes(b"damaged")
        device.start()
        with pytest.raises(ConfigError, match="damaged"):
            answer(device)
        device.turn()
        device.turn()
        np.testing.assert_array_equal(answer(device), before)

    def test_a_damaged_note_of_it_is_set_aside(self, device: Device) -> None:
        take_up(device)
        (device.folder / "current" / "model.json").write_text("{")
        device.start()
        assert [path.name for path in (device.folder / "current").glob("*.damaged")] == [
            "model.json.damaged"
        ]
        device.turn()
        assert answer(device).shape == (12, 3)  # the session still has the offer
