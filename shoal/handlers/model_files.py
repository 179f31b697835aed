"""`shoal models export`, `inspect` and `diff`: the models that a service holds, one by one."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from shoal.folders import prepare_folder
from shoal.held_model import (
    HeldModel,
    chosen_of_run,
    chosen_release,
    groups_of_run,
    read_model,
    read_release,
    state_of,
)
from shoal.printing import print_json
from wire.arrays.tensors import Array
from wire.errors import ConfigError, DataError

if TYPE_CHECKING:
    from algorithms.core.contract import Probe


TOGETHER = ("safetensors", "pt", "onnx")
"""The forms that are written into a folder."""


def export_model(
    folder: Path,
    to: Path,
    run: str,
    group: str,
    made_in: int | None,
    release: int | None,
    fleet: str,
    probe: Path | None,
    max_batch: int,
    database: str,
) -> None:
    """Carry out `shoal models export`."""
    if to.suffix:
        held = _chosen(folder, run, group, made_in, release, fleet, database)
        _write(held, to, _payload(held, to, probe, max_batch))
        return
    if release is not None:
        models = {
            f"release-{release}": _chosen(folder, run, group, made_in, release, fleet, database)
        }
    else:
        groups = [group] if group else groups_of_run(state_of(folder, run, database), run, made_in)
        models = {
            f"group-{quote(key, safe='')}": _held(folder, run, key, made_in, database)
            for key in groups
        }
    prepare_folder(to, "--to")
    for name, held in models.items():
        for form in TOGETHER:
            _write(
                held, to / f"{name}.{form}", _payload(held, to / f"{name}.{form}", None, max_batch)
            )


def _payload(held: HeldModel, to: Path, probe: Path | None, max_batch: int) -> bytes:
    """The file of a model, in the form that the end of its name says.

    Raises:
        ConfigError: there is no such form, or the model cannot be written in it.
    """
    from export.model_file import (
        FORMS,
        to_executorch_file,
        to_onnx_file,
        to_safetensors_file,
        to_torch_file,
    )

    match to.suffix.removeprefix("."):
        case "onnx":
            return to_onnx_file(held.bundle, held.tensors, held.about)
        case "pt":
            return to_torch_file(held.exchanged, held.about)
        case "safetensors":
            return to_safetensors_file(held.exchanged, held.about)
        case "pte":
            return to_executorch_file(
                held.bundle, held.tensors, _probe(probe, held), max_batch, lambda text: print(text)
            )
    raise ConfigError(
        f"--to {to}: expected a name that ends with {', '.join(f'.{name}' for name in FORMS)}"
    )


def _write(held: HeldModel, to: Path, payload: bytes) -> None:
    from host.files import write_atomically

    try:
        write_atomically(to, payload)
    except OSError as error:
        raise ConfigError(f"--to {to}: {error.strerror}") from None
    print(f"{to}: {len(payload):,} bytes, model {held.chosen.name} ({held.chosen.model[:12]})")
    if own := [spec.name for spec in held.bundle.manifest.of_role("private")]:
        print(
            f"devices answer with tensors of their own beside it: here {', '.join(own)} "
            f"{'has' if len(own) == 1 else 'have'} initial values"
        )


def inspect_model(
    folder: Path,
    run: str,
    group: str,
    made_in: int | None,
    release: int | None,
    fleet: str,
    database: str,
    as_json: bool,
) -> None:
    """Carry out `shoal models inspect`."""
    held = _chosen(folder, run, group, made_in, release, fleet, database)
    tensors = [
        {
            "name": name,
            "shape": tensor.shape,
            "norm": float(np.linalg.norm(tensor.astype(np.float64).ravel())),
        }
        for name, tensor in held.exchanged.items()
    ]
    if as_json:
        print_json({**held.about, "classes": held.bundle.manifest.classes, "tensors": tensors})
        return
    for key, value in held.about.items():
        print(f"{key:<10} {value.replace(chr(10), ', ')}")
    print(f"\n{'tensor':<44} {'shape':>16} {'norm':>10}")
    for row in tensors:
        print(
            f"{row['name']:<44} {'x'.join(map(str, row['shape'])) or '-':>16} {row['norm']:>10.4g}"
        )


def diff_models(
    folder: Path,
    one: str,
    other: str,
    run: str,
    data: Path | None,
    database: str,
    as_json: bool,
) -> None:
    """Carry out `shoal models diff`."""
    from export.model_file import agreement, norms, to_onnx_file
    from export.runtimes import load_whole

    models = [_held(folder, run, *_reference(text), database) for text in (one, other)]
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
    x = None if data is None else _windows(data, first)
    same = None
    if x is not None:
        answers = [
            load_whole(to_onnx_file(held.bundle, held.tensors, {}))(
                np.ascontiguousarray(x, np.float32)
            )
            for held in models
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


def _windows(data: Path, held: HeldModel) -> Array:
    """
    Raises:
        DataError: the file has no windows of the model's shape.
    """
    from edge_client.data.windows import read_windows

    x = read_windows(data, held.bundle.manifest.window)
    if x.shape[1:] != held.bundle.manifest.window.shape or not len(x):
        raise DataError(
            f"{data}: windows {list(x.shape)}, expected some of shape "
            f"{list(held.bundle.manifest.window.shape)}"
        )
    return x


def _chosen(
    folder: Path,
    run: str,
    group: str,
    made_in: int | None,
    release: int | None,
    fleet: str,
    database: str,
) -> HeldModel:
    if release is None:
        return _held(folder, run, group, made_in, database)
    if group or made_in is not None:
        raise ConfigError("--release names a model by itself: leave --group and --round out")
    return read_release(folder, chosen_release(folder, fleet, release))


def _held(folder: Path, run: str, group: str, made_in: int | None, database: str) -> HeldModel:
    return read_model(
        folder, run, chosen_of_run(state_of(folder, run, database), run, group, made_in)
    )


def _reference(text: str) -> tuple[str, int | None]:
    """GROUP[@ROUND]."""
    group, at, number = text.partition("@")
    if at and not number.isdecimal():
        raise ConfigError(f"model {text!r}: expected GROUP or GROUP@ROUND, where ROUND is a number")
    return group, int(number) if at else None


def _probe(path: Path | None, held: HeldModel) -> "Probe":
    from aggregator.aggregation.probe_file import load_probe

    if path is None:
        raise ConfigError(
            "a *.pte is made of the model's own code: --probe names server.pt2, which `shoal "
            "export` wrote beside the bundle"
        )
    try:
        return load_probe(path.read_bytes(), held.bundle.digest)
    except OSError as error:
        raise ConfigError(f"--probe {path}: {error.strerror}") from None
