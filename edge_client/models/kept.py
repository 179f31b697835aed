"""Personal models in the state folder: stored after a plan, looked up for the group's model."""

import logging
from contextlib import suppress
from dataclasses import dataclass

from edge_client.core import session as core
from edge_client.core.kept import PersonalModel, kept_of, why_alone
from edge_client.core.session import ModelOffer
from edge_client.storage.memory import SessionStore
from edge_client.storage.state import DeviceState
from edge_client.work.executor import PlanResult
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.codec import digest
from wire.messages import Plan

log = logging.getLogger("shoal.edge")

LAST_ROUND = 2**31 + 1
"""A round number above every round of a campaign."""


@dataclass(frozen=True)
class Own:
    """The tensors that a device uses with an offered model.

    `personal_model` is the digest of its personal model, empty if there is none. `alone` is the
    reason why existing personal models are not used, or empty.
    """

    tensors: Tensors
    personal_model: str = ""
    alone: str = ""


@dataclass(frozen=True)
class KeptModels:
    """Personal models that this device made of the last few models."""

    state: DeviceState
    memory: SessionStore

    def models(self) -> tuple[str, ...]:
        """Return the digests of the models that have a readable, undamaged personal model."""
        models = []
        for personal_model in self.memory.session.personal_models:
            with suppress(OSError):
                if self.state.blob(personal_model.tensors) is not None:
                    models.append(personal_model.model)
        return tuple(models)

    def put(self, plan: Plan, result: PlanResult) -> None:
        """Store the personal model that a plan made of its starting model, if it made one.

        Raises:
            OSError: it cannot be stored.
        """
        if not names.of_role(result.private, names.PERSONAL):
            return
        payload = encode_tensors(names.of_role(result.private, names.PRIVATE, names.PERSONAL))
        self.state.put_blob(digest(payload), payload)
        self.memory.save(
            core.on_personal_model(
                self.memory.session,
                PersonalModel(plan.run_id, plan.bundle, result.model, digest(payload)),
            )
        )

    def beside(self, offer: ModelOffer) -> Own:
        """Return the tensors to use with an offered model: those of its personal model.

        Without a personal model these are the private tensors of the campaign, which belong to no
        particular model.

        Raises:
            OSError: the loss of a damaged personal model cannot be stored.
        """
        session, alone = self.memory.session, ""
        personal_model = kept_of(session.personal_models, offer.bundle, offer.model)
        if personal_model is not None:
            payload = self.state.blob(personal_model.tensors)
            if payload is not None:
                return Own(decode_tensors(payload, OWN_FILES)[0], personal_model.tensors)
            self.memory.save(core.on_personal_model_lost(session, personal_model.tensors))
            alone = "the personal model of this model is damaged or missing"
        alone = alone or why_alone(session.personal_models, offer.bundle, offer.model)
        return Own(
            names.of_role(self.state.private(offer.run_id, LAST_ROUND), names.PRIVATE), alone=alone
        )
