"""The commands `shoal models`: a fleet's releases, and the models of a campaign's last rounds."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
import typer

from host.files import prepare_folder
from shoal.command import command, print_json
from shoal.commands import options as opt
from wire.errors import ConfigError

if TYPE_CHECKING:
    from aggregator.fleet.records import Version


TOGETHER = ("safetensors", "pt", "onnx")
"""File name suffixes that are written into a folder."""


Campaign = Annotated[
    str,
    typer.Option(
        help="Whose rollout: the name of the run that trained; that of the only one when empty."
    ),
]


Group = Annotated[
    str,
    typer.Option(
        help="The group whose model is meant; it may be left out where there is one model."
    ),
]


Released = Annotated[
    int | None,
    typer.Option(
        "--release", min=1, help="The number of a release, in place of a campaign's model."
    ),
]


Round = Annotated[
    int | None,
    typer.Option(
        "--round",
        min=0,
        help="The round that made the model; the one on offer now when it is left out.",
    ),
]


models = typer.Typer(
    rich_markup_mode=None,
    help="A fleet's releases and their rollouts, models as files, and the models of a run's last "
    "rounds.",
    no_args_is_help=True,
)


@models.command("list")
@command()
def list_releases(
    folder: opt.Folder,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """List the releases of a fleet.

    The list has each release's state, its accuracy if it is known, and how many devices use it.
    """
    from aggregator.maintenance.database import read_view
    from shoal.releases import accuracy_text, release_row

    view = read_view(folder, database)
    rows = [release_row(view, release) for _, release in sorted(view.fleet.releases.items())]
    if as_json:
        print_json(rows)
        return
    print(
        f"{'release':>7}  {'group':<20}  {'state':<10}  {'round':>5}  {'accuracy':>8}  "
        f"{'in use':>6}"
    )
    for row in rows:
        release = view.fleet.releases[row["number"]]
        group = f"{release.campaign}/{release.group}"
        print(
            f"{release.number:>7}  {group:<20}  {row['state']:<10}  {release.round:>5}  "
            f"{accuracy_text(release):>8}  {row['in_use']:>6}"
        )


@models.command("show")
@command()
def show_release(
    folder: opt.Folder,
    number: Annotated[int, typer.Argument(help="The release's number.")],
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Show all that is known of a release."""
    from aggregator.maintenance.database import read_view
    from shoal.releases import accuracy_text, release_of, release_row

    view = read_view(folder, database)
    release = release_of(view, number)
    row = release_row(view, release)
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        if name == "made_s":
            name, value = "made", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
        if name == "metrics":
            name, value = (
                "accuracy",
                f"{accuracy_text(release)} on {release.metrics.num_examples} windows",
            )
        if name == "in_use":
            name, value = "in use", f"on {value} devices"
        print(f"{name:<10}  {value}")


@models.command("release")
@command()
def make_releases(
    folder: opt.Folder,
    campaign: Annotated[
        str, typer.Option(help="The name of the run whose models are released.")
    ] = "run-1",
    roll_out: Annotated[bool, typer.Option(help="Begin to give them to devices.")] = True,
) -> None:
    """Make releases of a campaign's latest models, one for each group, and roll them out."""
    from aggregator.http.local import order

    print(order(folder, "releases", campaign=campaign, roll_out=roll_out))


