"""Somebody who types the commands of the guides for operators, to a real service."""

import contextlib
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main
from simulation.local.broker import EmbeddedBroker, free_port
from simulation.local.fleet import start_process, stop_processes
from tests.support.bundles import Exported
from tests.support.pages import page
from tests.support.waiting import wait_until

GUIDES = (
    *("operate", "bounds", "transfers", "campaigns", "releases", "manage-devices"),
    *("personal-models", "who-trains", "tokens", "recover", "storage", "enrol", "programs"),
)
"""Pages for whoever runs a service, in the order in which they are read."""
PAGE = "".join(map(page, GUIDES))
COMMANDS: list[str] = [
    line.split("#")[0].strip() for line in re.findall(r"^ {4,}(shoal .+)$", PAGE, re.MULTILINE)
]


def typed(start: str) -> str:
    """The page's command that starts so; the first of several."""
    return next(command for command in COMMANDS if command.startswith(start))


@dataclass
class Operator:
    """A folder in which commands are typed as the page has them; only the broker's address and the
    port are filled in."""

    folder: Path
    broker: str
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    port: int = 0

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in this process: most of the time of a process of its own would go into
        imports."""
        words, output, errors = shlex.split(command), io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", words)
            try:
                main()
                status = 0
            except SystemExit as end:
                status = int(end.code or 0)
        return subprocess.CompletedProcess(words, status, output.getvalue(), errors.getvalue())

    def serve(self, more: str = "", folder: str = "runs/served") -> "subprocess.Popen[bytes]":
        """Start the page's service, and wait until it answers or has ended."""
        self.port = free_port()
        command = (
            typed("shoal serve")
            .replace("mqtt://localhost", self.broker)
            .replace("runs/served", str(self.folder / folder))
        )
        command = command.replace("runs/bundle", str(self.folder / "runs" / "bundle"))
        log = self.folder / f"serve-{len(self.processes)}.log"
        self.processes.append(
            start_process(["-m", *shlex.split(f"{command} --port {self.port} {more}")], log)
        )
        wait_until(
            lambda: (
                self.processes[-1].poll() is not None
                or (self.get("/health")[1] or {}).get("status") == "ok"
            ),
            100,
            self.log,
        )
        return self.processes[-1]

    def stop(self) -> None:
        self.processes[-1].send_signal(signal.SIGTERM)
        assert self.processes[-1].wait(30) == 0, self.log()

    def log(self, number: int = -1) -> str:
        return (self.folder / f"serve-{range(len(self.processes))[number]}.log").read_text()

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None


@pytest.fixture
def operator(
    tmp_path: Path, exported: Exported, embedded_broker: EmbeddedBroker
) -> Iterator[Operator]:
    shutil.copytree(exported.folder, tmp_path / "runs" / "bundle")
    operator = Operator(tmp_path, embedded_broker.url)
    yield operator
    stop_processes(operator.processes)
