"""Command line of `shoal-edge`, and the objects that its options name."""

import argparse
import logging
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from edge_client.core.ports import GraphLoader, Windows
from edge_client.data.recordings.reading import DataReading
from edge_client.data.windows import read_folder
from edge_client.graphs.loading import load_graphs_of
from edge_client.settings import PAGE, SETTINGS, usual
from edge_client.storage.owner import read_policy
from host.broker import address_of
from host.files import file_error
from host.helpers import load_helpers
from wire.bundle import Manifest, unpack
from wire.errors import ConfigError
from wire.identity.certificates import TlsPublicKey
from wire.identity.keys import PublicKey, read_public
from wire.links.mqtt import BrokerAddress
from wire.messages import Policy

log = logging.getLogger("shoal.edge")

DATA = Path("/var/lib/shoal/data")
"""Data folder of the unit that `enrol --install` installs."""


class PrintVersion(argparse.Action):
    """Action that prints the version of the installed package and exits.

    It looks the version up itself, as a look-up at every start would be slow.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"shoal {version('shoal')}")
        parser.exit()


LIVE = ("source", "bundle", "channels", "rate_hz", "classes", "page")
SIZES = ("window", "stride", "steps")
RUNTIME = ("threads", "runtime", "provider", "library")
CONNECTION = (
    *("broker", "broker_user", "broker_password_file", "fleet", "id", "enrolled", "trust"),
    *("ca", "cert", "key", "insecure"),
)
RUN = (
    *("state", *CONNECTION, "data", *LIVE, "policy", "helpers", "max_payload"),
    *(*SIZES, *RUNTIME, "log_format", "log"),
)
COMMANDS = {
    "run": ("connect to the broker and take part in rounds", RUN),
    "check": ("check if `run` would work with the same options, and say what is wrong", RUN),
    "enrol": (
        "exchange a token for this device's certificate and all else that `run` needs",
        ("state", "device", "enrolled", "wait_s", "again", "install", "data"),
    ),
    "withdraw": (
        "take back the owner's consent, so that this device takes part no longer",
        (*RUN, "wait_s"),
    ),
    "predict": (
        "answer with the model in use, one line of JSON for each window",
        ("state", "live", "stream", "lag", "publish", *LIVE, *RUNTIME),
    ),
    "status": ("show the model in use, and how long activities last", ("state",)),
    "record": ("record live samples, without training", ("state", *LIVE, *SIZES, "log")),
}
"""Purpose of each command, and the names of its settings (`edge_client.settings`)."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of `shoal-edge`.

    Raises:
        ConfigError: an environment variable has a value that its setting cannot have. Parsing
            raises the same error for an option.
    """
    top = argparse.ArgumentParser(
        prog="shoal-edge",
        description="Trains on this device's own data; only model updates leave it.",
    )
    top.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", required=True)
    parsers = {}
    for command, (text, names) in COMMANDS.items():
        parsers[command] = commands.add_parser(command, help=text)
        for name in names:
            required = name == "state" or (command, name) == ("record", "source")
            default = usual(name)
            if (command, name) == ("enrol", "data"):
                default = default or DATA
            _add_option(parsers[command], name, required, default)
    parsers["enrol"].add_argument("url", help="address of the enrolment: https://HOST[:PORT]")
    parsers["enrol"].add_argument("token", help="token that `shoal enrol token` printed, or @FILE")
    parsers["predict"].add_argument(
        "input",
        nargs="?",
        default="-",
        help="windows as *.npy or *.npz, a recording, a folder of recordings, or - (default) for "
        "lines of JSON",
    )
    return top


def _add_option(command: argparse.ArgumentParser, name: str, required: bool, default: Any) -> None:
    setting = SETTINGS[name]
    usual_value = setting.default if name == "broker" else default  # a variable's has a password
    shown = f" (default: {usual_value})" if usual_value not in (None, False) else ""
    text = (setting.text + shown).replace("%", "%%")
    if setting.bare is bool:
        command.add_argument(setting.flag, action="store_true", default=default, help=text)
        return
    choices = get_args(setting.bare) if get_origin(setting.bare) is Literal else None
    optional: dict[str, Any] = {"nargs": "?", "const": PAGE} if name == "page" else {}
    command.add_argument(
        setting.flag,
        dest=setting.parameter,
        type=partial(setting.read, origin=setting.flag),
        default=default,
        required=required and default is None,
        metavar=None if choices is None else "{" + ",".join(choices) + "}",
        help=text,
        **optional,
    )


def windows_of(arguments: argparse.Namespace) -> Windows:
    """Return the device's windows from the folder `--data`, and log what was read.

    Raises:
        ConfigError: neither --data nor --source is given, or both are.
        DataError: the windows cannot be used.
    """
    windows, reading = data_of(arguments)
    if reading is not None:
        log.info("Recordings read: %s", reading)
        for remark in reading.remarks:
            log.warning("Recordings: %s", remark)
    return windows


def data_of(arguments: argparse.Namespace) -> tuple[Windows, DataReading | None]:
    """Return the windows of the folder `--data`, and what was taken for what in its recordings.

    Recordings are cut as the bundle of `--bundle` needs them.

    Raises:
        ConfigError: neither --data nor --source is given, or both are; the bundle cannot be read.
        DataError: the windows cannot be used.
    """
    if (arguments.data is None) == (arguments.source is None):
        raise ConfigError(
            "Set either --data, a folder of windows, or --source, the origin of live samples"
        )
    length, stride, steps, rate_hz = (
        arguments.window or 0,
        arguments.stride or 0,
        arguments.steps or 0,
        arguments.rate or 0.0,
    )
    if arguments.bundle is not None:
        window = manifest_of(arguments.bundle).window
        length, stride, steps = window.length, window.stride, window.steps
        rate_hz = window.rate_hz or rate_hz
    return read_folder(arguments.data, length, stride, steps, rate_hz)


def manifest_of(path: Path) -> Manifest:
    """Return the manifest of the bundle `--bundle`.

    Raises:
        ConfigError: it cannot be read.
        BundleError: it is no bundle.
    """
    try:
        return unpack(path.read_bytes()).manifest
    except OSError as error:
        raise ConfigError(file_error(f"--bundle {path}", error)) from None


def trusted_keys(arguments: argparse.Namespace) -> tuple[PublicKey, ...]:
    """Return the root keys of `--trust`, none for `--insecure` without `--trust`.

    Raises:
        ConfigError: there is neither `--trust` nor `--insecure`, or the file cannot be read.
        BundleError: the file has no public keys.
    """
    if arguments.trust is None:
        if not arguments.insecure:
            raise ConfigError(
                "--trust is missing, so anybody could give this device work; set it to the fleet's "
                "trust.pem, or use --insecure for a trial"
            )
        return ()
    try:
        return read_public(arguments.trust.read_bytes())
    except OSError as error:
        raise ConfigError(file_error(f"--trust {arguments.trust}", error)) from None


def policy_of(arguments: argparse.Namespace) -> Policy | None:
    """Return the policy of the file `--policy`, or None without it.

    Raises:
        ConfigError: the file cannot be used.
    """
    return read_policy(arguments.policy) if arguments.policy is not None else None


def helpers_of(arguments: argparse.Namespace, policy: Policy | None) -> tuple[TlsPublicKey, ...]:
    """Return the keys of the file `--helpers`; none without it. `policy`: that of the owner.

    Raises:
        ConfigError: the file cannot be used, or the policy needs it.
    """
    if arguments.helpers is None:
        if policy is not None and policy.min_sum is not None:
            raise ConfigError(
                f"policy {arguments.policy}: min_sum {policy.min_sum} permits reports in secret "
                "sums alone, which need the helpers' keys; set --helpers"
            )
        return ()
    if policy is None or policy.min_sum is None:
        log.warning(
            "No min_sum in the policy: this device also reports outside secret sums, to every "
            "campaign in clear mode"
        )
    return tuple(helper.public for helper in load_helpers(arguments.helpers, log))


def broker_address(arguments: argparse.Namespace) -> BrokerAddress:
    """Return the address of the broker.

    Raises:
        ConfigError: it is not an address, or the broker is on another machine and neither TLS nor
            `--insecure` is used.
    """
    return address_of(arguments, "others on the network can read along")


def graph_loader(arguments: argparse.Namespace) -> GraphLoader:
    """Return the loader of bundles for the runtime of the options.

    Raises:
        ConfigError: the runtime is not installed.
    """
    return load_graphs_of(
        arguments.runtime, arguments.provider, arguments.threads, arguments.library
    )
