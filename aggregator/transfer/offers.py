"""The blobs that devices may fetch, and those that are still needed."""

import logging
from collections.abc import Iterable

from aggregator.core.ports import Blobs
from aggregator.core.state import RunState
from aggregator.transfer.fleet import Fleet

log = logging.getLogger("shoal.aggregator")


class Offers:
    """Puts blobs of a store on offer, and forgets them."""

    def __init__(self, blobs: Blobs, fleet: Fleet, views: Iterable[str]) -> None:
        """`views`: the digests of what groupings have compared in the rounds so far; they stay."""
        self._blobs, self._fleet, self._views = blobs, fleet, set(views)

    def offer(self, digests: set[str]) -> None:
        """Put these blobs on offer, unless they are.

        Raises:
            BlobLost: one is not kept here, or damaged.
        """
        self._fleet.offer(self, digests, self._blobs)

    def keep_views(self, views: Iterable[str]) -> None:
        """Keep what groupings have compared in these rounds as well."""
        self._views |= set(views)

    def drop(self, digests: set[str], views: Iterable[str]) -> None:
        """Delete these blobs, which nobody needs any more. `views` are those that stay.

        Raises:
            StorageFailed: not all are deleted.
        """
        self._views = set(views)
        self._blobs.drop(digests)

    def forget(self, state: RunState) -> None:
        """Take away what nobody needs any more. What stays for want of a disk is forgotten after a
        later round."""
        self._fleet.withdraw_all_but(self, offered(state))
        try:
            self._blobs.keep(needed(state) | self._views)
        except OSError as error:
            log.warning("blobs that are not needed cannot be deleted: %s", error)


def needed(state: RunState) -> set[str]:
    """The digests of the blobs that a run's state names, and that are of use yet: the updates of a
    run that is over are not."""
    earlier = {
        digest for version in state.history for digest in (*version.models.values(), version.memory)
    }
    counted = state.received.values() if state.phase != "finished" else ()
    updates = {received.blob for received in counted} | {
        told.blob for told in state.inputs.values()
    }
    return offered(state) | earlier | {state.memory} | updates


def offered(state: RunState) -> set[str]:
    """The digests of the blobs that devices may fetch in this state."""
    working = {
        flight.model
        for flight in (*state.flights.values(), *state.placing.values(), *state.closings.values())
    }
    return {state.settings.bundle, *state.models.values()} | working
