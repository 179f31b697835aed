"""A model in a service's folder: the choice by release or campaign, and its bundle and tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aggregator.fleet.records import Campaign
from aggregator.maintenance.database import read_view
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.charter import RELEASES
from aggregator.storage.engine import database_name
from host.files import file_error, write_atomically
from wire.arrays.tensors import OWN_FILES, Array, Tensors, check_layout, decode_tensors
from wire.bundle import Bundle, unpack
from wire.errors import ConfigError, DataError

if TYPE_CHECKING:
    from algorithms.core.contract import Probe


@dataclass(frozen=True)
class HeldModel:
    """A model with its bundle and all tensors that its graph reads.

    Tensors that devices keep to themselves have their initial values.
    """

    name: str
    """Name of the model."""
    digest: str
    bundle: Bundle
    tensors: Tensors

    @property
    def exchanged(self) -> Tensors:
        """The tensors that devices receive."""
        return {spec.key: self.tensors[spec.key] for spec in self.bundle.manifest.received()}

    @property
    def about(self) -> dict[str, str]:
        """Metadata of a file with the model."""
        manifest = self.bundle.manifest
        return {
            "name": self.name,
            "classes": "\n".join(manifest.classes),
            "bundle": f"{manifest.name} {manifest.version} {self.bundle.digest}",
            "model": self.digest,
        }


def models_of_run(campaign: Campaign, made_in: int | None) -> Mapping[str, str]:
    """Return the digests of a campaign's models by group, after round `made_in` or the latest.

    Raises:
        ConfigError: the models of that round are not stored.
    """
    versions = {version.round: version for version in reversed(campaign.versions)}
    number = campaign.version.round if made_in is None else made_in
    if number not in versions:
        raise ConfigError(
            f"No models of round {made_in} (--round) in run {campaign.name}. Rounds whose models "
            f"are stored: {', '.join(map(str, sorted(versions)))}."
        )
    return versions[number].models


def _read(blobs: BlobFolder, name: str, bundle_digest: str, digest: str) -> HeldModel:
    """Read a model.

    Raises:
        BlobLost: its bundle or its tensors are missing or damaged.
        WireError: they do not have the expected content.
    """
    bundle = unpack(blobs.get(bundle_digest))
    model = decode_tensors(blobs.get(digest), OWN_FILES)[0]
    received = [(s.key, s.dtype, s.shape) for s in bundle.manifest.received()]
    check_layout(model, received, f"model {digest[:12]}")
    return HeldModel(name, digest, bundle, {**bundle.initial, **model})


def campaign_of(folder: Path, run: str, database: str = "") -> Campaign:
    """Return a campaign of a folder, or of another database, without writing anything.

    Raises:
        ConfigError: there is no such campaign, or the database cannot be opened or is damaged.
        StorageFailed: the database cannot be read.
    """
    campaigns = read_view(folder, database).fleet.campaigns
    if run not in campaigns:
        where = f"database {database_name(database)}" if database else f"folder {folder}"
        names = ", ".join(campaigns) or "none"
        raise ConfigError(f"No run {run!r} (--run) in {where}. Known runs: {names}.")
    return campaigns[run]


def model_payload(model: HeldModel, to: Path, probe: Path | None, max_batch: int) -> bytes:
    """Return the content of a model's file, in the format of the file name's suffix.

    Raises:
        ConfigError: the suffix has no format, or the model cannot be written in it.
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
            return to_onnx_file(model.bundle, model.tensors, model.about)
        case "pt":
            return to_torch_file(model.exchanged, model.about)
        case "safetensors":
            return to_safetensors_file(model.exchanged, model.about)
        case "pte":
            return to_executorch_file(
                model.bundle,
                model.tensors,
                _probe(probe, model),
                max_batch,
                lambda text: print(text),
            )
    raise ConfigError(
        f"--to must end with one of {', '.join(f'.{name}' for name in FORMS)}, got {to}"
    )


def write_model(model: HeldModel, to: Path, payload: bytes) -> None:
    try:
        write_atomically(to, payload)
    except OSError as error:
        raise ConfigError(file_error(f"--to {to}", error)) from None
    print(f"{to}: {len(payload):,} bytes, model {model.name} ({model.digest[:12]})")
    if tensor_names := [spec.name for spec in model.bundle.manifest.of_role("private")]:
        print(
            f"devices also answer with tensors of their own: here {', '.join(tensor_names)} "
            f"{'has' if len(tensor_names) == 1 else 'have'} initial values"
        )


def windows_for(data: Path, model: HeldModel) -> Array:
    """Read the windows of a file for a model.

    Raises:
        DataError: the file has no windows of the model's shape.
    """
    from edge_client.data.windows import read_windows

    x = read_windows(data, model.bundle.manifest.window)
    if x.shape[1:] != model.bundle.manifest.window.shape or not len(x):
        raise DataError(
            f"{data}: expected windows of shape {list(model.bundle.manifest.window.shape)}, got "
            f"{list(x.shape)}"
        )
    return x


def model_of(
    folder: Path,
    run: str,
    group: str,
    made_in: int | None,
    release: int | None,
    database: str,
) -> HeldModel:
    """Read the model of a release, or of a group of a campaign if no release is named.

    Raises:
        ConfigError: there is no such release, or no such model (`held_by_run`).
    """
    if release is None:
        return held_by_run(folder, run, group, made_in, database)
    if group or made_in is not None:
        raise ConfigError("--release names a model by itself: leave --group and --round out")
    fleet = read_view(folder, database).fleet
    one = fleet.releases.get(release)
    if one is None:
        raise ConfigError(f"No release {release} (--release). `shoal models list` names all.")
    is_staged = any(release in r.releases.values() for r in fleet.rollouts if not r.direct)
    place = folder / RELEASES if is_staged else folder / "blobs" / one.campaign
    name = f"release {release}, {one.campaign}/{one.group}"
    return _read(BlobFolder(place), name, one.bundle, one.model)


def held_by_run(
    folder: Path, run: str, group: str, made_in: int | None, database: str
) -> HeldModel:
    """Read a group's model of a campaign: that after round `made_in`, or the latest.

    Raises:
        ConfigError: the campaign has no such model, or several and `group` is empty.
    """
    campaign = campaign_of(folder, run, database)
    named = models_of_run(campaign, made_in)
    if not group and len(named) == 1:
        (group,) = named
    if group not in named:
        problem = (
            f"No group {group!r} (--group) in run {run}."
            if group
            else f"Run {run} has several models. Choose one with --group."
        )
        raise ConfigError(f"{problem} Known groups: {', '.join(sorted(named))}.")
    name = f"{run} {group}@{campaign.version.round if made_in is None else made_in}"
    return _read(BlobFolder(folder / "blobs" / run), name, campaign.settings.bundle, named[group])


def _probe(path: Path | None, model: HeldModel) -> "Probe":
    from aggregator.aggregation.probe_file import load_probe

    if path is None:
        raise ConfigError(
            "--probe must be the path of server.pt2 for a *.pte; `shoal export` wrote it beside "
            "the bundle"
        )
    try:
        return load_probe(path.read_bytes(), model.bundle.digest)
    except OSError as error:
        raise ConfigError(file_error(f"--probe {path}", error)) from None
