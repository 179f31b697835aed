"""Results that the demonstration shows of secret mode: who has stored what, and the accuracy.

The demonstration has the devices' data on this machine, so it can compute what the aggregator never
learns, and search for it.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from aggregator.fleet.desired import trained_group
from aggregator.fleet.plan import round_seed
from aggregator.maintenance.database import read_view
from algorithms.algorithm import SURVEY
from algorithms.core.keys import NEWCOMER
from simulation.local.secret import carried_out, holds, needles
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors
from wire.messages import Evaluate

if TYPE_CHECKING:
    from aggregator.fleet.records import Campaign, Version
    from aggregator.storage.blob_folder import BlobFolder
    from aggregator.view.summary import Summary
    from simulation.datasets.windows import FleetData
    from wire.bundle import Bundle


def campaign_of(folder: Path, name: str) -> Campaign:
    """Return the record of a finished campaign."""
    return read_view(folder).fleet.campaigns[name]


def accuracy_here(fleet: FleetData, bundle: Bundle, campaign: Campaign, blobs: BlobFolder) -> float:
    """Return the mean accuracy (fraction) of the last models on the devices' own test windows."""
    models = {key: _model(campaign.version, key, blobs) for key in campaign.models}
    metrics = (
        carried_out(
            bundle,
            models[trained_group(campaign, device_id)],
            windows,
            device_id,
            (Evaluate("test"),),
            0,
        ).evaluated
        for device_id, windows in sorted(fleet.devices.items())
        if windows.num_test
    )
    return statistics.fmean(each.accuracy for each in metrics)


def stored_table(
    fleet: FleetData,
    bundle: Bundle,
    campaign: Campaign,
    blobs: BlobFolder,
    parties: Mapping[str, Iterable[Path]],
    carried: Sequence[bytes],
    number: int,
) -> Table:
    """Return a table of who has stored what, with the finds of a search.

    It searches for the last model, which everybody gets, and for secrets of one device: its change
    in the first round of training and, if groups were found, its survey.

    Args:
        fleet: the devices' data.
        bundle: bundle of the campaign.
        campaign: the campaign.
        blobs: its blobs.
        parties: folders of each party, by its name.
        carried: every payload that the broker has carried.
        number: number of the first round of training.
    """
    device_id, version = min(fleet.devices), campaign.version
    seed, windows = round_seed(campaign.settings.seed, number), fleet.devices[device_id]
    first = _model(version, NEWCOMER, blobs)
    last = _model(version, trained_group(campaign, device_id), blobs)
    secrets = {"change": version.programs[""]}
    if version.leaves:
        secrets["survey"] = (SURVEY,)
    wanted = {"the last model": needles(last)}
    for name, verbs in secrets.items():
        result = carried_out(bundle, first, windows, device_id, verbs, seed)
        wanted[f"the {name} of {device_id}"] = needles(result.tensors)
    table = Table("who", "bytes stored", *wanted, title="Who has stored what", title_justify="left")
    contents = {name: [*_files(paths)] for name, paths in parties.items()}
    contents["the broker, all it carried"] = list(carried)
    for name, texts in contents.items():
        finds = ("yes" if holds(texts, pieces) else "no" for pieces in wanted.values())
        table.add_row(name, f"{sum(map(len, texts)):,}", *finds)
    return table


def groups_text(fleet: FleetData, summary: Summary) -> str:
    """Return the number of devices in each group, by the true groups if the data have them."""
    labels_of: dict[int | None, Counter[str]] = defaultdict(Counter)
    for device_id, device in summary.devices.items():
        labels_of[device.group][fleet.truth.get(device_id, "devices")] += 1
    return "; ".join(
        f"group {group}: " + ", ".join(f"{count} {label}" for label, count in labels.items())
        for group, labels in sorted(labels_of.items(), key=str)
    )


def _model(version: Version, key: str, blobs: BlobFolder) -> Tensors:
    return decode_tensors(blobs.get(version.models[key]), OWN_FILES)[0]


def _files(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        yield from (file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())
