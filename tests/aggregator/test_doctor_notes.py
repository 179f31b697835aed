"""What the doctor notes of a folder without calling it wrong."""

import os
import time
from pathlib import Path

import pytest

from aggregator.doctor.examine import examine
from aggregator.identity import RESUME, ROLLBACK, own_secret


@pytest.mark.parametrize(
    ("name", "meaning"), [(RESUME, "only one that is paused goes on"), (ROLLBACK, "returns to the models of that round")]
)
def test_a_word_that_no_service_took_up_is_noted(tmp_path: Path, name: str, meaning: str) -> None:
    own_secret(tmp_path / "secret.key")
    (tmp_path / name).write_text("run-1 1")
    assert name not in {finding.where for finding in examine(tmp_path)}, "a service may take it up yet"
    os.utime(tmp_path / name, (0, time.time() - 600))
    (noted,) = [finding for finding in examine(tmp_path) if finding.where == name]
    assert noted.verdict == "note"
    assert noted.text.startswith("given 600 s ago, and no service has taken it up. The next that starts takes it away, and " + meaning)
