"""Parties of secret mode on this machine: helpers as processes, and keys of devices.

In a fleet, other parties than the aggregator's operator run the helpers, and each device makes its
own key. Here all of them are on one machine, to show and to test how they work together.
"""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from helper.storage import make_helper
from host.files import write_atomically
from simulation.local.fleet import start_program, stop_processes
from wire.identity.certificates import new_tls_key
from wire.identity.keys import PrivateKey, private_pem
from wire.secret.roster import sign_roster

NAMES = ("north", "south", "east", "west")
"""Names of the helpers."""


class SecretParties:
    """Helpers of a fleet, which are started on entering the context and stopped on leaving it."""

    def __init__(
        self,
        folder: Path,
        fleet: str,
        devices: Iterable[str],
        root: PrivateKey,
        trust: Path,
        broker_url: str,
        min_sum: int,
        count: int = 3,
    ) -> None:
        """Make the helpers' folders, the devices' keys and the roster, in an empty folder.

        Args:
            folder: where to write them.
            fleet: name of the fleet.
            devices: ids of the devices.
            root: root key, which signs the roster.
            trust: file with the root's public key.
            broker_url: address of the broker.
            min_sum: smallest number of devices of a sum, for helpers and owners.
            count: number of helpers.
        """
        self._folder, self._trust, self._broker, self._min_sum = folder, trust, broker_url, min_sum
        self.names: Sequence[str] = NAMES[:count]
        """Names of the helpers."""
        self.helpers = folder / "helpers.pem"
        """File with the helpers' keys."""
        for name in self.names:
            make_helper(self.folder_of(name), fleet, name)
        public = b"".join((self.folder_of(name) / "helper.pub").read_bytes() for name in self.names)
        write_atomically(self.helpers, public)
        keys = {device_id: new_tls_key() for device_id in sorted(devices)}
        for device_id, key in keys.items():
            (folder / "devices").mkdir(parents=True, exist_ok=True)
            write_atomically(self._key_of(device_id), private_pem(key), 0o600)
        roster = sign_roster(root, fleet, {name: key.public_key() for name, key in keys.items()})
        write_atomically(folder / "roster.signed", roster)
        write_atomically(folder / "policy.toml", f"min_sum = {min_sum}\n".encode())
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def folder_of(self, name: str) -> Path:
        """Return the folder of a helper."""
        return self._folder / "helpers" / name

    def log_of(self, name: str) -> Path:
        """Return the path of the log of a helper's process."""
        return self._folder / f"{name}.log"

    def options_of(self, device_id: str) -> list[str]:
        """Return the options of `shoal-edge` by which a device takes part in secret sums alone."""
        return [
            *("--helpers", str(self.helpers), "--key", str(self._key_of(device_id))),
            *("--policy", str(self._folder / "policy.toml")),
        ]

    def start(self, name: str) -> None:
        """Start a helper, also again."""
        self.processes[name] = start_program(
            [
                *(sys.executable, "-m", "helper.main", "run"),
                *("--folder", str(self.folder_of(name)), "--trust", str(self._trust)),
                *("--roster", str(self._folder / "roster.signed"), "--broker", self._broker),
                *("--min-sum", str(self._min_sum)),
            ],
            self.log_of(name),
        )

    def _key_of(self, device_id: str) -> Path:
        return self._folder / "devices" / f"{device_id}.key"

    def __enter__(self) -> "SecretParties":
        for name in self.names:
            self.start(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stop_processes([*self.processes.values()])
