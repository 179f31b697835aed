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
class HeldModel:
    """A model with its bundle. `tensors` are all that its graph reads: what a device keeps to
    itself has its initial value."""

    name: str
    """Name of the model."""
    digest: str
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
            "name": self.name,
            "classes": "\n".join(manifest.classes),
            "bundle": f"{manifest.name} {manifest.version} {self.bundle.digest}",
            "model": self.digest,
        }


def models_of_run(state: RunState, run: str, made_in: int | None) -> Mapping[str, str]:
    """The digests of the models by group: of the round that made them, or of those on offer now.

    Raises:
        ConfigError: the run does not remember that round.
    """
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


def _read(blobs: BlobFolder, name: str, bundle_digest: str, digest: str) -> HeldModel:
    """Read a model.

    Raises:
        BlobLost: its bundle or its tensors are not kept, or damaged.
        WireError: they are not what they should be.
    """
    bundle = unpack(blobs.get(bundle_digest))
    model = decode_tensors(blobs.get(digest), OWN_FILES)[0]
    received = [(s.key, s.dtype, s.shape) for s in bundle.manifest.received()]
    check_layout(model, received, f"model {digest[:12]}")
    return HeldModel(name, digest, bundle, {**bundle.initial, **model})


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
    print(f"{to}: {len(payload):,} bytes, model {held.name} ({held.digest[:12]})")
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
    """Read the model of a release of the fleet, or where none is named that of a group of a run.

    Raises:
        ConfigError: there is no such release, or as of `held_by_run`.
    """
    if release is None:
        return held_by_run(folder, run, group, made_in, database)
    if group or made_in is not None:
        raise ConfigError("--release names a model by itself: leave --group and --round out")
    state = read_whole(folder).fleets.get(fleet)
    one = state.catalogue.releases.get(release) if state is not None else None
    if one is None:
        raise ConfigError(
            f"--release {release}: fleet {fleet} has none of this number; `shoal models list` says "
            "which there are"
        )
    blobs = BlobFolder(folder / RELEASES)
    return _read(blobs, f"release {release}, {one.group}", one.bundle, one.model)


def held_by_run(
    folder: Path, run: str, group: str, made_in: int | None, database: str
) -> HeldModel:
    """Read the model of a group of a run: of the round that made it, or the one on offer now.

    Raises:
        ConfigError: the run has no such model, or several and none was named.
    """
    state = state_of(folder, run, database)
    named = models_of_run(state, run, made_in)
    if not group and len(named) == 1:
        (group,) = named
    if group not in named:
        problem = (
            f"--group {group}: run {run} has no such group"
            if group
            else f"run {run} has several models: say which with --group"
        )
        raise ConfigError(f"{problem}; its groups are {', '.join(sorted(named))}")
    name = f"{run} {group}@{state.made_in if made_in is None else made_in}"
    return _read(BlobFolder(folder / "blobs" / run), name, state.settings.bundle, named[group])


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
