"""The command line of `shoal-edge`, and what its options name."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.agent.owner import read_policy
from edge_client.core.ports import GraphLoader, Windows
from edge_client.data.windows import load_folder
from edge_client.live.settings import add_live_options
from host.logs import FORMS
from host.loopback import is_loopback
from wire.errors import ConfigError
from wire.identity.keys import PublicKey, read_public
from wire.links.mqtt import BrokerAddress
from wire.messages import Policy
from wire.pieces import MOST_BYTES

if TYPE_CHECKING:
    from edge_client.graphs.onnx import OnnxModel

RUNTIMES = {"onnx": "onnxruntime", "executorch": "executorch"}
"""What a check-in calls each runtime."""
LENGTH, STRIDE = 128, 64
"""Of windows that nobody has said the size of."""


class PrintVersion(argparse.Action):
    """Prints the version of the installed package and exits; it is looked up when it is asked for,
    not at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """The command line of `shoal-edge`."""
    top = argparse.ArgumentParser(
        prog="shoal-edge",
        description="Trains on this device's own data; only model updates leave it.",
    )
    top.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", required=True)
    _add_options(commands.add_parser("run", help="connect to the broker and take part in rounds"))
    _add_options(
        commands.add_parser(
            "check",
            help="say whether `run` with the same options would work, and what is wrong if not",
        )
    )
    _add_enrol_options(
        commands.add_parser(
            "enrol",
            help="get this device's certificate, and all else that `run` needs, for a token",
        )
    )
    withdraw = commands.add_parser(
        "withdraw", help="tell the aggregator that this device takes part no longer"
    )
    _add_options(withdraw)
    withdraw.add_argument(
        "--wait",
        type=float,
        default=60.0,
        help="seconds to wait for the aggregator to confirm it (default: 60)",
    )
    predict = commands.add_parser(
        "predict", help="answer with the model in use, one line of JSON for each window"
    )
    predict.add_argument(
        "input",
        nargs="?",
        default="-",
        help="windows as *.npy or *.npz, a recording as *.csv, or - (default) for lines of JSON",
    )
    predict.add_argument(
        "--state", type=Path, required=True, help="the folder that `run` keeps its state in"
    )
    predict.add_argument(
        "--live",
        action="store_true",
        help="answer to each window of what is recorded, or of --source, as it comes",
    )
    predict.add_argument(
        "--publish",
        help="where answers to live windows go: mqtt://HOST[:PORT]/TOPIC or unix:PATH (default: "
        "standard output)",
    )
    add_live_options(predict, required=False)
    _add_runtime(predict)
    record = commands.add_parser("record", help="record live samples, without training")
    record.add_argument(
        "--state", type=Path, required=True, help="the folder that `run` keeps its state in"
    )
    add_live_options(record, required=True)
    _add_sizes(record)
    record.add_argument(
        "--log",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="log level (default: INFO)",
    )
    return top


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--broker",
        default=os.environ.get("SHOAL_BROKER", "mqtt://localhost"),
        help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]",
    )
    command.add_argument("--fleet", default="default", help="the fleet's name (default: default)")
    command.add_argument(
        "--id",
        help="this device's id; an enrolled device needs none of --id, --broker, --fleet, --trust, "
        "--ca, --cert, --key",
    )
    command.add_argument(
        "--enrolled",
        type=Path,
        help="what `enrol` wrote (default: enrolled in the state folder, if it is there)",
    )
    command.add_argument(
        "--data",
        type=Path,
        help="folder with train.npz and test.npz, X.npy and y.npy, or recordings as *.csv",
    )
    add_live_options(command, required=False)
    command.add_argument(
        "--state", type=Path, required=True, help="folder for what must survive a restart"
    )
    command.add_argument(
        "--trust",
        type=Path,
        help="public keys (PEM), one or more: bundles and messages must be signed with one",
    )
    command.add_argument("--policy", type=Path, help="what plans may ask of this device (TOML)")
    command.add_argument(
        "--max-payload",
        type=int,
        default=MOST_BYTES >> 20,
        help=f"MiB of the largest model or update (default: {MOST_BYTES >> 20})",
    )
    command.add_argument(
        "--insecure",
        action="store_true",
        help="permit to run without --trust, and mqtt:// to another machine",
    )
    command.add_argument(
        "--ca", type=Path, help="certificate authority of the broker (PEM); needs mqtts://"
    )
    command.add_argument("--cert", type=Path, help="this device's certificate (PEM)")
    command.add_argument("--key", type=Path, help="this device's private key (PEM)")
    _add_sizes(command)
    _add_runtime(command)
    command.add_argument(
        "--log-format",
        default="text",
        choices=FORMS,
        help="lines of text, or of JSON (default: text)",
    )
    command.add_argument(
        "--log",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="log level (default: INFO)",
    )


