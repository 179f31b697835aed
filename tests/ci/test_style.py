"""`.ci/style.py` finds each kind of place that the code style forbids, and ceilings only fall."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CODE = '''
class Device:
    """A device of the fleet."""

    told = 1
    """Whether it is known."""

    def name(self, told: str) -> str:
        """The name
        of it."""
        raise ValueError(f"x: {error.strerror}")
'''


@pytest.fixture
def style() -> ModuleType:
    spec = importlib.util.spec_from_file_location("style", ROOT / ".ci" / "style.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_rule_finds_its_places(style: ModuleType, tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(CODE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "three.py").write_text(CODE)
    kotlin = tmp_path / "android_bridge" / "core" / "src" / "main" / "One.kt"
    kotlin.parent.mkdir(parents=True)
    kotlin.write_text("/** A device. */\nclass A\n\n/**\n * What it is.\n */\nclass B\n")
    assert style.places(tmp_path) == {
        "clause": [
            "one.py:6: Whether it is known.",
            "two.py:6: Whether it is known.",
            "android_bridge/core/src/main/One.kt:4: What it is.",
        ],
        "participle": [f"{name}.py:{line}: told" for name in ("one", "two") for line in (5, 8)],
        "bare-cause": [f"{name}.py:11: no remedy" for name in ("one", "two")],
        "class-twice": ["Device: one.py:2, two.py:2"],
        "D205": [f"{name}.py:9: no blank line after the summary" for name in ("one", "two")],
        "D401": [f"{name}.py:9: the summary is not imperative" for name in ("one", "two")],
    }


def test_a_count_above_its_ceiling_fails_and_one_below_asks_for_a_lower_ceiling(
    style: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "one.py").write_text(CODE)
    (tmp_path / ".ci").mkdir()
    ceilings = tmp_path / ".ci" / "ceilings.toml"
    monkeypatch.setattr(style, "ROOT", tmp_path)
    ceilings.write_text(
        "clause = 2\nparticiple = 2\nclass-twice = 0\nbare-cause = 1\nD205 = 1\nD401 = 1"
    )
    assert style.main([]) == 0
    assert "lower the ceiling in .ci/ceilings.toml to 1" in capsys.readouterr().out
    ceilings.write_text(
        "clause = 0\nparticiple = 2\nclass-twice = 0\nbare-cause = 1\nD205 = 1\nD401 = 1"
    )
    assert style.main(["clause"]) == 1
    assert "one.py:6: Whether" in capsys.readouterr().out
