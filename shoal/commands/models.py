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
    typer.Option(help="Campaign whose rollout is meant; without it, the only one in progress."),
]


Group = Annotated[
    str,
    typer.Option(help="Group whose model is meant; not needed where there is one model."),
]


Released = Annotated[
    int | None,
    typer.Option("--release", min=1, help="Number of a release whose model is meant instead."),
]


Round = Annotated[
    int | None,
    typer.Option(
        "--round",
        min=0,
        help="Round of the model; without it, the current model.",
    ),
]


models = typer.Typer(
    rich_markup_mode=None,
    help="Show and roll out a fleet's releases, and write its models as files.",
    no_args_is_help=True,
)


@models.command("list")
@command()
def list_releases(
    folder: opt.Folder,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """List the releases of a fleet, the latest last.

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
    number: Annotated[int, typer.Argument(help="Number of the release.")],
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Show all that the service knows of a release."""
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
                f"{accuracy_text(release)} of the group model, on {release.metrics.num_examples} "
                "windows of its devices",
            )
        if name == "in_use":
            name, value = "in use", f"on {value} device{'' if value == 1 else 's'}"
        print(f"{name.replace('_', ' '):<10}  {value}")


@models.command("release")
@command()
def make_releases(
    folder: opt.Folder,
    campaign: Annotated[
        str, typer.Option(help="Name of the campaign whose models are released.")
    ] = "run-1",
    roll_out: Annotated[bool, typer.Option(help="Begin to roll them out.")] = True,
) -> None:
    """Make a release of each group's latest model.

    Unless --no-roll-out is given, they are rolled out.
    """
    from aggregator.http.local import order

    print(order(folder, "releases", campaign=campaign, roll_out=roll_out))


@models.command("rollout")
@command()
def rollout(
    folder: opt.Folder,
    campaign: Campaign = "",
    pause: Annotated[
        bool, typer.Option("--pause", help="Offer the releases to no further device.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a paused rollout.")] = False,
    promote: Annotated[
        bool, typer.Option("--promote", help="Begin the next step, whatever devices answer.")
    ] = False,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Show the progress of rollouts; pause, resume or promote one."""
    from aggregator.http.local import order
    from aggregator.maintenance.database import read_view
    from shoal.releases import print_progress, under_way

    view = read_view(folder, database)
    if pause + resume + promote > 1:
        raise ConfigError("--pause, --resume and --promote exclude each other; give one of them")
    if not (pause or resume or promote):
        shown = [each for each in view.rollouts if campaign in ("", each.campaign)]
        if as_json:
            print_json(shown)
            return
        for progress in shown:
            print_progress(progress)
        if not shown:
            print("There is no rollout yet" + (f" of campaign {campaign}." if campaign else "."))
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
            help="Release to which its group returns; 0: end the rollout in progress.",
        ),
    ] = 0,
    group: Annotated[
        str, typer.Option(help="Group that returns to it, if it is another than the release's.")
    ] = "",
    campaign: Campaign = "",
    database: opt.Database = "",
) -> None:
    """Return to an earlier release, or end a rollout.

    All devices of the release's group return to it at once. When a rollout ends, devices return to
    the models that they had.
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
    """List the models of a campaign's last rounds.

    The current ones are the last. Accuracy and loss are means over devices, on their own test
    windows.
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
    print("Group models; accuracy and loss are means over devices, on their own test windows")
    print(f"{'round':>8}  {'models':>6}  {'devices':>7}  {'accuracy':>8}  {'loss':>8}")
    for version in versions:
        print(_line(version) + ("  offered now" if version is current else ""))


@models.command("export")
@command()
def export_model(
    folder: opt.Folder,
    to: Annotated[
        Path,
        typer.Option(
            help="File to write: *.onnx, *.pte, *.pt or *.safetensors. A name without an ending "
            "is a folder for the *.safetensors, *.pt and *.onnx files of every group."
        ),
    ],
    run: opt.Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    probe: Annotated[
        Path | None, typer.Option(help="server.pt2 of the bundle's folder, for *.pte.")
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=8, help="Maximum number of windows in a batch, for *.pte.")
    ] = 64,
    database: opt.Database = "",
) -> None:
    """Write a model to a file for other programs.

    With a folder in place of the file, the models of all groups are written.
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
    """Print the bundle of a model, and its tensors with their norms."""
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
    one: Annotated[str, typer.Argument(help="GROUP, or GROUP@ROUND for its model after a round.")],
    other: Annotated[str, typer.Argument(help="Model to compare with it.")],
    run: opt.Run = "run-1",
    data: Annotated[
        Path | None,
        typer.Option(help="Windows (*.npy, *.npz or *.csv) on which answers are compared."),
    ] = None,
    database: opt.Database = "",
    as_json: opt.Json = False,
) -> None:
    """Compare two models by their tensors and answers."""
    import numpy as np

    from export.model_file import agreement, norms, to_onnx_file
    from export.runtimes import load_whole
    from shoal.held_model import held_by_run, windows_for

    models = []
    for text in (one, other):
        group, at, number = text.partition("@")
        if at and not number.isdecimal():
            raise ConfigError(
                f"model must be GROUP or GROUP@ROUND, with a number for ROUND, got {text!r}"
            )
        models.append(held_by_run(folder, run, group, int(number) if at else None, database))
    first, second = models
    if first.exchanged.keys() != second.exchanged.keys():
        raise ConfigError(
            f"Models {one} and {other} cannot be compared, since their bundles have different "
            f"tensors: {first.about['bundle']} and {second.about['bundle']}"
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
        print(f"both models give the same answer on {same:.2%} of {len(x)} windows")


def _line(version: Version) -> str:
    """Return a version's line in the table, with a dash if no device has evaluated it."""
    from aggregator.http.pages.words import percent

    evaluated = version.evaluated.values()
    accuracy, loss = "-", "-"
    if evaluated:
        accuracy = percent(fmean(m.accuracy for m in evaluated))
        loss = f"{fmean(m.mean_loss for m in evaluated):.4f}"
    return (
        f"{version.round:>8}  {len(version.models):>6}  {len(evaluated):>7}  {accuracy:>8}  "
        f"{loss:>8}"
    )
