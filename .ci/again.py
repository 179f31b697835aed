"""pytest, and then, alone, the few tests that failed: of thousands that wait for real processes one
may be late on a loaded machine.

    .venv/bin/python .ci/again.py ARGUMENTS OF PYTEST

Status 0 says that each test passed, among the others or alone in one process; those that passed
only alone are named as unsteady, and are to be mended. Otherwise the status is pytest's own.
Nothing is run again if more than five tests failed, or if pytest ended in any other way than with
failed tests.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

MOST = 5
FAILED = 1
"""pytest's exit status when all tests were run, and some failed."""
INTERRUPTED = 2


def pytest(*arguments: str) -> int:
    """Run pytest to its end, also where Ctrl-C asks both for one; its exit status."""
    process = subprocess.Popen([sys.executable, "-m", "pytest", *arguments])
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()
        return INTERRUPTED


def failed_in(cache: Path) -> list[str]:
    """The tests that a run noted as failed in its cache; none if it left no note."""
    try:
        noted: dict[str, bool] = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(noted)


def passed_all(report: Path, number: int) -> bool:
    """Whether so many tests were run and each passed: one that was skipped did not."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    return suite is not None and [
        int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
    ] == [number, 0, 0, 0]


def say(head: str, tests: list[str]) -> None:
    """Tell, where somebody who reads a long log from its end finds it."""
    print("\n".join(["", f"=== {head}", *(f"    {test}" for test in tests)]), flush=True)


def main(arguments: list[str], folder: Path) -> int:
    """Run the tests; the exit status. What earlier runs noted has no part in it: the folder is
    new."""
    status = pytest("-o", f"cache_dir={folder / 'first'}", *arguments)
    if status == 0:
        return 0
    failed = failed_in(folder / "first")
    if status != FAILED or not failed:
        say(
            f"pytest ended with status {status}, and noted {len(failed)} failed tests: nothing is "
            "run again",
            failed,
        )
        return status
    if len(failed) > MOST:
        say(f"{len(failed)} tests failed, more than {MOST}: nothing is run again", failed)
        return status
    say(f"{len(failed)} failed, and are run again, alone, one after the other:", failed)
    report = folder / "report.xml"
    status = pytest(
        "-n", "0", "-o", f"cache_dir={folder / 'again'}", f"--junitxml={report}", *failed
    )
    failed_again = failed_in(folder / "again")
    if status != 0 or not passed_all(report, len(failed)):
        say(
            f"run again, alone: status {status}; these failed again, others of them may have been "
            "skipped:",
            failed_again,
        )
        return status or FAILED
    say("UNSTEADY, to be mended: these failed at first and passed alone:", failed)
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(sys.argv[1:], Path(made)))
