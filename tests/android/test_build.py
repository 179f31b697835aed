"""Builds of the Android bridge that meet, and builds that are killed."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.android.bridge import BUILD

pytestmark = pytest.mark.full

HOLDER = (
    "import sys, time; from steps.compiled import alone\nwith alone():\n    print('holds', "
    "flush=True)\n    time.sleep(600)"
)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BUILD.parent))
    return importlib.import_module("steps.compiled")


def test_two_builds_of_one_folder_wait_for_each_other(compiled: ModuleType) -> None:
    with compiled.alone():
        other = subprocess.Popen(
            [sys.executable, BUILD, "compile", "nothing"], stderr=subprocess.PIPE, text=True
        )
        assert other.stderr
        assert "another build is at work" in other.stderr.readline()
        assert other.poll() is None
    _, said = other.communicate(timeout=30)
    assert other.returncode == 2
    assert "unknown module 'nothing'" in said


def test_a_build_that_is_killed_lets_the_next_one_go(compiled: ModuleType) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=BUILD.parent, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "holds\n"
    finally:
        holder.kill()
        holder.communicate()
    with compiled.alone():
        pass


def test_what_is_half_made_does_not_count_as_made_and_disturbs_no_program_that_runs(
    compiled: ModuleType, tmp_path: Path
) -> None:
    target = tmp_path / "a.jar"
    assert not compiled.unchanged(target, "one")
    compiled.part_of(target).write_text("first")
    compiled.made(target, "one")
    assert compiled.unchanged(target, "one")
    assert not compiled.unchanged(target, "two")
    assert not compiled.unchanged(target, "one"), (
        "a build began to make another one, and may have been killed"
    )
    with target.open() as running:
        compiled.part_of(target).write_text("second")
        compiled.made(target, "two")
        assert (running.read(), target.read_text()) == ("first", "second")
    assert compiled.unchanged(target, "two")
