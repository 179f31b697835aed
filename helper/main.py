"""Entry point of `shoal-helper`, which opens sums over devices and sees none of their numbers."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

from helper.metrics import HelperMetrics, serve_metrics
from helper.service import HelperService, read_devices
from helper.storage import HelperFolder, make_helper
from host.broker import address_of
from host.files import file_error, is_locked, lock_folder, write_atomically
from host.logs import FORMS, alive, log_to_stderr
from wire.errors import BundleError, ConfigError, Malformed, ShoalError
from wire.identity.certificates import TlsPublicKey, common_name, public_key_of, read_certificate
from wire.identity.keys import read_private, read_public
from wire.links.mqtt import MqttLink
from wire.messages import CLIENT
from wire.secret.named_keys import read_named_keys
from wire.secret.roster import sign_roster
from wire.topics import check_name, helper_name

T = TypeVar("T")

LEAST_SUM = 5
"""Default of `--min-sum`."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of `shoal-helper`."""
    top = argparse.ArgumentParser(
        prog="shoal-helper",
        description="Opens sums over many devices for an aggregator, and sees no device's numbers.",
    )
    top.add_argument("--version", action="version", version=CLIENT)
    commands = top.add_subparsers(dest="command", required=True)

    init = commands.add_parser("init", help="make a helper: a key, and an empty ledger")
    _folder(init)
    init.add_argument("--fleet", required=True, help="name of the fleet")
    init.add_argument("--name", required=True, help="name of the helper")

    run = commands.add_parser("run", help="connect to the broker and answer requests")
    _folder(run)
    for flag, text in (
        ("--trust", "root keys (PEM): they vouch for the aggregator, and sign the roster"),
        ("--roster", "roster of the fleet's devices; it is read again for each request"),
    ):
        run.add_argument(flag, type=Path, required=True, help=text)
    run.add_argument("--broker", required=True, help="mqtts://HOST[:PORT], or mqtt:// for a trial")
    run.add_argument("--broker-user", help="user at the broker; its address may have it instead")
    for flag, text in (
        ("--broker-password-file", "file with the password at the broker"),
        ("--ca", "certificate authority of the broker (PEM)"),
        ("--cert", "certificate of this helper for the broker (PEM), with the name NAME@helper"),
        ("--key", "private key of that certificate (PEM)"),
    ):
        run.add_argument(flag, type=Path, help=text)
    run.add_argument("--insecure", action="store_true", help="permit mqtt:// to another machine")
    run.add_argument(
        "--min-sum",
        type=int,
        default=LEAST_SUM,
        help=f"smallest number of devices of a sum (default: {LEAST_SUM})",
    )
    run.add_argument("--metrics", help="HOST:PORT of metrics for Prometheus (default: none)")
    run.add_argument("--log", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO")
    run.add_argument("--log-format", choices=FORMS, default="text")

    _folder(commands.add_parser("status", help="show the helper's key, and what it has opened"))

    roster = commands.add_parser(
        "roster", help="as the owner of the root key: sign the roster of a fleet's devices"
    )
    roster.add_argument("--fleet", required=True, help="name of the fleet")
    roster.add_argument("--key", type=Path, required=True, help="root key (PEM)")
    roster.add_argument("--out", type=Path, required=True, help="file for the roster")
    roster.add_argument(
        "devices",
        type=Path,
        nargs="+",
        help="sums.pub of boards, and certificates of phones (PEM)",
    )
    return top


def init(arguments: argparse.Namespace) -> None:
    """Make a helper's folder.

    Raises:
        ConfigError: a name is none, or the folder cannot be used.
    """
    check_name(arguments.fleet, "fleet name")
    helper_name(arguments.name)
    identity = make_helper(arguments.folder, arguments.fleet, arguments.name)
    print(f"{arguments.folder}: helper {identity.name} of the fleet {identity.fleet}")
    print(f"key {identity.key}")
    print(
        f"The owners of devices need {arguments.folder / 'helper.pub'}, from you and nobody else."
    )


def run(arguments: argparse.Namespace) -> None:
    """Answer requests until SIGTERM or Ctrl-C.

    Raises:
        ShoalError: an argument, the folder or the broker cannot be used, or the disk is full.
    """
    if arguments.min_sum < 2:
        raise ConfigError(f"--min-sum must be at least 2, got {arguments.min_sum}")
    trusted = _read("--trust", arguments.trust, read_public)
    address = address_of(arguments, "anybody on the network can stop requests")
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: stopping.append(signum))

    def stop() -> bool:
        alive()
        return bool(stopping)

    with _only_process(arguments.folder):
        folder = HelperFolder(arguments.folder)
        read_devices(arguments.roster, folder.identity.fleet, trusted)
        client = helper_name(folder.identity.name)
        metrics = HelperMetrics(lambda: folder.ledger)
        with contextlib.ExitStack() as closing:
            if arguments.metrics is not None:
                closing.enter_context(serve_metrics(arguments.metrics, metrics.text))
            link = MqttLink(address, client, wait_s=None, give_up=stop)
            closing.enter_context(contextlib.closing(link))
            service = HelperService(
                folder, link, trusted, arguments.roster, arguments.min_sum, metrics
            )
            try:
                service.run(stop)
            except OSError as error:
                raise ConfigError(file_error(f"--folder {arguments.folder}", error)) from None


