"""`shoal init`: a configuration file for a service."""

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from host.files import write_atomically
from wire.errors import ConfigError

HEAD = """\
# Settings of a service: `shoal serve --config {path}`. A line that begins with # is what holds without it.
# The command line comes before the environment (SHOAL_SERVE_ROUNDS=40), and that before this file.
"""
REQUIRED = {"folder": "runs/served", "bundle": "runs/bundle"}
"""What has no default, and an example."""


def init(path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")] = Path("serve.toml")) -> None:
    """Write a TOML file with every setting of `shoal serve`, its default and its meaning."""
    from shoal.cli import application

    if path.exists():
        raise ConfigError(f"{path}: it exists already, and is left as it is")
    commands: Any = typer.main.get_command(application("serve"))
    options = [option for option in commands.commands["serve"].params if option.name != "config"]
    text = HEAD.format(path=path) + "\n" + "\n".join(map(_setting, options))
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    print(f"{path} is written: set folder, bundle, broker and fleet in it, then `shoal serve --config {path}`")


def _setting(option: Any) -> str:
    name = str(option.name)
    value = REQUIRED.get(name, [] if option.multiple and option.default is None else option.default)
    begin = "" if name in REQUIRED else "# "
    written = "" if value is None else f" {json.dumps(str(value) if isinstance(value, Path) else value)}"  # of these, JSON is TOML
    meaning = textwrap.fill(option.help or "", 120, initial_indent="# ", subsequent_indent="# ")
    return f"{meaning}\n{begin}{name} ={written}\n"
