"""`shoal.export`: what the command of this name does, from Python."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from algorithms.composition import AlgorithmSpec, Given, algorithm_of
from algorithms.spec import DEFAULT_ALGORITHM
from export.bundle import MAX_BATCH
from export.publish import Publication, own_key, publish, read_key
from export.runtimes import ONNX
from host.files import prepare_folder
from host.settings import check
from shoal.campaign_settings import with_privacy
from simulation.datasets.catalog import load_data
from simulation.datasets.doubts import doubts
from simulation.datasets.windows import FleetData, for_task
from simulation.objective import ModelMaker, objective_for_fleet, objective_on, suited
from simulation.settings import ExportWords
from wire.errors import ConfigError


def export(
    data: FleetData | str | Path,
    out: str | Path,
    *,
    algorithm: Given = DEFAULT_ALGORITHM,
    model: str | nn.Module | ModelMaker = "",
    pretrain: str = "",
    privacy: str = "",
    seed: int = 0,
    bundle_version: int = 1,
    key: str | Path | None = None,
    runtimes: str | Sequence[str] = ONNX,
    max_batch: int = MAX_BATCH,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Publication:
    """Export the training step of a model and an algorithm for devices, check it against eager
    torch, sign it, and write ``device.shoal``, ``server.pt2``, ``trust.pem`` and ``signing.key``
    into `out`. The options are those of `shoal export`. `on_progress` is told what is being done:
    for a large model this takes minutes.

    Raises:
        ConfigError: options that do not fit each other or the data, or an operator that cannot be
        exported; the text names it.
        DataError: the data cannot be read.
        ParityError: an exported graph does not do what eager torch does.
    """
    fleet = data if isinstance(data, FleetData) else load_data(str(data))
    spec = algorithm_of(algorithm)
    for said in doubts(fleet, suited(spec, fleet).has_classes):
        warnings.warn(said, stacklevel=2)
    own_key_path = Path(key) if key is not None else None
    asked = runtimes.split(",") if isinstance(runtimes, str) else list(runtimes)
    return write_bundle(
        fleet,
        Path(out),
        spec,
        model,
        pretrain,
        privacy,
        seed,
        bundle_version,
        own_key_path,
        asked,
        max_batch,
        on_progress,
    )


def write_bundle(
    fleet: FleetData,
    out: Path,
    algorithm: AlgorithmSpec,
    model: str | nn.Module | ModelMaker,
    pretrain: str,
    privacy: str,
    seed: int,
    bundle_version: int,
    key: Path | None,
    runtimes: Sequence[str],
    max_batch: int,
    on_progress: Callable[[str], None],
) -> Publication:
    """The same for a fleet's data, without a word about them."""
    check(ExportWords, {"seed": seed, "bundle_version": bundle_version, "max_batch": max_batch})
    prepare_folder(out)
    if key is not None and not key.exists():
        raise ConfigError(f"--key {key}: there is no such file")
    signing = read_key(key) if key is not None else own_key(out)
    on_progress("making the model")
    spec = with_privacy(suited(algorithm, fleet), privacy)
    fleet = for_task(fleet, spec.parts.task.of)
    if isinstance(model, str):
        objective = objective_for_fleet(fleet, spec, seed, model, pretrain)
    elif pretrain:
        raise ConfigError(
            f"pretrain {pretrain!r}: a model of your own brings its weights; expected a model's "
            "name"
        )
    else:
        objective = objective_on(model, fleet, spec, seed)
    published = publish(
        *(objective, fleet.window, fleet.classes, fleet.sample(), signing),
        name=fleet.name,
        version=bundle_version,
        runtimes=runtimes,
        max_batch=max_batch,
        on_progress=on_progress,
    )
    published.write(out, None if key is not None else signing)
    return published
