"""The Kotlin client: its own tests, on what the Python side wrote for them."""

from pathlib import Path

import pytest

from tests.android.bridge import run_build
from tests.android.kotlin_vectors import NUMPY, numpy_text, write


@pytest.mark.timeout(900)
def test_kotlin_core(tmp_path: Path) -> None:
    write(tmp_path)
    printed = run_build("test", "core", environment={"SHOAL_KOTLIN_TESTS": str(tmp_path)})
    assert "0 tests failed" in printed
    skipped = [line for line in printed.splitlines() if "[S]" in line]
    assert all("mosquitto" in line.lower() for line in skipped), skipped


def test_numpy_vectors_are_those_of_this_numpy() -> None:
    assert NUMPY.read_text() == numpy_text(), "run python -m tests.android.kotlin_vectors"
