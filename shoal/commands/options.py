"""Options that several commands share, with their help."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from aggregator.service_settings import CampaignSettings
from algorithms.spec import DEFAULT_ALGORITHM as DEFAULT_ALGORITHM
from host.settings import about
from shoal.command import Options
from wire.errors import ConfigError

Folder = Annotated[Path, typer.Argument(help="The folder of `shoal serve --folder`.")]
Run = Annotated[str, typer.Option(help="Name of the run.")]
Database = Annotated[str, typer.Option(help="SQLAlchemy URL; SQLite in the folder when empty.")]
Json = Annotated[
    bool, typer.Option("--json", help="As JSON: a list for a list, an object for one thing.")
]

Data = Annotated[
    str,
    typer.Option(
        help="watch, uci-har, mnist, fashion-mnist, cifar10, or the path of a .npz (X, y[, "
        "subject][, split][, session][, start]), of a "
        "folder with a folder for each device, or of UCI HAR."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for summary.json, pictures and the report.")]


class CampaignWords(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a campaign whose text differs from the stored setting."""

    algorithm: Annotated[
        str,
        about(
            "One choice or several; the bundle's own when not given, distfl for FedAvg's. Of a "
            "campaign that runs, only the mean may change.",
            live=True,
            max_length=200,
        ),
    ] = ""
    privacy: Annotated[
        str, about("gaussian, local-gaussian or dp-sgd, with options: gaussian:clip_norm=1.")
    ] = ""
    lr: Annotated[
        float | None,
        about("Learning rate; the algorithm's own when not given.", live=True, ge=0, le=1e6),
    ] = None
    policy: Annotated[
        str,
        about(
            "How rounds are made: sync, over-select:cohort=20:over=0.3, "
            "buffered:buffer=10:concurrency=40.",
            live=True,
        ),
    ] = ""
    window: Annotated[
        str,
        about("Hours in which devices are asked, such as 22:00-06:00; any when empty.", live=True),
    ] = ""
    time_zone: Annotated[str, about("Of --window, such as Europe/Berlin.", live=True)] = "UTC"


CAMPAIGN = Options((CampaignWords, CampaignSettings))


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take settings of the command from a TOML file.

    The command line and the environment come before the file.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has a name that is no setting of the
            command.
    """
    if path is None:
        return None
    try:
        entries = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    option_names = {parameter.name for parameter in ctx.command.params} - {"config"}
    settings = {name.replace("-", "_"): value for name, value in entries.items()}
    if unknown := sorted(settings.keys() - option_names):
        near = get_close_matches(unknown[0], [name for name in option_names if name], 1)
        raise ConfigError(
            f"--config {path}: {unknown[0]!r} is no setting of this command"
            + (f"; is it {near[0]!r}?" if near else "")
        )
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