def status(arguments: argparse.Namespace) -> None:
    """Print the helper's key, and how much it has opened.

    Raises:
        ConfigError: the folder is no helper's.
    """
    folder = HelperFolder(arguments.folder)
    sizes = [len(part) for part in folder.ledger.parts]
    print(f"helper {folder.identity.name} of the fleet {folder.identity.fleet}")
    print(f"key {folder.identity.key}")
    print(f"running: {'yes' if is_locked(arguments.folder) else 'no'}")
    print(f"sums opened: {len(folder.ledger.sets)}, of {sum(sizes)} devices")
    if sizes:
        print(f"devices that no combination of these sums tells apart: {min(sizes)} or more")


def roster(arguments: argparse.Namespace) -> None:
    """Sign the roster of these devices.

    Raises:
        ConfigError: a file cannot be used, or two of one device.
    """
    check_name(arguments.fleet, "fleet name")
    root = _read("--key", arguments.key, read_private)
    devices = {}
    for path in arguments.devices:
        device, key = _read("device", path, _read_device)
        check_name(device, f"{path}: device id")
        if device in devices:
            raise ConfigError(f"device {path}: there is another key of the device {device}")
        devices[device] = key
    try:
        write_atomically(arguments.out, sign_roster(root, arguments.fleet, devices))
    except OSError as error:
        raise ConfigError(file_error(f"--out {arguments.out}", error)) from None
    print(f"{arguments.out}: {len(devices)} devices of the fleet {arguments.fleet}")


def _read_device(text: bytes) -> tuple[str, TlsPublicKey]:
    if not text.startswith(b"device "):
        certificate = read_certificate(text.decode())
        return common_name(certificate.subject), public_key_of(certificate)
    (device,) = read_named_keys(text, "device")
    return device.name, device.public


def _folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--folder", type=Path, required=True, help="folder of the helper, which must never be lost"
    )


def _read(option: str, path: Path, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ConfigError(file_error(f"{option} {path}", error)) from None
    except (BundleError, Malformed, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path}: {error}") from None


@contextlib.contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        raise ConfigError(f"--folder {folder}: no such folder; `shoal-helper init` makes it")
    try:
        lock = lock_folder(folder)
    except BlockingIOError:
        raise ConfigError(f"--folder {folder}: it is in use by another process") from None
    except OSError as error:
        raise ConfigError(file_error(f"--folder {folder}", error)) from None
    try:
        yield
    finally:
        os.close(lock)


COMMANDS = {"init": init, "run": run, "status": status, "roster": roster}


def main() -> NoReturn:
    """Run the command line and exit with its status; an error is one line."""
    try:
        arguments = parser().parse_args()
        if arguments.command == "run":
            log_to_stderr(arguments.log, arguments.log_format)
        COMMANDS[arguments.command](arguments)
        sys.exit(0)
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
