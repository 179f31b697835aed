"""The blobs that devices may fetch, and those that are still needed."""

import logging
from collections.abc import Iterable

from aggregator.core.ports import Blobs
from aggregator.core.state import RunState
from aggregator.fleet import Fleet

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

    def forget(self, state: RunState) -> None:
        """Take away what nobody needs any more. What stays for want of a disk is forgotten after a later round."""
        self._fleet.withdraw_all_but(self, offered(state))
        try:
            earlier = {digest for version in state.history for digest in (*version.models.values(), version.memory)}
            self._blobs.keep(offered(state) | self._views | earlier | {state.memory} | {r.blob for r in state.received.values()})
        except OSError as error:
            log.warning("blobs that are not needed cannot be deleted: %s", error)


def offered(state: RunState) -> set[str]:
    """The digests of the blobs that devices may fetch in this state."""
    return {state.settings.bundle, *state.models.values()}
