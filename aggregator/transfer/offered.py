"""Blobs on offer, and the blobs that a campaign needs."""

from dataclasses import dataclass

from aggregator.fleet.desired import is_at_work
from aggregator.fleet.records import Campaign, Fleet
from aggregator.ports import BlobLost, Blobs
from wire.codec import digest as digest_of
from wire.messages import Choose, Pieces
from wire.pieces import place


@dataclass(frozen=True)
class Offered:
    """Blob on offer.

    The bytes of a small blob are in memory. A large one has `pieces`, and is read from the store
    again.
    """

    digest: str
    pieces: Pieces | None
    _held: bytes
    blobs: Blobs

    @property
    def largest(self) -> int:
        """Number of bytes of the largest part that the broker retains."""
        return len(self._held) if self.pieces is None else self.pieces.piece_bytes

    @property
    def names(self) -> set[str]:
        """Digests under which the broker retains parts of it."""
        return {self.digest, *(self.pieces.pieces if self.pieces is not None else ())}

    def payload(self) -> bytes:
        """Return all bytes of the blob.

        Raises:
            BlobLost, StorageFailed: it cannot be read.
        """
        return self._held if self.pieces is None else self.blobs.get(self.digest)

    def piece(self, name: str) -> bytes:
        """Return one piece of a large blob.

        Raises:
            BlobLost, StorageFailed: it cannot be read.
        """
        assert self.pieces is not None
        payload = self.blobs.get(self.digest, *place(self.pieces, self.pieces.pieces.index(name)))
        if digest_of(payload) != name:
            raise BlobLost(self.digest, "damaged: its bytes do not match its hash")
        return payload


def needed(campaign: Campaign, fleet: Fleet) -> set[str]:
    """Return the digests of the blobs that a campaign needs, on offer or remembered.

    A staged release has blobs of its own.
    """
    return offered(campaign, fleet) | remembered(campaign)


def remembered(campaign: Campaign) -> set[str]:
    """Return the digests of a campaign's blobs that only the service needs.

    They are the models and memories of its model versions, its counted updates and its members'
    surveys. A finished campaign needs no updates.
    """
    versions = campaign.versions
    models = {digest for version in versions for digest in version.models.values()}
    counted = campaign.updates.values() if campaign.phase != "finished" else ()
    updates = {update.blob for update in counted}
    surveys = {m.survey.blob for m in campaign.members.values() if m.survey is not None}
    masks = {blob for secret in campaign.sums.values() for blob in secret.masks.values()}
    memories = {version.memory for version in versions} - {""}
    return models | memories | updates | masks | surveys


def offered(campaign: Campaign, fleet: Fleet) -> set[str]:
    """Return the digests of a campaign's blobs that devices may fetch.

    They are its bundle, its current models, those of running assignments, and those that devices
    take up at its end.
    """
    works = (device.assignment for device in fleet.devices.values() if is_at_work(device))
    assignments = [work for work in works if work is not None and work.campaign == campaign.name]
    working = {work.model for work in assignments}
    working |= {m for w in assignments for v in w.verbs if isinstance(v, Choose) for m in v.models}
    numbers = {
        number
        for rollout in fleet.rollouts
        if rollout.campaign == campaign.name and rollout.direct and rollout.phase != "failed"
        for number in rollout.releases.values()
    }
    models = {fleet.releases[number].model for number in numbers}
    return {campaign.settings.bundle, *campaign.models.values()} | working | models
