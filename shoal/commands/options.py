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
AlgorithmName = Annotated[
    str,
    typer.Option(
        "--algorithm",
        help="One choice or several: distfl, dbe+distfl+irls, ifca:k=4, FILE.py:CLASS. `shoal "
        "algorithms` lists them.",
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds of training.")]
Patience = Annotated[
    int,
    typer.Option(
        min=0,
        help="Training ends when the mean accuracy has not got better for so many rounds; 0: it "
        "does not matter.",
    ),
]
MinDelta = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="By how much more than the best it has to be to count as better.",
    ),
]
LocalEpochs = Annotated[
    int, typer.Option(min=1, help="Passes over a device's windows in each round.")
]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same result.")]
BatchSize = Annotated[int, typer.Option(min=2, max=4096, help="Windows in a batch.")]
Lr = Annotated[
    float | None, typer.Option(help="Learning rate; the algorithm's own when not given.")
]
LrSchedule = Annotated[
    str,
    typer.Option(
        "--lr-schedule",
        help="The learning rate over rounds: constant, step:every=10, exponential:factor=0.95, "
        "cosine:warmup=3.",
    ),
]
Hyper = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=VALUE in place of the objective's own, e.g. momentum=0; may be repeated."
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="The first N devices of data that have owners; with another partition, assign to N "
        "devices.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for summary.json, pictures and the report.")]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="Name of a model, or FILE.py:FUNCTION; the usual one for the data when not given.",
    ),
]
Pretrain = Annotated[
    str,
    typer.Option(
        help="Other data, by name or path, that the extractor is trained on before round 1 (for "
        "cgau)."
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        help="How examples are assigned to devices: user, iid, dirichlet:alpha=0.1:devices=20, "
        "rotation, ... (docs/simulate.md)."
    ),
]
LabelCount = Annotated[
    str,
    typer.Option(
        "--labels",
        help="Labelled windows of each class that a device has: all (the default), a number, or "
        "none: newcomers without labels.",
    ),
]
Split = Annotated[
    str,
    typer.Option(
        help="How each device's windows are divided for training and testing: own (as the data "
        "are), time, session, random."
    ),
]
NewcomerCount = Annotated[
    int,
    typer.Option(
        "--newcomers",
        min=0,
        help="So many devices are held out of training and join when it is over; a quarter with "
        "--labels none.",
    ),
]
Attack = Annotated[
    str,
    typer.Option(
        help="Attackers among the devices: label-flip:share=0.2, replace, sign-flip, gaussian, nan "
        "(docs/privacy.md)."
    ),
]
PrivacyName = Annotated[
    str,
    typer.Option(
        "--privacy", help="gaussian, local-gaussian or dp-sgd, with options: gaussian:clip_norm=1."
    ),
]


UpdateEncoding = Annotated[
    str,
    typer.Option(
        help="How devices send what training changed: float32, or int8, a quarter of the bytes, "
        "where they can."
    ),
]
Cohort = Annotated[
    int,
    typer.Option(min=0, help="So many devices, drawn anew, take part in each round; 0: all do."),
]
Profiles = Annotated[
    str,
    typer.Option(
        help="What devices are like on a virtual clock: phones, boards, trace:devices=FILE.csv "
        "(docs/scale.md)."
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        help="How the server makes rounds on it: sync, over-select:over=0.3, buffered:buffer=10."
    ),
]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        help="What runs the graphs: auto, native, hybrid, eager, batched, messages "
        "(docs/scale.md).",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        min=0, help="Devices that are worked on at a time; 0: one for each core (batched: 128)."
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        help="A Ray cluster that does the work: its address, auto, local, or any (auto, else "
        "local; docs/scale.md)."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Torch device of backend batched: cuda, cuda:1, cpu; empty: CUDA, where torch finds "
        "it."
    ),
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Backend batched multiplies in bfloat16.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        help="Folder in which every round is kept, and from which an interrupted run goes on."
    ),
]


class CampaignWords(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a campaign that are written otherwise than its settings are stored."""

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
    hyper: Annotated[
        tuple[str, ...],
        about("NAME=VALUE in place of the objective's own, e.g. momentum=0; may be repeated."),
    ] = ()
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
    """Take the command's settings, as far as neither the command line nor the environment has them,
    from a TOML file.

    Raises:
        ConfigError: it cannot be read, is no TOML, or holds what is no setting of the command.
    """
    if path is None:
        return None
    try:
        held = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    known = {parameter.name for parameter in ctx.command.params} - {"config"}
    settings = {name.replace("-", "_"): value for name, value in held.items()}
    if unknown := sorted(settings.keys() - known):
        near = get_close_matches(unknown[0], [name for name in known if name], 1)
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
