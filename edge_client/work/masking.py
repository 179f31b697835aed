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
from wire.messages import Plan
from wire.secret.messages import SumQuestion
from wire.secret.payloads import encode_upload


@dataclass(frozen=True)
class Masking:
    """A device's means to answer questions of secret sums.

    `key` is that of its certificate, `draw` a source of random bytes that nobody else knows.
    """

    policy: SecretPolicy
    key: TlsKey
    store: AnswerStore
    draw: Draw

    def answer(
        self,
        question: SumQuestion,
        plan: Plan,
        result: PlanResult,
        received: Tensors,
        num_train: int,
        now_s: float,
    ) -> bytes:
        """Return the payload that answers a question: the same one whenever it comes again.

        Args:
            question: question of the plan.
            plan: the plan, which the device has carried out.
            result: its result.
            received: model from which the device has started.
            num_train: number of its training windows.
            now_s: the aggregator's time, as well as the device knows it.

        Raises:
            Declined: the owner's policy forbids the answer, the question is not about the plan or
                is closed, or it was answered before.
            Malformed: the question does not fit the model.
            OSError: the answer cannot be stored. Nothing has been answered.
        """
        check_question(question, self.policy)
        check_about(question, plan, now_s)

        def make() -> bytes:
            numbers = numbers_of(question, result.tensors, received, num_train)
            share, values = answer(question, numbers, plan.device_id, self.policy, self.draw)
            return encode_upload(share, values, self.key)

        return self.store.once(question, make)
