"""What the device has kept, in its state folder: stored after a plan, and found again for the model
that it is of."""

import logging
from dataclasses import dataclass

from edge_client.agent.memory import Memory
from edge_client.core import session as core
from edge_client.core.kept import Kept, kept_of, why_alone
from edge_client.core.ports import DeviceState
from edge_client.core.session import Offer
from edge_client.work.executor import Result
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.codec import digest
from wire.messages import Plan

log = logging.getLogger("shoal.edge")

LAST_ROUND = 2**31 + 1
"""After every round of a run."""


@dataclass(frozen=True)
class Own:
    """What a device answers with beside an offered model: `tensors`, the digest of what it has
    `kept` of that model (empty where it has kept nothing), and why the model stands `alone`
    although something was kept."""

    tensors: Tensors
    kept: str = ""
    alone: str = ""


class KeptModels:
    """What this device has kept, of the last few models."""

    def __init__(self, state: DeviceState, memory: Memory) -> None:
        self._state, self._memory = state, memory

    @property
    def blobs(self) -> set[str]:
        """The digests of what is kept."""
        return {kept.tensors for kept in self._memory.session.kept}

    def models(self) -> tuple[str, ...]:
        """The digests of the models of which something is kept that can be read and is not
        damaged."""
        return tuple(kept.model for kept in self._memory.session.kept if self._can_be_used(kept))

    def _can_be_used(self, kept: Kept) -> bool:
        try:
            return self._state.blob(kept.tensors) is not None
        except OSError:
            return False

    def put(self, plan: Plan, result: Result) -> None:
        """Keep what a plan made of the model that it started from, if it made something.

        Raises:
            OSError: it cannot be stored.
        """
        if not names.of_role(result.private, names.KEPT):
            return
        payload = encode_tensors(names.of_role(result.private, names.PRIVATE, names.KEPT))
        self._state.put_blob(digest(payload), payload)
        self._memory.save(
            core.on_kept(
                self._memory.session, Kept(plan.run_id, plan.bundle, result.model, digest(payload))
            )
        )

    def beside(self, offer: Offer) -> Own:
        """What is to be used with an offered model: what was kept of it. Where nothing was, the
        private tensors of its run, which belong to no model.

        Raises:
            OSError: it cannot be noted that what was kept is damaged.
        """
        session, alone = self._memory.session, ""
        kept = kept_of(session.kept, offer.bundle, offer.model)
        if kept is not None:
            payload = self._state.blob(kept.tensors)
            if payload is not None:
                return Own(decode_tensors(payload, OWN_FILES)[0], kept.tensors)
            self._memory.save(core.on_kept_lost(session, kept.tensors))
            alone = "what was kept of this model is damaged or missing"
        alone = alone or why_alone(session.kept, offer.bundle, offer.model)
        return Own(
            names.of_role(self._state.private(offer.run_id, LAST_ROUND), names.PRIVATE), alone=alone
        )
