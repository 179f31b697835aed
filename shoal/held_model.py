"""A model that a service holds in its folder: which one is meant, and its bundle and tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aggregator.core.state import RunState
from aggregator.maintenance.database import read_whole
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.charter import RELEASES
from aggregator.storage.engine import database_name
from aggregator.storage.sql_store import load_run
from host.files import write_atomically
from wire.arrays.tensors import OWN_FILES, Array, Tensors, check_layout, decode_tensors
from wire.bundle import Bundle, unpack
from wire.errors import ConfigError, DataError

if TYPE_CHECKING:
    from algorithms.core.contract import Probe


@dataclass(frozen=True)
class Chosen:
    """Which model is meant: the digests of its bundle and of its tensors, and what it is called."""

    bundle: str
    model: str
    name: str


@dataclass(frozen=True)
class HeldModel:
    """A model with its bundle. `tensors` are all that its graph reads: what a device keeps to
    itself has its initial value."""

    chosen: Chosen
    bundle: Bundle
    tensors: Tensors

    @property
    def exchanged(self) -> Tensors:
        """What devices receive of it."""
        return {spec.key: self.tensors[spec.key] for spec in self.bundle.manifest.received()}

    @property
    def about(self) -> dict[str, str]:
        """What a file says of the model."""
        manifest = self.bundle.manifest
        return {
            "name": self.chosen.name,
            "classes": "\n".join(manifest.classes),
            "bundle": f"{manifest.name} {manifest.version} {self.bundle.digest}",
            "model": self.chosen.model,
        }


def groups_of_run(state: RunState, run: str, made_in: int | None) -> list[str]:
    """The groups that have a model: of the round that made them, or of those on offer now.

    Raises:
        ConfigError: the run does not remember that round.
    """
    return sorted(_models_of(state, run, made_in))


def _models_of(state: RunState, run: str, made_in: int | None) -> Mapping[str, str]:
    models = {state.made_in: state.models} | {
        version.round: version.models for version in state.history if version.round != state.made_in
    }
    number = state.made_in if made_in is None else made_in
    if number not in models:
        raise ConfigError(
            f"--round {made_in}: run {run} remembers the models of the rounds "
            f"{', '.join(map(str, sorted(models)))}"
        )
    return models[number]


def chosen_of_run(state: RunState, run: str, group: str, made_in: int | None) -> Chosen:
    """The model of a group of a run; of the round that made it, or the one on offer now.

    Raises:
        ConfigError: the run has no such model, or several and none was named.
    """
    named = _models_of(state, run, made_in)
    number = state.made_in if made_in is None else made_in
    if not group and len(named) == 1:
        (group,) = named
    if group not in named:
        said = (
            f"--group {group}: run {run} has no such group"
            if group
            else f"run {run} has several models: say which with --group"
        )
        raise ConfigError(f"{said}; its groups are {', '.join(sorted(named))}")
    return Chosen(state.settings.bundle, named[group], f"{run} {group}@{number}")


def chosen_release(folder: Path, fleet: str, number: int) -> Chosen:
    """The model of a release, in the database of a service's folder.

    Raises:
        ConfigError: the fleet has no such release.
    """
    state = read_whole(folder).fleets.get(fleet)
    release = state.catalogue.releases.get(number) if state is not None else None
    if release is None:
        raise ConfigError(
            f"--release {number}: fleet {fleet} has none of this number; `shoal models list` says "
            "which there are"
        )
    return Chosen(release.bundle, release.model, f"release {number}, {release.group}")


def read_release(folder: Path, chosen: Chosen) -> HeldModel:
    """Read a model that a fleet has released.

    Raises:
        BlobLost: it is not kept any more, or damaged.
        WireError: it is not what it should be.
    """
    return _read(BlobFolder(folder / RELEASES), chosen)


def read_model(folder: Path, run: str, chosen: Chosen) -> HeldModel:
    """Read a model that a run holds in a service's folder.

    Raises:
        BlobLost: its bundle or its tensors are not there, or damaged.
        WireError: they are not what they should be.
    """
    return _read(BlobFolder(folder / "blobs" / run), chosen)


def _read(blobs: BlobFolder, chosen: Chosen) -> HeldModel:
    bundle = unpack(blobs.get(chosen.bundle))
    model = decode_tensors(blobs.get(chosen.model), OWN_FILES)[0]
    check_layout(
        model,
        [(s.key, s.dtype, s.shape) for s in bundle.manifest.received()],
        f"model {chosen.model[:12]}",
    )
    return HeldModel(chosen, bundle, {**bundle.initial, **model})


def state_of(folder: Path, run: str, database: str = "") -> RunState:
    """A run's state. Of SQLite in the folder, it is read without a trace.

    Raises:
        ConfigError: there is no such run, or the database cannot be opened or is damaged.
        StorageFailed: the database cannot be read.
    """
    if database:
        state = load_run(database, run)
        if state is None:
            raise ConfigError(
                f"database {database_name(database)}: there is no run {run!r} (--run)"
            )
    else:
        runs = read_whole(folder).runs
        if run not in runs:
            raise ConfigError(f"folder {folder}: there is no run {run!r} (--run)")
        state = runs[run].state
    if state is None:
        raise ConfigError(f"folder {folder}: run {run!r} has not begun")
    return state


def model_payload(held: HeldModel, to: Path, probe: Path | None, max_batch: int) -> bytes:
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


def write_model(held: HeldModel, to: Path, payload: bytes) -> None:
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


def windows_for(data: Path, held: HeldModel) -> Array:
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


def model_of(
    folder: Path,
    run: str,
    group: str,
    made_in: int | None,
    release: int | None,
    fleet: str,
    database: str,
) -> HeldModel:
    if release is None:
        return held_by_run(folder, run, group, made_in, database)
    if group or made_in is not None:
        raise ConfigError("--release names a model by itself: leave --group and --round out")
    return read_release(folder, chosen_release(folder, fleet, release))


def held_by_run(
    folder: Path, run: str, group: str, made_in: int | None, database: str
) -> HeldModel:
    return read_model(
        folder, run, chosen_of_run(state_of(folder, run, database), run, group, made_in)
    )


def read_reference(text: str) -> tuple[str, int | None]:
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
