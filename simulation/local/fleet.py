"""A fleet of real processes on this machine: one `shoal-edge` per device.

Each device has its own data folder and state folder. Some devices may be phones: a phone is a
process of Java.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.data.windows import UNLABELLED
from simulation.datasets.windows import FleetData
from simulation.engine.workers.attacks import Attack
from wire.errors import ConfigError, ShoalError

STOP_S = 10.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of a process beside many others: threads that share a core wait for each other."""
BUILD = Path(__file__).resolve().parents[2] / "android_bridge" / "build"
"""Path of the script that builds the Kotlin phones (`android_bridge/jvm-host`).

They are the Android client's core and ExecuTorch adapter without Android.
"""


def write_device_folder(data: FleetData, device_id: str, folder: Path) -> None:
    """Write a device's windows as ``train.npz`` and ``test.npz``.

    Windows without labels go to ``unlabelled.npz``. Each file names the channels, and for ids the
    size of the vocabulary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    windows, vocabulary = data.devices[device_id], data.window.vocabulary
    metadata: dict[str, Any] = {"channel_names": np.array(data.window.channels)} | (
        {"vocabulary": np.array(vocabulary)} if vocabulary else {}
    )
    np.savez(folder / "train.npz", X=windows.train_x, y=windows.train_y, **metadata)
    np.savez(folder / "test.npz", X=windows.test_x, y=windows.test_y, **metadata)
    if windows.num_unlabelled:
        np.savez(folder / UNLABELLED, X=windows.unlabelled_x, **metadata)


def start_process(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a Python module or script, with its output in `log`.

    The process has its own session, so that Ctrl-C reaches only the caller.
    """
    return start_program([sys.executable, *arguments], log, environment)


def start_program(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start any program, with its output in `log`.

    The process has its own session, so that Ctrl-C reaches only the caller.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def stop_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask every process to stop, and kill those that still run after `STOP_S` seconds."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    end_s = time.monotonic() + STOP_S
    for process in processes:
        try:
            process.wait(max(0.1, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def phone_command() -> list[str]:
    """Return the command that runs phones, and compile them first if a source has changed.

    The options of the command are those of ``PhoneKt``.

    Raises:
        ConfigError: Java, the compiler or ExecuTorch's Python package is missing; the text says how
        to install it.
    """
    if not BUILD.exists():
        raise ConfigError(f"Phones need a checkout of the sources: there is no {BUILD}")
    process = subprocess.run([sys.executable, str(BUILD), "phone"], capture_output=True, text=True)
    if process.returncode:
        raise ConfigError(
            f"Phones cannot run here: {(process.stderr or process.stdout).strip()[-1000:]}"
        )
    return shlex.split(process.stdout)


@dataclass
class LocalFleet:
    """Processes for every device of `data`: started on entering the context, stopped on leaving it.

    The devices in `phones` are Java processes, which also get `phone_options`; every other device
    is an edge process. `processes` are by device.

    Raises:
        ConfigError: there are phones, and their requirements are missing on this machine.
    """

    data: FleetData
    folder: Path
    broker_url: str
    fleet: str
    trust: Path
    phones: Sequence[str] = ()
    phone_options: Sequence[str] = ()
    edge_options: Sequence[str] = ()
    """Further options of each edge process."""
    attack: Attack | None = None
    """Attack of some of the devices, none of them a phone (`simulation.local.poisoner`)."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    """Number of times that `revive` has started a device again, by device."""

    def __post_init__(self) -> None:
        self._phone_command = [*phone_command(), *self.phone_options] if self.phones else []

    def start(self, device_id: str) -> subprocess.Popen[bytes]:
        """Start one device, also again after it was killed; its state folder remains."""
        options = self._options(device_id)
        if device_id in self.phones:
            command, environment = self._phone_command, None
        else:
            module = ["edge_client.main"]
            if self.attack is not None and device_id in self.attack.attackers:
                module = ["simulation.local.poisoner", self.attack.name, str(self.attack.scale)]
            command = [sys.executable, "-m", *module, "run", *self.edge_options]
            environment = ONE_THREAD
        process = start_program([*command, *options], self.log(device_id), environment)
        self.processes[device_id] = process
        return process

    def revive(self) -> list[str]:
        """Start the devices again that were killed (``kill -9``), and return their ids.

        Raises:
            ShoalError: a device has stopped in another way.
        """
        killed = []
        for device_id, process in self.processes.items():
            if (status := process.poll()) is None:
                continue
            if status != -signal.SIGKILL:
                raise ShoalError(f"Device {device_id} stopped; see {self.log(device_id)}")
            killed.append(device_id)
        for device_id in killed:
            self.start(device_id)
            self.kills[device_id] = self.kills.get(device_id, 0) + 1
        return killed

    def log(self, device_id: str) -> Path:
        """Return the path of the log of a device's process."""
        return self.folder / device_id / "edge.log"

    def _options(self, device_id: str) -> list[str]:
        folder = self.folder / device_id
        if not (folder / "data" / "test.npz").exists():
            write_device_folder(self.data, device_id, folder / "data")
        return [
            *("--broker", self.broker_url, "--fleet", self.fleet, "--trust", str(self.trust)),
            *("--id", device_id, "--data", str(folder / "data"), "--state", str(folder / "state")),
        ]

    def max_rss_bytes(self, phones: bool = False) -> int:
        """Return the largest peak so far of resident memory of one process, in bytes.

        `phones`: True for phones, False for processes of `shoal-edge`. The result is 0 without a
        process.
        """
        peaks = (
            _peak_rss_bytes(process.pid)
            for device_id, process in self.processes.items()
            if (device_id in self.phones) == phones
        )
        return max(peaks, default=0)

    def torch_loaded(self) -> bool:
        """Return True if a device's process has a torch library in its memory map."""
        return any("libtorch" in _read_proc(p.pid, "maps") for p in self.processes.values())

    def __enter__(self) -> "LocalFleet":
        try:
            for device_id in sorted(self.data.devices):
                self.start(device_id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop_processes(list(self.processes.values()))


def _peak_rss_bytes(pid: int) -> int:
    for line in _read_proc(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
