"""Answer of a device to the question of a plan, in place of an update."""

from dataclasses import dataclass

from edge_client.core.sums import (
    Draw,
    SecretPolicy,
    answer,
    check_about,
    check_question,
    numbers_of,
)
from edge_client.storage.answers import AnswerStore
from edge_client.work.job import PlanResult
from wire.arrays.tensors import Tensors
from wire.identity.certificates import TlsKey
from wire.messages import Mask, Plan
from wire.secret.payloads import upload_of
from wire.secret.question import SignedShare


@dataclass(frozen=True)
class Masking:
    """A device's means to answer questions of secret sums.

    `key` signs them; `draw` is a source of random bytes that nobody else knows.
    """

    policy: SecretPolicy
    key: TlsKey
    store: AnswerStore
    draw: Draw

    def answer(
        self,
        plan: Plan,
        result: PlanResult,
        received: Tensors,
        now_s: float,
    ) -> tuple[SignedShare, Tensors]:
        """Return the signed share that answers a plan's question, and the tensors of the update.

        They are the same ones whenever the question comes again.

        Args:
            plan: the plan, which ends with a question, and which the device has carried out.
            result: its result.
            received: model from which the device has started.
            now_s: the aggregator's time, as well as the device knows it.

        Raises:
            Declined: the owner's policy forbids the answer, the question is not about the plan or
                is closed, or it was answered before.
            Malformed: the question does not fit the model.
            OSError: the answer cannot be stored. Nothing has been answered.
        """
        mask = plan.verbs[-1]
        assert isinstance(mask, Mask)
        question = mask.question
        check_question(question, self.policy)
        check_about(question, plan, now_s)

        def make() -> tuple[SignedShare, Tensors]:
            measured = (result.evaluated, result.trained)
            numbers = numbers_of(question, result.tensors, received, measured)
            share, values = answer(question, numbers, plan.device_id, self.policy, self.draw)
            return upload_of(share, values, self.key)

        return self.store.once(question, make)
