"""Results that the demonstration shows of secret mode: who has stored what, and the accuracy.

The demonstration has the devices' data on this machine, so it can compute what the aggregator never
learns, and search for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from aggregator.fleet.plan import round_seed
from aggregator.maintenance.database import read_view
from algorithms.core.keys import NEWCOMER
from simulation.local.secret import carried_out, holds, needles
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors
from wire.messages import Evaluate

if TYPE_CHECKING:
    from aggregator.fleet.records import Campaign, Version
    from aggregator.storage.blob_folder import BlobFolder
    from simulation.datasets.windows import FleetData
    from wire.bundle import Bundle


def campaign_of(folder: Path, name: str) -> Campaign:
    """Return the record of a finished campaign."""
    return read_view(folder).fleet.campaigns[name]


def accuracy_here(fleet: FleetData, bundle: Bundle, campaign: Campaign, blobs: BlobFolder) -> float:
    """Return the mean accuracy (fraction) of the last model on the devices' own test windows."""
    model = _model(campaign.version, campaign.version.newcomers, blobs)
    metrics = (
        carried_out(bundle, model, windows, device_id, (Evaluate("test"),), 0).evaluated
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
) -> Table:
    """Return a table of who has stored what, with the finds of a search.

    Searched for are the last model, which everybody gets, and the change of one device in the first
    round, which nobody else may learn.

    Args:
        fleet: the devices' data.
        bundle: bundle of the campaign.
        campaign: the campaign.
        blobs: its blobs.
        parties: folders of each party, by its name.
        carried: every payload that the broker has carried.
    """
    device_id, version = min(fleet.devices), campaign.version
    seed, windows = round_seed(campaign.settings.seed, 1), fleet.devices[device_id]
    first, last = _model(version, NEWCOMER, blobs), _model(version, version.newcomers, blobs)
    result = carried_out(bundle, first, windows, device_id, version.programs[""], seed)
    wanted = {
        "the last model": needles(last),
        f"the change of {device_id}": needles(result.tensors),
    }
    table = Table("who", "bytes stored", *wanted, title="Who has stored what", title_justify="left")
    contents = {name: [*_files(paths)] for name, paths in parties.items()}
    contents["the broker, all it carried"] = list(carried)
    for name, texts in contents.items():
        finds = ("yes" if holds(texts, pieces) else "no" for pieces in wanted.values())
        table.add_row(name, f"{sum(map(len, texts)):,}", *finds)
    return table


def _model(version: Version, key: str, blobs: BlobFolder) -> Tensors:
    return decode_tensors(blobs.get(version.models[key]), OWN_FILES)[0]


def _files(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        yield from (file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())