@models.command("rollout")
@command()
def rollout(
    folder: opt.Folder,
    campaign: Campaign = "",
    pause: Annotated[
        bool, typer.Option("--pause", help="Give the releases to no further device.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a pause.")] = False,
    promote: Annotated[
        bool, typer.Option("--promote", help="Take the next step, whatever devices say.")
    ] = False,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Show how far rollouts are; or pause one, resume it, or take it to its next step."""
    from aggregator.http.local import order
    from aggregator.maintenance.database import read_view
    from shoal.releases import print_progress, under_way

    view = read_view(folder, database)
    if pause + resume + promote > 1:
        raise ConfigError("--pause, --resume and --promote: one at a time")
    if not (pause or resume or promote):
        shown = [each for each in view.rollouts if campaign in ("", each.campaign)]
        if as_json:
            print_json(shown)
            return
        for progress in shown:
            print_progress(progress)
        if not shown:
            print("nothing was rolled out yet" + (f" by campaign {campaign}" if campaign else ""))
        return
    going = under_way(view, campaign)
    if promote:
        text = order(folder, "rollouts", going.campaign, "promote", step=going.step)
    else:
        text = order(folder, "rollouts", going.campaign, "pause" if pause else "resume")
    if as_json:
        print_json({"said": [text]})
    else:
        print(text)


@models.command("rollback")
@command()
def roll_back(
    folder: opt.Folder,
    to: Annotated[
        int,
        typer.Option(
            min=0,
            help="The release whose group returns to its model; 0: end the rollout that goes on.",
        ),
    ] = 0,
    group: Annotated[
        str, typer.Option(help="The group that returns to it, if it is not the release's own.")
    ] = "",
    campaign: Campaign = "",
    database: opt.Database = "",
) -> None:
    """Return to an earlier release, on all devices of its group at once; or end a rollout.

    When a rollout ends, devices get back what they had.
    """
    from aggregator.http.local import order
    from aggregator.maintenance.database import read_view
    from shoal.releases import release_of, under_way

    view = read_view(folder, database)
    if not to:
        print(order(folder, "rollouts", under_way(view, campaign).campaign, "rollback"))
        return
    release_of(view, to, "--to")
    print(order(folder, "releases", str(to), "rollback", group=group))


@models.command("rounds")
@command()
def list_models(
    folder: opt.Folder,
    run: opt.Run = "run-1",
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """List the models that a run has and remembers.

    Accuracy and loss are those on devices before they trained.
    """
    from shoal.held_model import campaign_of

    campaign = campaign_of(folder, run, database)
    current = campaign.version
    versions = [*(v for v in campaign.history if v.round != current.round), current]
    if as_json:
        print_json(
            [
                {**msgspec.to_builtins(version), "offered": version is current}
                for version in versions
            ]
        )
        return
    print(f"{'made in':>8}  {'models':>6}  {'devices':>7}  {'accuracy':>8}  {'loss':>8}")
    for version in versions:
        print(_line(version) + ("  offered now" if version is current else ""))


@models.command("export")
@command()
def export_model(
    folder: opt.Folder,
    to: Annotated[
        Path,
        typer.Option(
            help="The file to write: *.onnx, *.pte, *.pt or *.safetensors. Or a folder, a name "
            "without an ending, for *.safetensors, "
            "*.pt and *.onnx of every group."
        ),
    ],
    run: opt.Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    probe: Annotated[
        Path | None, typer.Option(help="For *.pte: server.pt2 of the bundle's folder.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=8, help="For *.pte: windows in a batch, at most.")
    ] = 64,
    database: opt.Database = "",
) -> None:
    """Write a model with its weights inside into a file that other programs read.

    A folder in place of the file gets the models of all groups.
    """
    from shoal.held_model import (
        campaign_of,
        held_by_run,
        model_of,
        model_payload,
        models_of_run,
        write_model,
    )

    if to.suffix:
        model = model_of(folder, run, group, made_in, release, database)
        write_model(model, to, model_payload(model, to, probe, max_batch))
        return
    if release is not None:
        models = {f"release-{release}": model_of(folder, run, group, made_in, release, database)}
    else:
        named = models_of_run(campaign_of(folder, run, database), made_in)
        groups = [group] if group else sorted(named)
        models = {
            f"group-{quote(key, safe='')}": held_by_run(folder, run, key, made_in, database)
            for key in groups
        }
    prepare_folder(to, "--to")
    for name, model in models.items():
        for form in TOGETHER:
            write_model(
                model,
                to / f"{name}.{form}",
                model_payload(model, to / f"{name}.{form}", None, max_batch),
            )


@models.command("inspect")
@command()
def inspect_model(
    folder: opt.Folder,
    run: opt.Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Print what a model is made of: its bundle, and each tensor with its norm."""
    import numpy as np

    from shoal.held_model import model_of

    model = model_of(folder, run, group, made_in, release, database)
    tensors = [
        {
            "name": name,
            "shape": tensor.shape,
            "norm": float(np.linalg.norm(tensor.astype(np.float64).ravel())),
        }
        for name, tensor in model.exchanged.items()
    ]
    if as_json:
        print_json({**model.about, "classes": model.bundle.manifest.classes, "tensors": tensors})
        return
    for key, value in model.about.items():
        print(f"{key:<10} {value.replace(chr(10), ', ')}")
    print(f"\n{'tensor':<44} {'shape':>16} {'norm':>10}")
    for row in tensors:
        print(
            f"{row['name']:<44} {'x'.join(map(str, row['shape'])) or '-':>16} {row['norm']:>10.4g}"
        )


@models.command("diff")
@command()
def diff_models(
    folder: opt.Folder,
    one: Annotated[
        str, typer.Argument(help="GROUP, or GROUP@ROUND for the model that a round made.")
    ],
    other: Annotated[str, typer.Argument(help="The model to compare with it.")],
    run: opt.Run = "run-1",
    data: Annotated[
        Path | None,
        typer.Option(help="Windows (*.npy, *.npz or *.csv): how often do both say the same?"),
    ] = None,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Compare two models tensor by tensor, and by what they say of windows."""
    import numpy as np

    from export.model_file import agreement, norms, to_onnx_file
    from export.runtimes import load_whole
    from shoal.held_model import held_by_run, windows_for

    models = []
    for text in (one, other):
        group, at, number = text.partition("@")
        if at and not number.isdecimal():
            raise ConfigError(
                f"model {text!r}: expected GROUP or GROUP@ROUND, where ROUND is a number"
            )
        models.append(held_by_run(folder, run, group, int(number) if at else None, database))
    first, second = models
    if first.exchanged.keys() != second.exchanged.keys():
        raise ConfigError(
            f"{one} and {other} are of bundles with other tensors: {first.about['bundle']} and "
            f"{second.about['bundle']}"
        )
    tensors = norms(first.exchanged, second.exchanged)
    if not as_json:
        print(f"{'tensor':<44} {'difference':>10} {'relative':>9}")
        for name, distance, relative in tensors:
            print(f"{name:<44} {distance:>10.4g} {relative:>9.2%}")
    x = None if data is None else windows_for(data, first)
    same = None
    if x is not None:
        answers = [
            load_whole(to_onnx_file(model.bundle, model.tensors, {}))(
                np.ascontiguousarray(x, np.float32)
            )
            for model in models
        ]
        same = agreement(first.bundle.manifest.task, *answers)
    if as_json:
        fields = ("name", "difference", "relative")
        print_json(
            {
                "tensors": [dict(zip(fields, each, strict=True)) for each in tensors],
                "agreement": same,
            }
        )
    elif x is not None:
        print(f"both say the same of {same:.2%} of {len(x)} windows")


def _line(version: Version) -> str:
    """Return a version's line in the table, with a dash if no device has evaluated it."""
    evaluated = version.evaluated.values()
    accuracy, loss = _mean([m.accuracy for m in evaluated]), _mean([m.mean_loss for m in evaluated])
    return (
        f"{version.round:>8}  {len(version.models):>6}  {len(evaluated):>7}  {accuracy:>8}  "
        f"{loss:>8}"
    )


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "-"
