"""`shoal-edge`: puts the client on a board."""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from edge_client.adapters.health import linux_health
from edge_client.adapters.state import FolderState
from edge_client.adapters.windows import load_folder
from edge_client.agent import Agent
from edge_client.core.ports import GraphLoader
from wire.bundle import read_public
from wire.codec import encode
from wire.errors import ConfigError, ShoalError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.messages import DeviceStatus
from wire.topics import Topics

RUNTIMES = {"onnx": "onnxruntime", "executorch": "executorch"}
"""What a check-in calls each runtime."""


class PrintVersion(argparse.Action):
    """Prints the version of the installed package and exits; it is looked up when it is asked for, not at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The command line of `shoal-edge`."""
    top = argparse.ArgumentParser(prog="shoal-edge", description="Trains on this device's own data; only model updates leave it.")
    top.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    run = top.add_subparsers(dest="command", required=True).add_parser("run", help="connect to the broker and take part in rounds")
    run.add_argument(
        "--broker", default=os.environ.get("SHOAL_BROKER", "mqtt://localhost"), help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]"
    )
    run.add_argument("--fleet", default="default", help="the fleet's name (default: default)")
    run.add_argument("--id", required=True, help="this device's id")
    run.add_argument("--data", type=Path, required=True, help="folder with train.npz and test.npz, X.npy and y.npy, or recordings as *.csv")
    run.add_argument("--state", type=Path, required=True, help="folder for what must survive a restart")
    run.add_argument("--trust", type=Path, help="public key (PEM) that bundles must be signed with")
    run.add_argument("--ca", type=Path, help="certificate authority of the broker (PEM); needs mqtts://")
    run.add_argument("--cert", type=Path, help="this device's certificate (PEM)")
    run.add_argument("--key", type=Path, help="this device's private key (PEM)")
    run.add_argument("--window", type=int, default=128, help="samples in a window, for recordings (default: 128)")
    run.add_argument("--stride", type=int, default=64, help="samples between windows, for recordings (default: 64)")
    run.add_argument("--threads", type=int, default=1, help="threads for training (default: 1)")
    run.add_argument("--runtime", default="onnx", choices=tuple(RUNTIMES), help="what trains (default: onnx)")
    run.add_argument("--provider", default="CPU", choices=("CPU", "CUDA", "Tensorrt"), help="where onnxruntime trains (default: CPU)")
    run.add_argument("--library", type=Path, help="libshoal_executorch.so, where `make native` did not build it on this machine")
    run.add_argument("--log", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="log level (default: INFO)")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Take part until SIGTERM or Ctrl-C.

    Raises:
        ShoalError: an argument, the data or the broker cannot be used.
    """
    topics = Topics(arguments.fleet)
    load_graphs = graph_loader(arguments)
    windows = load_folder(arguments.data, arguments.window, arguments.stride)
    try:
        trusted = read_public(arguments.trust.read_bytes()) if arguments.trust else None
    except OSError as error:
        raise ConfigError(f"--trust {arguments.trust}: {error.strerror}") from None
    log = logging.getLogger("shoal.edge")
    if trusted is None:
        log.warning("no --trust key: bundles are checked for damage, not for who made them")
    address = BrokerAddress.parse(arguments.broker, arguments.ca, arguments.cert, arguments.key)
    state = FolderState(arguments.state)
    log.info("device=%s train=%d test=%d broker=%s", arguments.id, windows.num_train, windows.num_test, address)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))
    will = Will(topics.device(arguments.id, "status"), encode(DeviceStatus(arguments.id, False)))
    link = MqttLink(address, f"{arguments.fleet}.{arguments.id}", will, wait_s=None, give_up=lambda: bool(stopping))
    agent = Agent(
        arguments.id,
        topics,
        link,
        windows,
        state,
        load_graphs,
        trusted=trusted,
        health=linux_health,
        runtime=RUNTIMES[arguments.runtime],
    )
    try:
        agent.run(stop=lambda: bool(stopping))
    finally:
        link.close()


def graph_loader(arguments: argparse.Namespace) -> GraphLoader:
    """What loads bundles on the runtime that was asked for; the other runtime's package need not be installed.

    Raises:
        ConfigError: the runtime is not here.
    """
    try:
        if arguments.runtime == "executorch":
            from edge_client.adapters.executorch_graphs import ExecutorchGraphs
            from edge_client.adapters.executorch_library import load_library

            load_library(arguments.library)
            return lambda bundle: ExecutorchGraphs(bundle, arguments.threads, arguments.library)
        from edge_client.adapters.onnx_graphs import OnnxGraphs
    except ModuleNotFoundError as error:
        raise ConfigError(f"--runtime {arguments.runtime}: the package {error.name} is not installed") from None
    providers = tuple(dict.fromkeys((f"{arguments.provider}ExecutionProvider", "CPUExecutionProvider")))
    return lambda bundle: OnnxGraphs(bundle, providers, arguments.threads)


def main() -> None:
    """Entry point: a `ShoalError` is one line and status 2."""
    arguments = parser().parse_args()
    logging.basicConfig(level=arguments.log, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        run(arguments)
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
