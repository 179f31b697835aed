"""Answers of a device in secret mode, in place of an update."""

from dataclasses import dataclass

from edge_client.core.policy import surveying
from edge_client.core.sums import (
    Declined,
    SecretPolicy,
    answer,
    check_about,
    check_question,
    numbers_of,
)
from edge_client.core.survey import check_survey, rounding_of
from edge_client.storage.answers import AnswerStore
from edge_client.storage.surveys import SurveyStore
from edge_client.work.job import PlanResult
from wire.arrays.tensors import Tensors
from wire.errors import Malformed
from wire.identity.certificates import TlsKey
from wire.messages import Mask, Plan, SurveySum
from wire.secret.noise import Draw
from wire.secret.payloads import upload_of
from wire.secret.question import SignedShare


@dataclass(frozen=True)
class Masking:
    """A device's means to answer questions of secret sums, and to tell its group.

    `key` signs answers; `draw` is a source of random bytes that nobody else knows.
    """

    policy: SecretPolicy
    key: TlsKey
    store: AnswerStore
    surveys: SurveyStore
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
                is closed, or it was answered before; or the device is bound to another survey.
            Malformed: the question does not fit the model or the exchange.
            OSError: the answer cannot be stored. Nothing has been answered.
        """
        mask = plan.verbs[-1]
        assert isinstance(mask, Mask)
        question, survey = mask.question, surveying(plan)
        check_question(question, self.policy)
        check_about(question, plan, now_s)

        def make() -> tuple[SignedShare, Tensors]:
            rounding = None
            if isinstance(survey, SurveySum):
                if result.numbers is None:
                    raise Malformed("survey-sum: the survey could not be made")
                numbers = result.numbers
                check_survey(question, survey, numbers)
                seed = self.surveys.bind(plan.bundle, survey)
                rounding = rounding_of(seed, plan.bundle, survey)
            else:
                measured = (result.evaluated, result.trained)
                numbers = numbers_of(question, result.tensors, received, measured)
            device = plan.device_id
            share, values = answer(question, numbers, device, self.policy, self.draw, rounding)
            return upload_of(share, values, self.key)

        return self.store.once(question, make)

    def node(self, plan: Plan, result: PlanResult) -> str:
        """Return the node that a device tells, by a plan that it has carried out.

        Raises:
            Declined: the device is bound to another survey.
            OSError: that the device has told cannot be stored. It tells nothing.
        """
        tell = surveying(plan)
        assert tell is not None
        if not result.node:
            raise Declined("survey: the device is in no node of the plan")
        self.surveys.bind(plan.bundle, tell)
        return result.node
