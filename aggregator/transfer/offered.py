"""Blobs that devices may fetch, blobs that are still needed, and a blob on offer."""

from dataclasses import dataclass

from aggregator.fleet.desired import is_at_work
from aggregator.fleet.records import Campaign, Fleet
from aggregator.ports import BlobLost, Blobs
from wire.codec import digest as digest_of
from wire.messages import Choose, Pieces
from wire.pieces import place


@dataclass(frozen=True)
class Offered:
    """A blob on offer. The bytes of a small one are in memory; a large one has `pieces`, and is
    read again when it is needed again."""

    digest: str
    pieces: Pieces | None
    _held: bytes
    _blobs: Blobs

    @property
    def names(self) -> set[str]:
        """Digests under which something of it is retained."""
        return {self.digest, *(self.pieces.pieces if self.pieces is not None else ())}

    def payload(self) -> bytes:
        """Return all its bytes.

        Raises:
            BlobLost, StorageFailed: it cannot be read.
        """
        return self._held if self.pieces is None else self._blobs.get(self.digest)

    def piece(self, name: str) -> bytes:
        """Return one piece.

        Raises:
            BlobLost, StorageFailed: it cannot be read.
        """
        assert self.pieces is not None
        payload = self._blobs.get(self.digest, *place(self.pieces, self.pieces.pieces.index(name)))
        if digest_of(payload) != name:
            raise BlobLost(self.digest, "its bytes are not those that were written")
        return payload


def needed(campaign: Campaign, fleet: Fleet) -> set[str]:
    """Return the digests of the blobs that a campaign needs: those on offer and those remembered. A
    staged release has blobs of its own."""
    return offered(campaign, fleet) | remembered(campaign)


def remembered(campaign: Campaign) -> set[str]:
    """Return the digests of the blobs that the service alone needs of a campaign.

    They are models and memories to go on from and to return to, and updates and surveys that
    count; of a finished campaign, no updates.
    """
    versions = (campaign.version, *campaign.history)
    models = {digest for version in versions for digest in version.models.values()}
    counted = campaign.updates.values() if campaign.phase != "finished" else ()
    updates = {update.blob for update in counted}
    surveys = {m.survey.blob for m in campaign.members.values() if m.survey is not None}
    memories = {version.memory for version in versions} - {""}
    return models | memories | updates | surveys


def offered(campaign: Campaign, fleet: Fleet) -> set[str]:
    """Return the digests of the blobs of a campaign that devices may fetch: its bundle, its current
    models, those of assignments at work, and those that devices take up when it ends."""
    works = (device.assignment for device in fleet.devices.values() if is_at_work(device))
    own = [work for work in works if work is not None and work.campaign == campaign.name]
    working = {work.model for work in own}
    working |= {m for w in own for v in w.verbs if isinstance(v, Choose) for m in v.models}
    numbers = {
        number
        for rollout in fleet.rollouts
        if rollout.campaign == campaign.name and rollout.direct and rollout.phase != "failed"
        for number in rollout.releases.values()
    }
    models = {fleet.releases[number].model for number in numbers}
    return {campaign.settings.bundle, *campaign.models.values()} | working | models