def _add_enrol_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("url", help="where devices are enrolled: https://HOST[:PORT]")
    command.add_argument("token", help="what `shoal enrol token` printed, or @FILE")
    command.add_argument(
        "--device",
        help="the id that this device wants; that of the token, or one of its key, when not given",
    )
    command.add_argument(
        "--state", type=Path, required=True, help="the folder that `run` is to keep its state in"
    )
    command.add_argument(
        "--enrolled", type=Path, help="the folder to write (default: enrolled in the state folder)"
    )
    command.add_argument(
        "--wait",
        type=float,
        default=60.0,
        help="seconds to wait for a network and the service (default: 60)",
    )
    command.add_argument(
        "--again",
        action="store_true",
        help="enrol anew, with a new key, although this device is enrolled",
    )
    command.add_argument(
        "--install", action="store_true", help="as root: install and start the systemd unit"
    )
    command.add_argument(
        "--data",
        type=Path,
        default=Path("/var/lib/shoal/data"),
        help="the data folder of the unit (default: %(default)s)",
    )


def _add_sizes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--window",
        type=int,
        help=f"samples in a window of recordings and live data (default: {LENGTH})",
    )
    command.add_argument(
        "--stride", type=int, help=f"samples between two windows (default: {STRIDE})"
    )
    command.add_argument(
        "--steps",
        type=int,
        help="steps of a window of recordings and live data, each with the class of its time",
    )


def _add_runtime(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads", type=int, default=1, help="threads for the graphs (default: 1)"
    )
    command.add_argument(
        "--runtime",
        default="onnx",
        choices=tuple(RUNTIMES),
        help="what runs the graphs (default: onnx)",
    )
    command.add_argument(
        "--provider",
        default="CPU",
        choices=("CPU", "CUDA", "Tensorrt"),
        help="where onnxruntime runs (default: CPU)",
    )
    command.add_argument(
        "--library",
        type=Path,
        help="libshoal_executorch.so, where `make native` did not build it on this machine",
    )


def windows_of(arguments: argparse.Namespace) -> Windows:
    """The device's windows, of a folder.

    Raises:
        ConfigError: neither --data nor --source is given, or both are.
        DataError: they cannot be used.
    """
    if (arguments.data is None) == (arguments.source is None):
        raise ConfigError(
            "expected either --data, a folder of windows, or --source, where live samples come from"
        )
    return load_folder(
        arguments.data, arguments.window or LENGTH, arguments.stride or STRIDE, arguments.steps or 0
    )


def trusted_keys(arguments: argparse.Namespace) -> tuple[PublicKey, ...]:
    """The root keys; none with `--insecure` alone.

    Raises:
        ConfigError: no `--trust` and no `--insecure`, or the file cannot be read.
        BundleError: it holds no public keys.
    """
    if arguments.trust is None:
        if not arguments.insecure:
            raise ConfigError(
                "no --trust: anybody could make this device work; give the fleet's trust.pem, or "
                "--insecure for a trial"
            )
        return ()
    try:
        return read_public(arguments.trust.read_bytes())
    except OSError as error:
        raise ConfigError(f"--trust {arguments.trust}: {error.strerror}") from None


def policy_of(arguments: argparse.Namespace) -> Policy | None:
    """What `--policy` permits; None without it.

    Raises:
        ConfigError: the file cannot be used.
    """
    return read_policy(arguments.policy) if arguments.policy is not None else None


def broker_address(arguments: argparse.Namespace) -> BrokerAddress:
    """Where the broker is.

    Raises:
        ConfigError: not an address, or one on another machine without TLS and without `--insecure`.
    """
    address = BrokerAddress.parse(arguments.broker, arguments.ca, arguments.cert, arguments.key)
    if not address.tls and not is_loopback(address.host) and not arguments.insecure:
        raise ConfigError(
            f"broker {address}: without TLS everybody on the way reads along; use mqtts://, or "
            "--insecure for a trial"
        )
    return address


def graph_loader(arguments: argparse.Namespace) -> GraphLoader:
    """What loads bundles on the runtime that was asked for.

    Raises:
        ConfigError: the runtime is not here.
    """
    return load_graphs_of(
        arguments.runtime, arguments.provider, arguments.threads, arguments.library
    )


def load_graphs_of(
    runtime: str, provider: str = "CPU", threads: int = 1, library: Path | None = None
) -> GraphLoader:
    """What loads bundles on a runtime of `RUNTIMES`; the other runtime's package need not be
    installed.

    Raises:
        ConfigError: there is no such runtime, or it is not here.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"runtime {runtime!r}: expected one of {', '.join(RUNTIMES)}")
    try:
        if runtime == "executorch":
            from edge_client.graphs.executorch import ExecutorchGraphs
            from edge_client.graphs.executorch_library import load_library

            load_library(library)
            return lambda bundle: ExecutorchGraphs(bundle, threads, library)
        from edge_client.graphs.onnx import OnnxGraphs
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--runtime {runtime}: the package {error.name} is not installed"
        ) from None
    return lambda bundle: OnnxGraphs(bundle, _providers(provider), threads)


def load_model_of(provider: str = "CPU", threads: int = 1) -> Callable[[bytes], "OnnxModel"]:
    """What loads models in one file.

    Raises:
        ConfigError: onnxruntime is not here.
    """
    try:
        from edge_client.graphs.onnx import OnnxModel
    except ModuleNotFoundError as error:
        raise ConfigError(f"--runtime onnx: the package {error.name} is not installed") from None
    return lambda data: OnnxModel(data, _providers(provider), threads)


def _providers(provider: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"{provider}ExecutionProvider", "CPUExecutionProvider")))
