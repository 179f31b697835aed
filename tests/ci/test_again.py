"""`.ci/again.py` on suites of a few tests: what passes alone is named and counts, what fails again
or is no failed test does not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGAIN = ROOT / ".ci" / "again.py"
WELL = "def test_well(): pass\n"
BAD = "def test_bad(): raise AssertionError('bad')\n"
LATE = """
import pathlib
import pytest

@pytest.mark.parametrize("name", ["a - b", "c/d::e"])
def test_late(name):
    tried = pathlib.Path(__file__).with_name("tried " + name.replace("/", "-"))
    first = not tried.exists()
    tried.touch()
    assert not first
"""
"""Each of the two fails once."""
LEFT_OUT = """
import pathlib
import pytest

def test_left_out():
    tried = pathlib.Path(__file__).with_name("tried")
    if tried.exists():
        pytest.skip("what it needs is gone")
    tried.touch()
    raise AssertionError("first")
"""
CRASH = """
import os
import pathlib

def test_crash():
    tried = pathlib.Path(__file__).with_name("tried")
    if not tried.exists():
        tried.touch()
        os._exit(9)
"""
TEARDOWN = """
import pytest

@pytest.fixture
def thing():
    yield 1
    raise RuntimeError("not taken down")

def test_teardown(thing): pass
"""
INTERRUPTS = "def test_interrupted(): raise KeyboardInterrupt\n"


def again(
    folder: Path, *arguments: str, workers: int = 0, **files: str
) -> "subprocess.CompletedProcess[str]":
    """Run it as `.ci/run` does on a suite of these files, without plugins that they do not need:
    some take seconds to load."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    clean |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    words = [sys.executable, str(AGAIN), "-n", str(workers), "--dist", "worksteal", *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=200, env=clean)


def told(done: "subprocess.CompletedProcess[str]") -> list[tuple[str, list[str]]]:
    """What it said beside pytest: each heading, and the tests under it."""
    found = re.findall(r"^=== (?!=)(.*)\n((?:    .*\n)*)", done.stdout, re.MULTILINE)
    return [(head, [line.strip() for line in tests.splitlines()]) for head, tests in found]


def test_a_suite_that_passes_is_run_once(tmp_path: Path) -> None:
    done = again(tmp_path, well=WELL)
    assert (done.returncode, told(done), done.stdout.count(" passed")) == (0, [], 1)


def test_tests_that_pass_alone_are_named_as_unsteady_and_count(tmp_path: Path) -> None:
    done = again(tmp_path, workers=2, late=LATE, well=WELL)
    late = ["test_late.py::test_late[a - b]", "test_late.py::test_late[c/d::e]"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert told(done) == [
        ("2 failed, and are run again, alone, one after the other:", late),
        ("UNSTEADY, to be mended: these failed at first and passed alone:", late),
    ]
    assert "2 failed, 1 passed" in done.stdout
    assert "2 passed" in done.stdout


def test_one_that_fails_again_fails_all_and_the_others_are_not_called_well(tmp_path: Path) -> None:
    done = again(tmp_path, late=LATE, bad=BAD)
    assert done.returncode == 1
    assert told(done)[-1] == (
        "run again, alone: status 1; these failed again, others of them may have been skipped:",
        ["test_bad.py::test_bad"],
    )
    assert "UNSTEADY" not in done.stdout


def test_one_that_is_skipped_when_it_is_run_again_has_not_passed(tmp_path: Path) -> None:
    done = again(tmp_path, left=LEFT_OUT)
    assert done.returncode == 1
    assert "UNSTEADY" not in done.stdout


def test_a_worker_that_died_and_one_that_is_not_taken_down_are_failed_tests(tmp_path: Path) -> None:
    died = again(tmp_path, workers=2, crash=CRASH)
    assert (died.returncode, told(died)[-1][1]) == (0, ["test_crash.py::test_crash"]), died.stdout
    (tmp_path / "test_crash.py").unlink()
    left = again(tmp_path, workers=2, teardown=TEARDOWN)
    assert (left.returncode, told(left)[-1][1]) == (1, ["test_teardown.py::test_teardown"]), (
        left.stdout
    )


def test_five_are_run_again_and_six_are_not(tmp_path: Path) -> None:
    five = "\n".join(
        LATE.replace("test_late", f"test_{i}").replace('"tried "', f'"tried {i} "')
        for i in range(5)
    )
    five = five.replace('["a - b", "c/d::e"]', '["a"]')
    done = again(tmp_path, five=five)
    assert (done.returncode, len(told(done)[-1][1])) == (0, 5), done.stdout
    for tried in tmp_path.glob("tried*"):
        tried.unlink()
    done = again(tmp_path, bad=BAD)
    assert (done.returncode, [head for head, _ in told(done)]) == (
        1,
        ["6 tests failed, more than 5: nothing is run again"],
    )


@pytest.mark.parametrize(
    ("arguments", "file", "status"),
    [
        (("--no-such-option",), WELL, 4),
        (("-k", "nothing"), WELL, 5),
        ((), INTERRUPTS, 2),
        ((), "import nothing\n", 2),
    ],
    ids=["usage", "no tests", "interrupted", "cannot be collected"],
)
def test_what_is_no_failed_test_is_not_run_again(
    tmp_path: Path, arguments: tuple[str, ...], file: str, status: int
) -> None:
    done = again(tmp_path, *arguments, well=file)
    assert done.returncode == status, done.stdout + done.stderr
    assert len(told(done)) == 1
    assert f"pytest ended with status {status}" in told(done)[0][0]


def test_without_a_note_of_what_failed_nothing_is_run_again(tmp_path: Path) -> None:
    done = again(tmp_path, "-p", "no:cacheprovider", bad=BAD)
    assert (done.returncode, told(done)) == (
        1,
        [("pytest ended with status 1, and noted 0 failed tests: nothing is run again", [])],
    )


def test_what_an_earlier_run_noted_has_no_part_in_it(tmp_path: Path) -> None:
    noted = tmp_path / ".pytest_cache" / "v" / "cache"
    noted.mkdir(parents=True)
    (noted / "lastfailed").write_text('{"test_gone.py::test_gone": true}')
    done = again(tmp_path, late=LATE)
    assert (done.returncode, len(told(done)[-1][1])) == (0, 2), done.stdout


def test_continuous_integration_runs_the_tests_through_it() -> None:
    assert 'make test PYTEST=".venv/bin/python .ci/again.py"' in (ROOT / ".ci" / "run").read_text()
    said = subprocess.run(
        ["make", "--dry-run", "test", "PYTEST=.venv/bin/python .ci/again.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(
        r"^\.venv/bin/python \.ci/again\.py -n \d+ --dist worksteal", said.stdout, re.MULTILINE
    )
