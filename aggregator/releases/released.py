"""What a fleet has released, as what a new campaign starts from."""

from collections.abc import Callable

from aggregator.core.release.state import FleetState
from aggregator.releases.inherit import Source
from wire.arrays.tensors import OWN_FILES, decode_tensors


def released_source(state: FleetState, read: Callable[[str], bytes]) -> Source | None:
    """The released models of the campaign with the latest release, one for each of its groups; None
    where nothing is released. `read`: the bytes of a model, by its digest.

    Raises:
        BlobLost: a model is not kept any more, or damaged.
    """
    releases = state.catalogue.releases
    current = [releases[number] for number in sorted(state.catalogue.released.values())]
    if not current:
        return None
    latest = current[-1]
    chosen = {release.group: release for release in current if release.campaign == latest.campaign}
    keys = {group: group.rpartition("/")[2] for group in chosen}
    models = {
        keys[group]: decode_tensors(read(release.model), OWN_FILES)[0]
        for group, release in chosen.items()
    }
    groups = {
        device_id: keys[holder.group]
        for device_id, holder in state.devices.items()
        if holder.group in keys
    }
    numbers = ", ".join(str(release.number) for release in chosen.values())
    return Source(f"campaign {latest.campaign}, release {numbers}", models, groups)
