"""Entry point of `shoal-edge`, the client on a board."""

import argparse
import contextlib
import ctypes
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.agent.health import linux_health, linux_machine
from edge_client.agent.loop import Agent
from edge_client.enrolment.enrolled import fill_in
from edge_client.graphs.loading import RUNTIMES
from edge_client.options import (
    broker_address,
    graph_loader,
    helpers_of,
    parser,
    policy_of,
    trusted_keys,
    windows_of,
)
from edge_client.settings import SETTINGS
from edge_client.storage.owner import Owner
from edge_client.storage.state import DeviceState, only_process
from edge_client.storage.sums_key import sums_key
from host.logs import alive, log_to_stderr
from host.settings import warn_of_variables
from wire.codec import encode
from wire.errors import ShoalError
from wire.identity.keys import PublicKey
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import DeviceStatus
from wire.topics import Topics

if TYPE_CHECKING:  # a board that does not record saves the memory of these modules
    from edge_client.live.store import LiveData

log = logging.getLogger("shoal.edge")

MAPPED_BYTES = 2**17
"""Minimum bytes of an allocation that is returned to the system when it is freed."""
_M_MMAP_THRESHOLD = -3
"""glibc's number of the setting for `MAPPED_BYTES` (mallopt(3))."""


def run(arguments: argparse.Namespace, enrolled: Path | None = None) -> None:
    """Run the client until SIGTERM or Ctrl-C.

    `enrolled` is the credentials folder of an enrolled device. The credentials are renewed.

    Raises:
        ShoalError: an argument, the data or the broker cannot be used.
    """
    trusted, address = trusted_keys(arguments), broker_address(arguments)
    if not trusted:
        log.warning(
            "No --trust: anybody who reaches the broker can give this device work, and bundles "
            "are checked only for damage"
        )
    with only_process(arguments.state):
        _take_part(arguments, trusted, address, enrolled)


def _take_part(
    arguments: argparse.Namespace,
    trusted: tuple[PublicKey, ...],
    address: BrokerAddress,
    enrolled: Path | None,
) -> None:
    # makes glibc return the memory of large arrays when they are freed: by default it raises its
    # threshold to the largest array so far and keeps freed memory below that
    with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    topics, policy = Topics(arguments.fleet), policy_of(arguments)
    helpers = helpers_of(arguments, policy)
    load_graphs, state = (
        graph_loader(arguments),
        DeviceState(arguments.state, Owner(arguments.id, arguments.fleet)),
    )
    state.check_start()  # a second device must not end the other one's connection
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))

    def stop() -> bool:
        alive()
        return bool(stopping)

    with contextlib.ExitStack() as stack:
        live = _live(arguments, stack, stop)
        windows = windows_of(arguments) if live is None else live.now()
        counts = (
            f"train={windows.num_train} test={windows.num_test} unlabelled={windows.num_unlabelled}"
        )
        log.info("Client started: device=%s %s broker=%s", arguments.id, counts, address)
        will = Will(
            topics.device(arguments.id, "status"), encode(DeviceStatus(arguments.id, False))
        )
        client = f"{arguments.fleet}.{arguments.id}"
        link = MqttLink(address, client, will, wait_s=None, give_up=stop)
        stack.callback(link.close)
        agent = Agent(
            arguments.id,
            topics,
            link,
            windows,
            state,
            load_graphs,
            trusted=trusted,
            policy=policy,
            health=partial(linux_health, arguments.state),
            machine=linux_machine,
            runtime=RUNTIMES[arguments.runtime],
            live=live,
            most_bytes=arguments.max_payload << 20,
            helpers=helpers,
            key=sums_key(arguments.state, arguments.id) if helpers else None,
        )
        if enrolled is not None:
            from edge_client.enrolment.credentials import Credentials
            from edge_client.enrolment.renewal import Renewal

            renewal = Renewal(Credentials(enrolled), link.renew_certificate)
            stack.enter_context(renewal.at_work())
        agent.run(stop)


def _live(
    arguments: argparse.Namespace, stack: contextlib.ExitStack, stop: Callable[[], bool]
) -> "LiveData | None":
    """Start recording from `--source` and return its live data, or None without `--source`.

    The recording ends when the stack `stack` is closed.
    """
    if arguments.source is None or arguments.data is not None:
        return None
    from edge_client.live.recording import recording
    from edge_client.live.settings import live_settings
    from edge_client.models.description import ModelInUse
    from edge_client.storage.state import DeviceState

    model = ModelInUse(DeviceState(arguments.state, read_only=True))
    recorded = stack.enter_context(
        recording(live_settings(arguments), arguments.state, f"{arguments.id}-samples", stop, model)
    )
    stack.enter_context(recorded.recorder.at_work(stop))
    return recorded.data


def main() -> None:
    """Run the command line and exit with its status.

    The status is that of a `ShoalError`, which is printed on one line, and 130 after Ctrl-C.
    `check`, `predict`, `record`, `status` and `withdraw` exit with 1 if they do not succeed.
    """
    try:
        arguments = parser().parse_args()
        options = (setting.parameter for setting in SETTINGS.values())
        for text in warn_of_variables("SHOAL_EDGE_", options):
            print(f"warning: {text}", file=sys.stderr)
        sys.exit(_carry_out(arguments))
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)


def _carry_out(arguments: argparse.Namespace) -> int:
    """Carry out a command and return its status. Modules of a single command are imported here."""
    command, enrolled = arguments.command, None
    if command in ("run", "check", "withdraw"):
        enrolled = fill_in(arguments)
    if command == "run":
        log_to_stderr(
            arguments.log, arguments.log_format, fleet=arguments.fleet, device=arguments.id
        )
        run(arguments, enrolled)
        return 0
    log_to_stderr(arguments.log if command == "record" else "ERROR")
    match command:
        case "enrol":
            from edge_client.commands.enrol import enrol

            enrol(arguments)
            return 0
        case "check":
            from edge_client.commands.check import check

            return check(arguments)
        case "withdraw":
            from edge_client.commands.withdraw import withdraw

            return withdraw(arguments)
        case "status":
            from edge_client.commands.status import status

            return status(arguments)
        case "predict" if not arguments.live:
            from edge_client.commands.predict import predict

            return predict(arguments)
    from edge_client.commands.live import predict_live, record

    return record(arguments) if command == "record" else predict_live(arguments)


if __name__ == "__main__":
    main()
