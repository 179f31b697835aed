"""The policy of a device's owner: the file, and the agent's obedience."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.core.policy import reported_classes
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.owner import read_policy
from edge_client.storage.state import TRAFFIC, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device
from tests.edge_client.hostile import with_graph
from tests.support.bundles import Exported
from tests.support.known import known
from tests.support.pages import blocks
from tests.wire.policy_vectors import TOLD
from wire import messages as m
from wire.arrays.tensors import Tensors
from wire.codec import decode, digest
from wire.errors import ConfigError
from wire.messages import CLIENT


class TestFile:
    def test_every_field(self, tmp_path: Path) -> None:
        (tmp_path / "policy.toml").write_text(
            'verbs = ["train", "protect"]\ngraphs = ["step"]\nbundles = ["watch"]\nmax_epochs = '
            "5\nmax_seconds = 60.5\n"
            "max_bytes_a_day = 50_000_000\nmax_clip_norm = 1\nmin_noise_multiplier = 0.5\n"
            "min_windows = 20\ntell_classes = true\n"
            'unreported = ["choose"]\n'
        )
        expected = m.Policy(
            ("train", "protect"),
            ("step",),
            ("watch",),
            5.0,
            60.5,
            50_000_000,
            1.0,
            0.5,
            20,
            True,
            ("choose",),
        )
        assert read_policy(tmp_path / "policy.toml") == expected

    def test_the_policy_of_the_page(self, tmp_path: Path) -> None:
        (block,) = (
            block.text
            for block in blocks("docs/policy.md", "toml")
            if block.text.startswith("verbs")
        )
        (tmp_path / "policy.toml").write_text(block)
        policy = read_policy(tmp_path / "policy.toml")
        assert [name for name in m.Policy.__struct_fields__ if f"{name} =" not in block] == [], (
            "the page has every field"
        )
        assert (policy.verbs, policy.min_noise_multiplier) == (
            ("train", "evaluate", "protect", "mask"),
            0.5,
        )
        defaults = {
            name: float(number)
            for name, number in re.findall(
                r"^(\w+) = .*# (\d+) unless it is set\b", block, re.MULTILINE
            )
        }
        assert defaults == {
            name: getattr(m.Policy(), name) for name in ("max_epochs", "min_windows")
        }

    def test_the_policy_that_saves_power(self, tmp_path: Path) -> None:
        (block,) = blocks("docs/power.md", "toml")
        (tmp_path / "policy.toml").write_text(block.text)
        policy = read_policy(tmp_path / "policy.toml")
        assert (policy.max_seconds, policy.max_epochs) == (600.0, 2)
        assert policy.max_bytes_a_day == 20_000_000

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("max_epoch = 5", "no field 'max_epoch'. Known fields: verbs, "),
            ("max_epochs = 0", "max_epochs cannot be 0: "),
            ("max_epochs = nan", "max_epochs must be a finite number, got nan"),
            ("max_clip_norm = inf", "max_clip_norm must be a finite number, got inf"),
            ("min_windows = 1.5", "min_windows cannot be 1.5: "),
            ("min_windows = true", "min_windows cannot be True: "),
            ("min_noise_multiplier = -1", "min_noise_multiplier cannot be -1: "),
            ('verbs = "train"', "verbs cannot be 'train': "),
            ('verbs = ["trian"]', "no verb 'trian'"),
            ('bundles = ["a/b"]', r"bundles cannot be \['a/b'\]: "),
            ("max_epochs 5", "not TOML"),
            ("\x00", "not TOML"),
        ],
    )
    def test_a_mistake_is_one_clear_error(self, tmp_path: Path, text: str, error: str) -> None:
        (tmp_path / "policy.toml").write_text(text)
        with pytest.raises(ConfigError, match=error) as raised:
            read_policy(tmp_path / "policy.toml")
        assert str(raised.value).startswith(f"policy {tmp_path / 'policy.toml'}: ")
        assert str(raised.value).isprintable()

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            read_policy(tmp_path / "none")


@pytest.mark.parametrize(("name", "policy", "y", "classes"), TOLD)
def test_class_counts_are_told_only_where_the_owner_permits_it(
    name: str, policy: m.Policy, y: list[int], classes: tuple[int, ...] | None
) -> None:
    assert reported_classes(policy, np.array(y, np.int64)) == classes, name


@pytest.mark.parametrize("tells", [False, True])
def test_a_check_in_says_class_counts_where_the_policy_permits_it(
    fleet: FleetData, exported: Exported, tmp_path: Path, tells: bool
) -> None:
    device = Device(fleet, exported, tmp_path / "state", policy=m.Policy(tell_classes=tells))
    device.turn()
    message = decode(device.sent("check-in")[-1], m.CheckIn)
    assert (message.classes is not None, message.client) == (tells, CLIENT)
    assert not tells or sum(message.classes or ()) == message.num_train


class TestAgent:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "state"

    def declined(self, device: Device, rule: str, **changes: Any) -> None:
        device.offer()
        device.send_plan(**changes)
        device.turn()
        (decline,) = device.declines()
        assert (decline.reason, decline.detail.partition(":")[0]) == ("policy", rule)

    @pytest.mark.parametrize(
        ("policy", "rule"),
        [
            (m.Policy(verbs=("evaluate",)), "verbs"),
            (m.Policy(graphs=("evaluate",)), "graphs"),
            (m.Policy(bundles=("phone",)), "bundles"),
            (m.Policy(max_epochs=0.5), "max_epochs"),
            (m.Policy(max_clip_norm=1.0), "max_clip_norm"),
            (m.Policy(min_noise_multiplier=1.0), "min_noise_multiplier"),
            (m.Policy(min_windows=41), "min_windows"),
        ],
    )
    def test_no_graph_is_loaded_for_a_plan_that_is_not_permitted(
        self, fleet: FleetData, exported: Exported, folder: Path, policy: m.Policy, rule: str
    ) -> None:
        device = Device(fleet, exported, folder, policy=policy)
        loaded: list[Any] = []
        device.load_graphs = lambda bundle: loaded.append(bundle) or OnnxGraphs(bundle)  # type: ignore[func-returns-value]
        device.start()
        self.declined(device, rule)
        assert loaded == []

    def test_a_survey_after_training_is_none_whatever_the_manifest_calls_it(
        self, fleet: FleetData, exported: Exported, folder: Path
    ) -> None:
        device = Device(fleet, exported, folder, policy=m.Policy(max_clip_norm=1.0))
        payload = with_graph(device.bundle, "survey", responses=())
        device.offer(payload)
        verbs = (m.Train(8), m.Evaluate("train", "survey"), m.Protect(1.0))
        self.declined(device, "max_clip_norm", bundle=digest(payload), verbs=verbs)

    def test_seconds_are_counted_between_batches(
        self, fleet: FleetData, exported: Exported, folder: Path
    ) -> None:
        device = Device(fleet, exported, folder, policy=m.Policy(max_seconds=3))
        batches = []

        class Slow(OnnxGraphs):
            def run(self, graph: str, inputs: Tensors) -> Tensors:
                device.now_s += 1
                batches.append(graph)
                return super().run(graph, inputs)

        device.load_graphs = Slow
        device.start()
        self.declined(device, "max_seconds", verbs=(m.Train(8, 50),))
        assert len(batches) == 4
        device.send_plan(2, verbs=(m.Train(32),))
        device.turn()
        assert len(device.updates()) == 1

    def test_bytes_are_counted_over_a_day_and_over_restarts(
        self, fleet: FleetData, exported: Exported, folder: Path
    ) -> None:
        size = len(exported.bundle.payload)
        device = Device(fleet, exported, folder, policy=m.Policy(max_bytes_a_day=2 * size))
        device.offer()
        number = 0
        while not (declines := device.declines()):
            number += 1
            device.send_plan(number)
            device.turn()
            device.reply(m.Acknowledge("d0", device.agent.session.update or "0" * 64))
            device.turn()
            assert (
                sum(known(DeviceState(folder).document(TRAFFIC, dict[int, int])).values())
                <= 2 * size + 70_000
            )
            assert number < 1000
        assert declines[0].detail.startswith("max_bytes_a_day: ")
        device.start()
        device.send_plan(number + 1)
        device.turn()
        assert [d.reason for d in device.declines()] == ["policy"]
        device.now_s += 26 * 3600
        device.say()
        device.send_plan(number + 2)
        device.turn()
        assert len(device.updates()) == 1

    def test_a_model_that_would_exceed_the_day_is_not_worked_on(
        self, fleet: FleetData, exported: Exported, folder: Path
    ) -> None:
        device = Device(fleet, exported, folder, policy=m.Policy(max_bytes_a_day=1000))
        self.declined(device, "max_bytes_a_day")
        assert device.updates() == []
