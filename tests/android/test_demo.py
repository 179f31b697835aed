"""`shoal demo --phones`: some of the devices are Kotlin phones; what is missing is said before anything begins."""

import json
from pathlib import Path

import pytest

from shoal.commands.demo import demo
from simulation import phones
from simulation.phones import phone_command
from tests.android.bridge import run_build
from wire.errors import ConfigError


def test_more_phones_than_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--phones 3: there are 2 devices"):
        demo(algorithm="fedavg", devices=2, rounds=1, out=tmp_path, data="watch", local_epochs=1, seed=0, phones=3)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="is not installed: apt-get install"):
        phone_command()


def test_phones_need_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(phones, "BUILD", tmp_path / "build")
    with pytest.raises(ConfigError, match="from a checkout of the sources"):
        phone_command()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_demonstration_with_phones(tmp_path: Path) -> None:
    run_build("phone")
    demo(algorithm="fedavg", devices=4, rounds=2, out=tmp_path, data="watch", local_epochs=1, seed=0, phones=2)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["phones"]["devices"] == ["p01-left", "p01-right"]
    assert 0 < summary["phones"]["max_rss_bytes"] < 400 * 2**20
    assert len(summary["devices"]) == 4
    assert not summary["edge"]["torch_loaded"]
