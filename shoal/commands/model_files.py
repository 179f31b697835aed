"""`shoal models export`, `inspect` and `diff`: the models that a service holds, one by one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import numpy as np
import typer

from shoal.arguments import Database, Folder, Run
from shoal.folders import prepare_folder
from shoal.held_model import HeldModel, chosen_of_run, chosen_release, groups_of_run, read_model, read_release, state_of
from wire.errors import ConfigError, DataError

if TYPE_CHECKING:
    from algorithms.core.contract import Probe

TOGETHER = ("safetensors", "pt", "onnx")
"""The forms that are written into a folder."""
Group = Annotated[str, typer.Option(help="The group whose model is meant; it may be left out where there is one model.")]
Released = Annotated[int | None, typer.Option("--release", min=1, help="The number of a release, in place of a campaign's model.")]
Fleet = Annotated[str, typer.Option(help="Name of the fleet, for --release.")]
Round = Annotated[
    int | None, typer.Option("--round", min=0, help="The round that made the model; the one on offer now when it is left out.")
]


def export_model(
    folder: Folder,
    to: Annotated[
        Path,
        typer.Option(
            help="The file to write: *.onnx, *.pte, *.pt or *.safetensors. Or a folder, a name without an ending, for *.safetensors, "
            "*.pt and *.onnx of every group."
        ),
    ],
    run: Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    fleet: Fleet = "default",
    probe: Annotated[Path | None, typer.Option(help="For *.pte: server.pt2 of the bundle's folder.")] = None,
    max_batch: Annotated[int, typer.Option(min=8, help="For *.pte: windows in a batch, at most.")] = 64,
    database: Database = "",
) -> None:
    """Write a model with its weights inside into a file that other programs read, or the models of all groups into a folder."""
    if to.suffix:
        held = _chosen(folder, run, group, made_in, release, fleet, database)
        _write(held, to, _payload(held, to, probe, max_batch))
        return
    if release is not None:
        models = {f"release-{release}": _chosen(folder, run, group, made_in, release, fleet, database)}
    else:
        groups = [group] if group else groups_of_run(state_of(folder, run, database), run, made_in)
        models = {f"group-{quote(key, safe='')}": _held(folder, run, key, made_in, database) for key in groups}
    prepare_folder(to, "--to")
    for name, held in models.items():
        for form in TOGETHER:
            _write(held, to / f"{name}.{form}", _payload(held, to / f"{name}.{form}", None, max_batch))


def _payload(held: HeldModel, to: Path, probe: Path | None, max_batch: int) -> bytes:
    """The file of a model, in the form that the end of its name says.

    Raises:
        ConfigError: there is no such form, or the model cannot be written in it.
    """
    from export.model_file import FORMS, to_executorch_file, to_onnx_file, to_safetensors_file, to_torch_file

    match to.suffix.removeprefix("."):
        case "onnx":
            return to_onnx_file(held.bundle, held.tensors, held.about)
        case "pt":
            return to_torch_file(held.exchanged, held.about)
        case "safetensors":
            return to_safetensors_file(held.exchanged, held.about)
        case "pte":
            return to_executorch_file(held.bundle, held.tensors, _probe(probe, held), max_batch, lambda text: print(text))
    raise ConfigError(f"--to {to}: expected a name that ends with {', '.join(f'.{name}' for name in FORMS)}")


def _write(held: HeldModel, to: Path, payload: bytes) -> None:
    from host.files import write_atomically

    try:
        write_atomically(to, payload)
    except OSError as error:
        raise ConfigError(f"--to {to}: {error.strerror}") from None
    print(f"{to}: {len(payload):,} bytes, model {held.chosen.name} ({held.chosen.model[:12]})")
    if own := [spec.name for spec in held.bundle.manifest.of_role("private")]:
        print(
            f"devices answer with tensors of their own beside it: here {', '.join(own)} {'has' if len(own) == 1 else 'have'} initial values"
        )


def inspect_model(
    folder: Folder,
    run: Run = "run-1",
    group: Group = "",
    made_in: Round = None,
    release: Released = None,
    fleet: Fleet = "default",
    database: Database = "",
) -> None:
    """Print what a model is made of: its bundle, and each tensor with its norm."""
    held = _chosen(folder, run, group, made_in, release, fleet, database)
    for key, value in held.about.items():
        print(f"{key:<10} {value.replace(chr(10), ', ')}")
    print(f"\n{'tensor':<44} {'shape':>16} {'norm':>10}")
    for name, tensor in held.exchanged.items():
        print(f"{name:<44} {'x'.join(map(str, tensor.shape)) or '-':>16} {np.linalg.norm(tensor.astype(np.float64).ravel()):>10.4g}")


def diff_models(
    folder: Folder,
    one: Annotated[str, typer.Argument(help="GROUP, or GROUP@ROUND for the model that a round made.")],
    other: Annotated[str, typer.Argument(help="The model to compare with it.")],
    run: Run = "run-1",
    data: Annotated[Path | None, typer.Option(help="Windows (*.npy, *.npz or *.csv): how often do both say the same?")] = None,
    database: Database = "",
) -> None:
    """Compare two models tensor by tensor, and by what they say of windows."""
    from edge_client.adapters.windows import read_windows
    from export.model_file import agreement, norms, to_onnx_file
    from export.runtimes import load_whole

    models = [_held(folder, run, *_reference(text), database) for text in (one, other)]
    first, second = models
    if first.exchanged.keys() != second.exchanged.keys():
        raise ConfigError(f"{one} and {other} are of bundles with other tensors: {first.about['bundle']} and {second.about['bundle']}")
    print(f"{'tensor':<44} {'difference':>10} {'relative':>9}")
    for name, distance, relative in norms(first.exchanged, second.exchanged):
        print(f"{name:<44} {distance:>10.4g} {relative:>9.2%}")
    if data is None:
        return
    x = read_windows(data, first.bundle.manifest.window)
    if x.shape[1:] != first.bundle.manifest.window.shape or not len(x):
        raise DataError(f"{data}: windows {list(x.shape)}, expected some of shape {list(first.bundle.manifest.window.shape)}")
    answers = [load_whole(to_onnx_file(held.bundle, held.tensors, {}))(np.ascontiguousarray(x, np.float32)) for held in models]
    print(f"both say the same of {agreement(*answers):.2%} of {len(x)} windows")


def _chosen(folder: Path, run: str, group: str, made_in: int | None, release: int | None, fleet: str, database: str) -> HeldModel:
    if release is None:
        return _held(folder, run, group, made_in, database)
    if group or made_in is not None:
        raise ConfigError("--release names a model by itself: leave --group and --round out")
    return read_release(folder, chosen_release(folder, fleet, release))


def _held(folder: Path, run: str, group: str, made_in: int | None, database: str) -> HeldModel:
    return read_model(folder, run, chosen_of_run(state_of(folder, run, database), run, group, made_in))


def _reference(text: str) -> tuple[str, int | None]:
    """GROUP[@ROUND]."""
    group, at, number = text.partition("@")
    if at and not number.isdecimal():
        raise ConfigError(f"model {text!r}: expected GROUP or GROUP@ROUND, where ROUND is a number")
    return group, int(number) if at else None


def _probe(path: Path | None, held: HeldModel) -> "Probe":
    from aggregator.adapters.probe_file import load_probe

    if path is None:
        raise ConfigError("a *.pte is made of the model's own code: --probe names server.pt2, which `shoal export` wrote beside the bundle")
    try:
        return load_probe(path.read_bytes(), held.bundle.digest)
    except OSError as error:
        raise ConfigError(f"--probe {path}: {error.strerror}") from None
