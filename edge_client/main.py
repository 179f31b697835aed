"""`shoal-edge`: puts the client on a board."""

import argparse
import logging
import signal
import sys
from functools import partial

from edge_client.adapters.health import linux_health
from edge_client.adapters.state import FolderState, only_process
from edge_client.agent import Agent
from edge_client.check import check
from edge_client.options import RUNTIMES, broker_address, graph_loader, parser, policy_of, trusted_keys, windows_of
from edge_client.predict import predict
from host.logs import log_to_stderr
from wire.codec import encode
from wire.errors import ShoalError
from wire.keys import PublicKey
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import DeviceStatus
from wire.topics import Topics

log = logging.getLogger("shoal.edge")


def run(arguments: argparse.Namespace) -> None:
    """Take part until SIGTERM or Ctrl-C.

    Raises:
        ShoalError: an argument, the data or the broker cannot be used.
    """
    trusted, address = trusted_keys(arguments), broker_address(arguments)
    if not trusted:
        log.warning("no --trust: whoever reaches the broker can make this device work; bundles are checked for damage alone")
    with only_process(arguments.state):
        _take_part(arguments, trusted, address)


def _take_part(arguments: argparse.Namespace, trusted: tuple[PublicKey, ...], address: BrokerAddress) -> None:
    topics, policy = Topics(arguments.fleet), policy_of(arguments)
    load_graphs, windows, state = graph_loader(arguments), windows_of(arguments), FolderState(arguments.state)
    log.info("device=%s train=%d test=%d broker=%s", arguments.id, windows.num_train, windows.num_test, address)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    will = Will(topics.device(arguments.id, "status"), encode(DeviceStatus(arguments.id, False)))
    link = MqttLink(address, f"{arguments.fleet}.{arguments.id}", will, wait_s=None, give_up=lambda: bool(stopping))
    try:
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
            runtime=RUNTIMES[arguments.runtime],
        )
        agent.run(stop=lambda: bool(stopping))
    finally:
        link.close()


def main() -> None:
    """Entry point: a `ShoalError` is one line and status 2; `check` and `predict` give 1 if something is wrong. Ctrl-C gives 130."""
    arguments = parser().parse_args()
    if arguments.command == "run":
        log_to_stderr(arguments.log, arguments.log_format, fleet=arguments.fleet, device=arguments.id)
    else:
        log_to_stderr("ERROR")
    try:
        match arguments.command:
            case "check":
                sys.exit(check(arguments))
            case "predict":
                sys.exit(predict(arguments))
            case _:
                run(arguments)
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
