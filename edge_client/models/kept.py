"""What the device has kept, in its state folder: stored after a plan, and found again for the model
that it is of."""

import logging
from contextlib import suppress
from dataclasses import dataclass

from edge_client.core import session as core
from edge_client.core.kept import Kept, kept_of, why_alone
from edge_client.core.session import Offer
from edge_client.storage.memory import Memory
from edge_client.storage.state import DeviceState
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


@dataclass(frozen=True)
class KeptModels:
    """What this device has kept, of the last few models."""

    state: DeviceState
    memory: Memory

    def models(self) -> tuple[str, ...]:
        """Return the digests of the models of which something is kept that can be read and is not
        damaged."""
        models = []
        for kept in self.memory.session.kept:
            with suppress(OSError):
                if self.state.blob(kept.tensors) is not None:
                    models.append(kept.model)
        return tuple(models)

    def put(self, plan: Plan, result: Result) -> None:
        """Keep what a plan made of the model that it started from, if it made something.

        Raises:
            OSError: it cannot be stored.
        """
        if not names.of_role(result.private, names.KEPT):
            return
        payload = encode_tensors(names.of_role(result.private, names.PRIVATE, names.KEPT))
        self.state.put_blob(digest(payload), payload)
        self.memory.save(
            core.on_kept(
                self.memory.session, Kept(plan.run_id, plan.bundle, result.model, digest(payload))
            )
        )

    def beside(self, offer: Offer) -> Own:
        """What is to be used with an offered model: what was kept of it. Where nothing was, the
        private tensors of its run, which belong to no model.

        Raises:
            OSError: it cannot be noted that what was kept is damaged.
        """
        session, alone = self.memory.session, ""
        kept = kept_of(session.kept, offer.bundle, offer.model)
        if kept is not None:
            payload = self.state.blob(kept.tensors)
            if payload is not None:
                return Own(decode_tensors(payload, OWN_FILES)[0], kept.tensors)
            self.memory.save(core.on_kept_lost(session, kept.tensors))
            alone = "what was kept of this model is damaged or missing"
        alone = alone or why_alone(session.kept, offer.bundle, offer.model)
        return Own(
            names.of_role(self.state.private(offer.run_id, LAST_ROUND), names.PRIVATE), alone=alone
        )
