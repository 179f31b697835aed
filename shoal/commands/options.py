"""Options that several commands share, with their help."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from aggregator.service_settings import CampaignSettings
from algorithms.spec import DEFAULT_ALGORITHM as DEFAULT_ALGORITHM
from host.files import file_error
from host.settings import about
from shoal.command import Options, line_of
from wire.errors import ConfigError

Folder = Annotated[Path, typer.Argument(help="Folder of `shoal serve --folder`.")]
Run = Annotated[str, typer.Option(help="Name of the campaign.")]
Database = Annotated[str, typer.Option(help="SQLAlchemy URL; SQLite in the folder when empty.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: an object, or for a list a list of objects.")
]

Data = Annotated[
    str,
    typer.Option(
        help="Data: watch, uci-har, mnist, fashion-mnist, cifar10, or the path of a .npz (X, y[, "
        "subject][, split][, session][, start]), of a "
        "folder with a folder for each device, or of UCI HAR."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for summary.json, pictures and the report.")]

CUTS = ("window", "stride", "steps", "rate")
"""Settings of a simulation that say how windows are cut from recordings."""


class CampaignWords(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a campaign whose text on the command line is not stored as it is."""

    algorithm: Annotated[
        str,
        about(
            "One choice or several; without it, the bundle's own, but distfl in place of FedAvg. "
            "While a campaign runs, only the mean may change.",
            live=True,
            max_length=200,
        ),
    ] = ""
    privacy: Annotated[
        str,
        about(
            "Mechanism: gaussian, shared-gaussian (with --secret), local-gaussian or dp-sgd, with "
            "options: gaussian:clip_norm=1."
        ),
    ] = ""
    lr: Annotated[
        float | None,
        about("Learning rate; the algorithm's own when not given.", live=True, ge=0, le=1e6),
    ] = None
    policy: Annotated[
        str,
        about(
            "Policy of rounds: sync, over-select:cohort=20:over=0.3, "
            "buffered:buffer=10:concurrency=40.",
            live=True,
        ),
    ] = ""
    window: Annotated[
        str,
        about("Hours in which devices train, such as 22:00-06:00; any when empty.", live=True),
    ] = ""
    time_zone: Annotated[str, about("Time zone of --window.", live=True)] = "UTC"


CAMPAIGN = Options((CampaignWords, CampaignSettings))


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take settings of the command from a TOML file.

    The command line and the environment come before the file.

    Raises:
        ConfigError: the file cannot be read, is not TOML, has a name that is not a setting of the
            command, or has a value that is neither true nor false where one of these is needed.
    """
    if path is None:
        return None
    try:
        entries = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(file_error(f"--config {path}", error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None
    option_names = {parameter.name for parameter in ctx.command.params} - {"config"}
    settings = {name.replace("-", "_"): value for name, value in entries.items()}
    if unknown := sorted(settings.keys() - option_names):
        near = get_close_matches(unknown[0], [name for name in option_names if name], 1)
        raise ConfigError(
            f"--config {line_of(path, unknown[0])}: this command has no setting {unknown[0]!r}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    flags = {each.name for each in ctx.command.params if getattr(each, "is_flag", False)}
    for name in sorted(flags & settings.keys()):
        if not isinstance(value := settings[name], bool):
            origin = line_of(path, name)
            raise ConfigError(f"{name} must be true or false, got {value!r} ({origin})")
    ctx.default_map = settings
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=read_config,
        is_eager=True,
        help="TOML file with settings; `shoal init` writes one.",
    ),
]
