"""The command `shoal init`, which writes a configuration file for a service."""

import json
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from host.files import file_error, make_folder, write_atomically
from shoal.command import command
from wire.errors import ConfigError

HEAD = """\
# Settings of a service: `shoal serve --config {path}`. A line that begins with # shows a default.
# The command line comes before the environment (SHOAL_SERVE_ROUNDS=40), and that before
# this file.
"""


@command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write; it must not exist.")] = Path(
        "serve.toml"
    ),
    tls: Annotated[
        str,
        typer.Option(
            help="Set up TLS: make an authority, and a broker's folder. Names and addresses by "
            "which devices reach this machine, separated by commas."
        ),
    ] = "",
    folder: Annotated[Path, typer.Option(help="Folder of the service.")] = Path("runs/served"),
    bundle: Annotated[Path, typer.Option(help="Folder that `shoal export` wrote.")] = Path(
        "runs/bundle"
    ),
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "default",
    broker_folder: Annotated[
        Path | None,
        typer.Option(help="Folder for Mosquitto, with --tls; FOLDER/broker when not given."),
    ] = None,
    broker_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the broker, with --tls.")
    ] = 8883,
    broker_plugin: Annotated[
        Path | None,
        typer.Option(
            help="Mosquitto's plugin for dynamic security on the broker's machine; without it, "
            "the one of this machine."
        ),
    ] = None,
) -> None:
    """Write a TOML file with every setting of `shoal serve`, and set up TLS.

    The file has each setting with its default and its meaning.
    """
    from aggregator.enrolment.mosquitto import PLUGIN_NAME
    from shoal.cli import application

    if path.exists():
        raise ConfigError(f"{path} exists already, and is not changed. Name another file.")
    values: dict[str, str] = {"folder": str(folder), "bundle": str(bundle)}
    if tls:
        hosts = [host.strip() for host in tls.split(",") if host.strip()]
        place = broker_folder or folder / "broker"
        has_plugin = _make_tls(folder, fleet, hosts, place, broker_port, broker_plugin)
        shown = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
        values |= {
            "fleet": fleet,
            "broker": f"mqtts://{shown}" + (f":{broker_port}" if broker_port != 8883 else ""),
        }
    commands: Any = typer.main.get_command(application("serve"))
    options = [option for option in commands.commands["serve"].params if option.name != "config"]
    text = HEAD.format(path=path) + "\n" + "\n".join(_setting(option, values) for option in options)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigError(file_error(path, error)) from None
    if not tls:
        print(
            f"{path} is written. Set folder, bundle, broker and fleet in it, then run `shoal serve "
            f"--config {path}`."
        )
        return
    print(f"the authority of the fleet {fleet} is in {folder}; keep ca.key secret")
    print(f"start the broker: mosquitto -c {place / 'mosquitto.conf'}")
    print(f"start the service: shoal serve --config {path}")
    print(
        f"for each device: shoal enrol token {folder}, and there: shoal-edge enrol "
        f"https://{shown}:8443 TOKEN --state STATE"
    )
    if not has_plugin:
        print(
            f"bans will not hold at the broker: Mosquitto's {PLUGIN_NAME} is not on this machine; "
            "install mosquitto, and do this again"
        )


def _make_tls(
    folder: Path, fleet: str, hosts: list[str], place: Path, port: int, plugin: Path | None
) -> bool:
    """Make the authority and the broker's folder; return True if the broker can ban devices."""
    from aggregator.enrolment.authority import make_authority
    from aggregator.enrolment.mosquitto import make_broker_folder

    if not hosts:
        raise ConfigError("--tls must have at least one name or address, such as broker.example")
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(file_error(f"--folder {folder}", error)) from None
    now_s = time.time()
    return make_broker_folder(
        make_authority(folder, fleet, hosts, now_s), place, hosts, port, now_s, plugin
    )


def _setting(option: Any, values: Mapping[str, str]) -> str:
    name = str(option.name)
    value = values.get(name, [] if option.multiple and option.default is None else option.default)
    begin = "" if name in values else "# "
    written = (
        "" if value is None else f" {json.dumps(str(value) if isinstance(value, Path) else value)}"
    )  # JSON of these values is also TOML
    meaning = textwrap.fill(option.help or "", 120, initial_indent="# ", subsequent_indent="# ")
    return f"{meaning}\n{begin}{name} ={written}\n"
