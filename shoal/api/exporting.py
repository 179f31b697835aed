"""The function `shoal.export`: `shoal export` from Python."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from algorithms.composition import Given, algorithm_of
from algorithms.spec import DEFAULT_ALGORITHM
from export.bundle import MAX_BATCH
from export.publish import Publication, own_key, publish, read_key
from export.runtimes import ONNX
from host.files import prepare_folder
from host.settings import check
from host.threads import one_thread
from shoal.api.pointing import pointing
from simulation.datasets.catalog import Cuts, load_data
from simulation.datasets.doubts import doubts
from simulation.datasets.windows import FleetData, for_task
from simulation.objective import ModelMaker, objective_for_fleet, objective_on, suited
from simulation.settings import ExportWords
from wire.errors import ConfigError


@pointing()
def export(
    data: FleetData | str | Path,
    out: str | Path,
    *,
    algorithm: Given = DEFAULT_ALGORITHM,
    model: str | nn.Module | ModelMaker = "",
    pretrain: str = "",
    privacy: str = "",
    window: int = 0,
    stride: int = 0,
    steps: int = 0,
    rate: float = 0.0,
    seed: int = 0,
    bundle_version: int = 1,
    key: str | Path | None = None,
    runtimes: str | Sequence[str] = ONNX,
    max_batch: int = MAX_BATCH,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> Publication:
    """Export the training step of a model and an algorithm for devices.

    The step is checked against eager torch and signed. The files ``device.shoal``, ``server.pt2``,
    ``trust.pem`` and ``signing.key`` are written into `out`. The options are those of `shoal
    export`. `on_progress` gets a line about each step, which for a large model takes minutes.

    Raises:
        ConfigError: options that do not fit each other or the data, or an operator that cannot be
            exported; the text names it.
        DataError: the data cannot be read.
        ParityError: an exported graph and eager torch give different results.
    """
    check(ExportWords, {"seed": seed, "bundle_version": bundle_version, "max_batch": max_batch})
    folder, key_file = prepare_folder(Path(out)), None if key is None else Path(key)
    if key_file is not None and not key_file.exists():
        raise ConfigError(f"key {key_file}: no such file; leave key out to make one in {folder}")
    signing = own_key(folder) if key_file is None else read_key(key_file)
    cuts = Cuts(window, stride, steps, rate)
    fleet = data if isinstance(data, FleetData) else load_data(str(data), cuts)
    spec = suited(algorithm_of(algorithm), fleet).with_privacy(privacy)
    for doubt in doubts(fleet, spec.has_classes):
        warnings.warn(doubt, stacklevel=3)
    on_progress("making the model")
    fleet = for_task(fleet, spec.parts.task.of)
    if pretrain and not isinstance(model, str):
        raise ConfigError(
            "pretrain must be left out with a model of your own, which brings its weights, got "
            f"{pretrain!r}"
        )
    with one_thread():
        objective = (
            objective_for_fleet(fleet, spec, seed, model, pretrain)
            if isinstance(model, str)
            else objective_on(model, fleet, spec, seed)
        )
    published = publish(
        *(objective, fleet.window, fleet.classes, fleet.sample(), signing),
        name=fleet.name,
        version=bundle_version,
        runtimes=runtimes.split(",") if isinstance(runtimes, str) else list(runtimes),
        max_batch=max_batch,
        on_progress=on_progress,
    )
    published.write(folder, None if key is not None else signing)
    return published
