"""The wheel in a separate environment, and a round between commands of such environments."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import start_program, stop_processes, write_device_folder
from tests.support.bundles import Exported

ALONE = {
    "PYTHONPATH": "",
    "SHOAL_DATA": "",
    "PYTHONDONTWRITEBYTECODE": "",
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
}
"""Environment of an installed wheel's commands: no module and no data from elsewhere, bytecode
cached for the next one, one thread each as in all tests."""


@dataclass(frozen=True)
class Installed:
    """The wheel with one extra in an environment of its own; commands run in a folder that was
    empty."""

    environment: Path
    folder: Path

    def command(self, name: str) -> list[str]:
        """The beginning of a command line that runs an installed command."""
        return [
            "env",
            *(f"{variable}={value}" for variable, value in ALONE.items()),
            str(self.environment / "bin" / name),
        ]

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run an installed command to its end."""
        return subprocess.run(
            [*self.command(name), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def succeeds(self, name: str, *arguments: str) -> str:
        """Run an installed command, which must end well; returns what it printed."""
        result = self.run(name, *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def fails(self, *arguments: str) -> str:
        """Run `shoal`, which must end with status 2 and, after its log, one line about the error;
        returns the line."""
        result = self.run("shoal", *arguments)
        assert result.returncode == 2, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        assert [
            line for line in result.stderr.splitlines() if line.startswith("error:")
        ] == result.stderr.splitlines()[-1:], result.stderr
        return result.stderr.splitlines()[-1]

    def has(self, package: str) -> bool:
        """Return True if a package is installed."""
        code = (
            f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        )
        return self.run("python", "-c", code).returncode == 0


Install = Callable[[str], Installed]
"""From the names of extras, with commas between them, to the wheel with these."""


def run_a_round(
    fleet: FleetData,
    exported: Exported,
    folder: Path,
    shoal: list[str],
    edge: list[str],
    *options: str,
) -> str:
    """One round between an aggregator and two devices, each started with its own command; returns
    the aggregator's log."""
    with EmbeddedBroker() as broker:
        served = [
            "--folder",
            str(folder / "served"),
            "--bundle",
            str(exported.folder),
            "--broker",
            broker.url,
            "--rounds",
            "1",
        ]
        processes = [
            start_program(
                [*shoal, "serve", *served, "--no-stay", "--port", "0", *options],
                folder / "serve.log",
            )
        ]
        for device_id in ("d0", "d1"):
            write_device_folder(fleet, device_id, folder / device_id)
            device_options = [
                "--id",
                device_id,
                "--data",
                str(folder / device_id),
                "--state",
                str(folder / f"state-{device_id}"),
            ]
            trust = ["--trust", str(exported.folder / "trust.pem")]
            processes.append(
                start_program(
                    [*edge, "run", *device_options, *trust, "--broker", broker.url],
                    folder / f"{device_id}.log",
                )
            )
        try:
            assert processes[0].wait(120) == 0, (folder / "serve.log").read_text()
        finally:
            stop_processes(processes)
    return (folder / "serve.log").read_text()
