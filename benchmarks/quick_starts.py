"""The three quick starts, followed to the letter from an empty folder, with a clock.

Run as ``python -m benchmarks.quick_starts``; writes ``benchmarks/results/quick_starts.json``. Each
environment is new, and is installed from this checkout as the pages say, from the package index
that this machine uses. The commands are read from the pages. A board is a terminal of this machine,
with the data of one watch. Mosquitto, and the ports 8883, 8443 and 8080, must be there.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.results.report import describe_machine, keep
from simulation.local.fleet import start_program, stop_processes

ROOT = Path(__file__).parents[1]
OUT = Path(__file__).parent / "results" / "quick_starts.json"
BOARDS = {"pi-1": "p01-left", "pi-2": "p02-left"}
"""The boards of a trial, and the watch whose windows each has."""
PATIENCE_S = 300.0


def commands(page: str) -> list[str]:
    """The commands of a quick start in their order, without remarks."""
    text = (ROOT / "docs" / f"start-{page}.md").read_text()
    return [line.split(" #")[0].strip() for line in re.findall(r"^    (\S.+)$", text, re.MULTILINE)]


class Reader:
    """Somebody who types what a page says in a folder, and looks at the clock. `bin` has the
    programs."""

    def __init__(self, page: str, folder: Path, bin: Path) -> None:
        self.commands, self.folder, self.bin = commands(page), folder, bin
        self.took_s: dict[str, float] = {}
        self.processes: list[subprocess.Popen[bytes]] = []

    def type(self, start: str, given: Mapping[str, str] | None = None) -> str:
        """Type the page's command that begins so, with words in the place of others; what it
        printed.

        Raises:
            RuntimeError: it failed.
        """
        words = self.words(start, given or {})
        with self.clock(start):
            done = subprocess.run(
                words, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S
            )
        if done.returncode:
            raise RuntimeError(f"{shlex.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def leave(self, start: str, log: str, given: Mapping[str, str] | None = None) -> None:
        """Type a command that stays, in a terminal of its own."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            self.processes.append(start_program(self.words(start, given or {}), self.folder / log))
        finally:
            os.chdir(before)

    def words(self, start: str, given: Mapping[str, str]) -> list[str]:
        """The words of the page's command."""
        command = next(command for command in self.commands if command.startswith(start))
        name, *words = [given.get(word, word) for word in shlex.split(command)]
        own = self.bin / name
        return [
            str(own if own.exists() else known_program(name)),
            *(fill(word, given) for word in words),
        ]

    @contextmanager
    def clock(self, step: str) -> Iterator[None]:
        """Add to the time that a step took."""
        began_s = time.monotonic()
        yield
        self.took_s[step] = self.took_s.get(step, 0.0) + time.monotonic() - began_s

    def wait(self, step: str, url: str = "", path: Path | None = None) -> None:
        """Wait until an address answers, or a file is there."""
        with self.clock(step):
            end_s = time.monotonic() + PATIENCE_S
            while not (path.exists() if path is not None else answers(url)):
                if time.monotonic() > end_s:
                    raise RuntimeError(
                        f"{step}: nothing came within {PATIENCE_S:.0f} s; see {self.folder}/*.log"
                    )
                time.sleep(0.2)


def fill(word: str, given: Mapping[str, str]) -> str:
    """A word with `DATA` at its beginning replaced, as in ``DATA/test.npz``."""
    meant = next((name for name in given if word == name or word.startswith(f"{name}/")), "")
    return given[meant] + word.removeprefix(meant) if meant else word


def known_program(name: str) -> str:
    """The path of a program of this machine; Debian has Mosquitto where only root looks."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def answers(url: str) -> bool:
    """Return True if a web address answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def follow_with_data(folder: Path, bin: Path) -> dict[str, float]:
    """Simulate, compare, look at both; seconds by step."""
    reader = Reader("engineer", folder, bin)
    try:
        reader.type("shoal simulate")
        reader.type("shoal compare")
        reader.leave("shoal ui", "ui.log")
        reader.wait("shoal ui", "http://127.0.0.1:8099/")
    finally:
        stop_processes(reader.processes)
    return reader.took_s


def follow_fleet_and_devices(
    folder: Path, service: Path, board: Path
) -> tuple[dict[str, float], dict[str, float]]:
    """An operator starts a service, and two boards are enrolled, train, and answer; seconds by step
    of either page."""
    operator, developer = Reader("operator", folder, service), Reader("device", folder, board)
    try:
        operator.type("shoal export")
        operator.type("shoal init")
        operator.leave("mosquitto", "broker.log")
        operator.leave("shoal serve", "serve.log")
        operator.wait("shoal serve", "http://127.0.0.1:8080/health")
        operator.type("shoal download")
        for name, watch in BOARDS.items():
            token = operator.type("shoal enrol token").strip()
            given = {
                "TOKEN": token,
                "STATE": f"state-{name}",
                "DATA": f"boards/{watch}",
                "pi-1": name,
            }
            developer.type("shoal-edge enrol", given)
            developer.type("shoal-edge check", given)
            developer.leave("shoal-edge run", f"{name}.log", given)
        for name, watch in BOARDS.items():
            given = {"STATE": f"state-{name}", "DATA": f"boards/{watch}"}
            developer.wait(
                "until the model is in use",
                path=folder / f"state-{name}" / "current" / "model.json",
            )
            developer.type("shoal-edge predict", given)
        operator.wait("the dashboard", "http://127.0.0.1:8080/")
    finally:
        stop_processes([*operator.processes, *developer.processes])
    return operator.took_s, developer.took_s


def install(page: str, environment: Path) -> float:
    """Seconds that the page's installation from a checkout takes."""
    text = (ROOT / "docs" / f"start-{page}.md").read_text()
    extras = re.search(r"shoal\[([\w,]+)\]", text)
    assert extras is not None
    began_s = time.monotonic()
    if "deploy/setup ENV" in text:
        command = [sys.executable, "deploy/setup", str(environment), extras[1]]
    else:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        command = [str(environment / "bin" / "pip"), "install", "--quiet", f".[{extras[1]}]"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return time.monotonic() - began_s


def main() -> None:
    """Follow all three, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        installed = {
            page: install(page, folder / page) for page in ("engineer", "operator", "device")
        }
        for place in ("data", "fleet"):
            (folder / place).mkdir()
        data = follow_with_data(folder / "data", folder / "engineer" / "bin")
        fleet, device = follow_fleet_and_devices(
            folder / "fleet", folder / "operator" / "bin", folder / "device" / "bin"
        )
    steps = {"with data": data, "with a fleet": fleet, "with a device": device}
    for took_s, seconds in zip(steps.values(), installed.values(), strict=True):
        took_s.update({"install": seconds, **took_s})
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "load": os.getloadavg()[0],
        "steps": steps,
    }
    lines = ["| quick start | installing, s | the rest, s | of that |", "|---|---|---|---|"]
    for title, took_s in steps.items():
        rest = {step: seconds for step, seconds in took_s.items() if step != "install"}
        of_that = ", ".join(f"{step} {seconds:.0f}" for step, seconds in rest.items())
        lines.append(
            f"| {title} | {took_s['install']:.0f} | {sum(rest.values()):.0f} | {of_that} |"
        )
    head = (
        f"`python -m benchmarks.quick_starts`. {results['machine']}; its load was "
        f"{results['load']:.0f}. Packages lay on this machine."
    )
    text = "\n".join(["## The quick starts", "", head, "", *lines])
    print(text)
    keep(results, arguments.out, OUT, "quick-starts", text)


if __name__ == "__main__":
    main()
