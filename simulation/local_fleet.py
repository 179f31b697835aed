"""A fleet of real processes on this machine: one `shoal-edge` per device, each with a data folder and a state folder of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from simulation.datasets.windows import FleetData

STOP_S = 10.0


def write_device_folder(data: FleetData, device_id: str, folder: Path) -> None:
    """Write a device's windows as ``train.npz`` and ``test.npz``."""
    folder.mkdir(parents=True, exist_ok=True)
    windows = data.devices[device_id]
    np.savez(folder / "train.npz", X=windows.train_x, y=windows.train_y)
    np.savez(folder / "test.npz", X=windows.test_x, y=windows.test_y)


def start_process(arguments: list[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a Python module or script in a session of its own, so that Ctrl-C reaches only who started it; output goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )


def stop_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask every process to stop; those that have not after `STOP_S` seconds are killed."""
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


class LocalFleet:
    """Edge processes for every device of `data`; started on entering the context, stopped on leaving it."""

    def __init__(self, data: FleetData, folder: Path, broker_url: str, fleet: str, trust: Path) -> None:
        self._data, self._folder, self._broker_url, self._fleet, self._trust = data, folder, broker_url, fleet, trust
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, device_id: str) -> subprocess.Popen[bytes]:
        """Start one device, also again after it was killed; its state folder is kept."""
        own = self._folder / device_id
        if not (own / "data" / "test.npz").exists():
            write_device_folder(self._data, device_id, own / "data")
        options = {"--broker": self._broker_url, "--fleet": self._fleet, "--id": device_id, "--trust": str(self._trust)}
        options |= {"--data": str(own / "data"), "--state": str(own / "state")}
        arguments = ["-m", "edge_client.main", "run", *(part for pair in options.items() for part in pair)]
        self.processes[device_id] = start_process(arguments, own / "edge.log", {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        return self.processes[device_id]

    def max_rss_bytes(self) -> int:
        """The largest peak of resident memory of any device's process so far."""
        return max((_peak_rss_bytes(p.pid) for p in self.processes.values()), default=0)

    def torch_loaded(self) -> bool:
        """Whether any device's process has a torch library in its memory map."""
        return any("libtorch" in _read_proc(p.pid, "maps") for p in self.processes.values())

    def __enter__(self) -> "LocalFleet":
        try:
            for device_id in sorted(self._data.devices):
                self.start(device_id)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
