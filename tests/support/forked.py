"""Commands in a child of a process that has imported what they need: as in a process of their own,
without its seconds of imports."""

import multiprocessing
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [f"shoal.commands.{name}" for name in ("simulate", "compare", "algorithms", "export")]
    + ["shoal.api.model_files"]
)


@dataclass(frozen=True)
class Done:
    """Result of a command: its status and output."""

    returncode: int
    stdout: str
    stderr: str


def run_command(words: list[str], folder: Path, log: Path, timeout_s: float = 200) -> Done:
    """``python -m WORDS`` in a folder; what it writes is kept as `log`.out and `log`.err.

    Raises:
        TimeoutError: it took longer; it has been killed.
    """
    out, err = log.with_suffix(".out"), log.with_suffix(".err")
    child = FORKS.Process(target=_run, args=(words, folder, out, err, dict(os.environ)))
    child.start()
    child.join(timeout_s)
    if child.exitcode is None:
        child.kill()
        raise TimeoutError(f"{words}: more than {timeout_s} s\n{err.read_text()}")
    return Done(child.exitcode, out.read_text(), err.read_text())


def _run(words: list[str], folder: Path, out: Path, err: Path, environment: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        stream.flush()
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = [words[0], *words[1:]]
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
