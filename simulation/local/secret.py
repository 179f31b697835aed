"""Parties of secret mode on this machine: helpers as processes, and keys of devices.

In a fleet, other parties than the aggregator's operator run the helpers, and each device makes its
own key. Here all of them are on one machine, to show and to test how they work together.
"""

import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_client.core.ports import Windows
from edge_client.graphs.loading import load_graphs_of
from edge_client.storage.sums_key import sums_key
from edge_client.work.executor import Executor, PlanResult, from_entropy
from helper.storage import make_helper
from host.files import write_atomically
from simulation.local.fleet import start_program, stop_processes
from wire.arrays.tensors import Tensors
from wire.bundle import Bundle
from wire.identity.keys import PrivateKey
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery
from wire.messages import Plan, Verb
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
        state_of: Callable[[str], Path],
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
            state_of: returns a device's state folder, where its key is made.
            root: root key, which signs the roster.
            trust: file with the root's public key.
            broker_url: address of the broker.
            min_sum: smallest number of devices of a sum, for helpers and owners.
            count: number of helpers.
        """
        self._folder, self._trust, self._broker = folder, trust, broker_url
        self.min_sum = min_sum
        """Smallest number of devices of a sum."""
        self.names: Sequence[str] = NAMES[:count]
        """Names of the helpers."""
        self.helpers = folder / "helpers.pem"
        """File with the helpers' keys."""
        for name in self.names:
            make_helper(self.folder_of(name), fleet, name)
        public = b"".join((self.folder_of(name) / "helper.pub").read_bytes() for name in self.names)
        write_atomically(self.helpers, public)
        keys = {d: sums_key(state_of(d), d).public_key() for d in sorted(devices)}
        roster = sign_roster(root, fleet, keys)
        write_atomically(folder / "roster.signed", roster)
        write_atomically(folder / "policy.toml", f"min_sum = {min_sum}\n".encode())
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def folder_of(self, name: str) -> Path:
        """Return the folder of a helper."""
        return self._folder / "helpers" / name

    def log_of(self, name: str) -> Path:
        """Return the path of the log of a helper's process."""
        return self._folder / f"{name}.log"

    @property
    def options(self) -> list[str]:
        """Options of `shoal-edge` by which a device takes part in secret sums alone."""
        return ["--helpers", str(self.helpers), "--policy", str(self._folder / "policy.toml")]

    def start(self, name: str) -> None:
        """Start a helper, also again."""
        self.processes[name] = start_program(
            [
                *(sys.executable, "-m", "helper.main", "run"),
                *("--folder", str(self.folder_of(name)), "--trust", str(self._trust)),
                *("--roster", str(self._folder / "roster.signed"), "--broker", self._broker),
                *("--min-sum", str(self.min_sum)),
            ],
            self.log_of(name),
        )

    def __enter__(self) -> "SecretParties":
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        stop_processes([*self.processes.values()])


@contextmanager
def eavesdrop(broker_url: str) -> Iterator[list[bytes]]:
    """Read everything that a broker carries, as its operator could; yield the payloads so far.

    On leaving the context, it has all that was carried before.

    Raises:
        LinkError: the broker cannot be reached.
    """
    payloads = list[bytes]()
    link = MqttLink(BrokerAddress.parse(broker_url), "eavesdropper")
    link.subscribe("#")
    stopping = threading.Event()

    def listen() -> None:
        while True:
            event = link.receive(timeout_s=0.5)
            if isinstance(event, Delivery):
                payloads.append(event.payload)
            elif event is None and stopping.is_set():
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield payloads
    finally:
        stopping.set()
        thread.join()
        link.close()


def carried_out(
    bundle: Bundle,
    model: Tensors,
    windows: Windows,
    device_id: str,
    verbs: tuple[Verb, ...],
    seed: int,
) -> PlanResult:
    """Return the result of a device's plan of the first round, computed here once more."""
    plan = Plan("again", 1, 1, 1, device_id, bundle.digest, "0" * 64, verbs, seed, math.inf)
    executor = Executor(bundle, load_graphs_of("onnx")(bundle), windows, from_entropy)
    return executor.execute(plan, model, {}, lambda _digest: model)


def needles(tensors: Tensors) -> list[bytes]:
    """Return pieces of 64 bytes of the largest tensor, by which it is recognised in other bytes."""
    text = max(tensors.values(), key=lambda tensor: tensor.nbytes).tobytes()
    return [text[at : at + 64] for at in range(0, len(text) - 64, max(64, len(text) // 8))]


def holds(contents: Iterable[bytes], pieces: Sequence[bytes]) -> bool:
    """Return True if one of these contents has one of these pieces."""
    return any(piece in content for content in contents for piece in pieces)
