"""Aggregation of rounds, and placement of devices by their surveys, for one campaign each.

A trainer has what does not fit into a record: the algorithm, the bundle and the blobs. A campaign
is *stopped* while a blob cannot be read or its algorithm fails: its devices are told that it is
busy, and other campaigns continue. It resumes by itself when the cause is gone.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aggregator.aggregation.apply import aggregate
from aggregator.aggregation.placing import place_by_survey
from aggregator.aggregation.sums import aggregate_sums
from aggregator.fleet.events import Aggregate, Event, PlaceDevice, UpdatesLost
from aggregator.fleet.records import Campaign
from aggregator.leadership.identity import kept_alive
from aggregator.ports import BlobLost, Blobs, Clock, StorageFailed
from aggregator.storage.blob_bucket import check_blobs
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Probe
from wire.arrays.tensors import OWN_FILES
from wire.bundle import Bundle
from wire.codec import decode_update
from wire.errors import LimitExceeded
from wire.secret.messages import Shares

log = logging.getLogger("shoal.aggregator")

RETRY_S = 5.0
"""Seconds between two checks of whether the cause of a stop is gone."""


@dataclass
class Trainer:
    """Algorithm, bundle and blobs of one campaign, which carry out its commands."""

    name: str
    """Name of the campaign."""
    algorithm: Algorithm
    bundle: Bundle
    probe: Probe
    blobs: Blobs
    clock: Clock
    announce: Callable[[], None]
    """Publishes the service's status. Devices need it during a long aggregation."""
    problem: str = ""
    """Reason that the campaign is stopped; empty while it is not."""
    look_at_s: float = field(default=float("inf"), repr=False)
    """Time of the next check of whether the cause is gone."""
    _check: Callable[[], object] | None = field(default=None, repr=False)
    """Check that raises while the cause exists; None if only the operator can end the stop."""

    def aggregate(self, campaign: Campaign, command: Aggregate) -> Event | None:
        """Return the event of an aggregation; None if the campaign is stopped by it.

        Devices whose updates are lost are assigned again.
        """
        try:
            with kept_alive(self.announce):
                if campaign.settings.secret:
                    return aggregate_sums(campaign, self.algorithm, self.blobs, self.clock)
                return aggregate(campaign, self.algorithm, self.probe, self.blobs, self.clock)
        except BlobLost as error:
            devices = tuple(d for d, blob in _blobs(campaign) if blob == error.digest)
            if devices:
                log.error(
                    "Update lost, the device gets another assignment: campaign=%s round=%d "
                    "device=%s: %s",
                    self.name,
                    command.round,
                    devices[0],
                    error,
                )
                name, now_s = campaign.name, self.clock()
                return UpdatesLost(at_s=now_s, campaign=name, device_ids=devices)
            self.stop(str(error), partial(self.blobs.get, error.digest))
        except StorageFailed as error:
            self.stop(str(error), partial(check_blobs, self.blobs))
        # the updates are stored, so that a later version may aggregate them
        except Exception as error:
            log.exception("Round not aggregated: campaign=%s round=%d", self.name, command.round)
            reason = f"{type(error).__name__}: {error}"
            self.stop(f"round {command.round} cannot be aggregated: {reason}")
        return None

    def shares(self, campaign: Campaign, key: str) -> Shares:
        """Return the shares of a secret sum's set, with their devices' signatures.

        Raises:
            BlobLost, StorageFailed: an update cannot be read.
        """
        blobs = (campaign.updates[d].blob for d in campaign.sums[key].devices)
        updates = (decode_update(self.blobs.get(blob), OWN_FILES)[0] for blob in blobs)
        return tuple((u.share.share, u.share.signature) for u in updates if u.share is not None)

    def place(self, campaign: Campaign, command: PlaceDevice) -> Event | None:
        """Return the event that places a device by its survey; None if it cannot be placed."""
        try:
            arguments = (campaign, command.device_id, self.algorithm, self.blobs, self.clock())
            return place_by_survey(*arguments)
        except (BlobLost, StorageFailed) as error:
            log.error("Device not placed by its survey: device=%s: %s", command.device_id, error)
            return None

    def stop(self, problem: str, check: Callable[[], object] | None = None) -> None:
        """Stop the campaign until `check` raises no error, or the operator resumes it."""
        log.error("Campaign stopped: campaign=%s: %s", self.name, problem)
        self.problem, self._check, self.look_at_s = problem, check, self.clock() + RETRY_S
        self.announce()

    def try_to_go_on(self, resumed: bool = False) -> bool:
        """Return True if the campaign is not stopped, or its stop has ended.

        A stop ends when its cause is gone. A stop without a check ends when the operator has
        `resumed` the campaign.
        """
        if not self.problem:
            return True
        self.look_at_s = self.clock() + RETRY_S
        if self._check is None and not resumed:
            return False
        try:
            if self._check is not None:
                self._check()
        except (StorageFailed, BlobLost, LimitExceeded) as error:
            log.debug("Campaign still stopped: campaign=%s: %s", self.name, error)
            return False
        log.info("Campaign goes on after its stop: campaign=%s: %s", self.name, self.problem)
        self.end_stop()
        return True

    def end_stop(self) -> None:
        """End the stop without a check, because the operator gives up the unreadable models."""
        self.problem, self._check, self.look_at_s = "", None, float("inf")


def _blobs(campaign: Campaign) -> list[tuple[str, str]]:
    """Return the devices of a campaign with the blobs of their updates and surveys."""
    updates = [(d, update.blob) for d, update in campaign.updates.items()]
    for secret in campaign.sums.values():  # without a helper's sums, the round is opened again
        updates += [(d, blob) for blob in secret.masks.values() for d in secret.devices]
    surveys = [(d, m.survey.blob) for d, m in campaign.members.items() if m.survey is not None]
    return [*updates, *surveys]
