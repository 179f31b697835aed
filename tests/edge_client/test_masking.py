"""From the results of plans on devices to the next model, by real helpers, without a network."""

import secrets

import msgspec
import numpy as np
import pytest

from aggregator.core.sums import question_of
from algorithms.algorithm import State
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Work
from algorithms.core.keys import NEWCOMER
from algorithms.sums import GroupSum, apply_sums, parts_of
from edge_client.core.sums import Declined, SecretPolicy
from edge_client.storage.answers import AnswerStore
from edge_client.storage.files import MemoryFiles
from edge_client.storage.surveys import SurveyStore
from edge_client.work.job import PlanResult
from edge_client.work.masking import Masking
from tests.aggregator.test_secret_sums import World
from tests.helper.exchange import DEVICES, HELPER_KEYS, KEYS
from wire.arrays.tensors import Tensors
from wire.errors import Malformed
from wire.messages import Mask, Plan, Train
from wire.secret.messages import about_of
from wire.secret.payloads import masked_values
from wire.secret.question import SumQuestion

MODEL: Tensors = {
    "shared/w": np.ones((4, 3), np.float32),
    "statistic/m": np.zeros(3, np.float32),
}
BUNDLE, START = "b" * 64, "c" * 64
VERBS = (Train(8),)
DRAWS = np.random.default_rng(5)


def plan_for(device: str, question: SumQuestion) -> Plan:
    verbs = (*VERBS, Mask(question))
    return Plan("run", 1, 1, 1, device, BUNDLE, START, verbs, 0, 90.0)


def result_of(device: str) -> PlanResult:
    number = DEVICES.index(device)
    change = {"delta/w": np.full((4, 3), 0.01 * number, np.float32)}
    return PlanResult(START, tensors=change | {"statistic/m": np.full(3, 0.5, np.float32)})


def masking_of(device: str, **policy: int) -> Masking:
    pinned = SecretPolicy([key.public_key() for key in HELPER_KEYS[:3]], **policy)
    files = MemoryFiles()
    stores = AnswerStore(files), SurveyStore(files)
    return Masking(pinned, KEYS[device], *stores, secrets.token_bytes)


def question_of_plan() -> SumQuestion:
    algorithm = make_algorithm(read_algorithm("fedavg+uniform"))
    parts = parts_of(algorithm, State({NEWCOMER: MODEL}), NEWCOMER)
    helpers = World().exchange.question.helpers
    return question_of(about_of(BUNDLE, START, VERBS), parts, len(DEVICES), 5, helpers, 90.0)


def test_plans_of_devices_become_the_next_model() -> None:
    question = question_of_plan()
    world = World(question=question)
    for device in DEVICES:
        masking, result = masking_of(device), result_of(device)
        plan = plan_for(device, question)
        signed, tensors = masking.answer(plan, result, MODEL, 1.0)
        values = masked_values(signed, tensors, question)
        world.exchange.uploads[device] = signed.share, signed.signature, values
    world.close()
    world.open()
    algorithm = make_algorithm(read_algorithm("fedavg+uniform"))
    state, _ = apply_sums(
        algorithm,
        State({NEWCOMER: MODEL}),
        {NEWCOMER: GroupSum(world.result(), DEVICES)},
        0,
        Work(8, 1),
    )
    mean = np.mean([0.01 * number for number in range(len(DEVICES))])
    np.testing.assert_allclose(state.models["0"]["shared/w"], 1 + mean, atol=2e-3)
    np.testing.assert_allclose(state.models["0"]["statistic/m"], 0.5, atol=2e-2)


class TestAnswer:
    def test_a_question_that_comes_again_gets_the_same_bytes(self) -> None:
        masking, question = masking_of("d1"), question_of_plan()
        first = masking.answer(plan_for("d1", question), result_of("d1"), MODEL, 1.0)
        other = result_of("d2")  # the device's data have changed since
        again = masking.answer(plan_for("d1", question), other, MODEL, 2.0)
        assert again[0] == first[0]
        for name, values in first[1].items():
            np.testing.assert_array_equal(again[1][name], values)

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"about": "d" * 64}, "is not about the bundle, model and verbs of its plan"),
            ({"closes_at_s": 0.5}, "was closed 0 s ago"),
            ({"min_sum": 2}, "min_sum must be at least 5"),
            ({"helpers": ("d" * 64,)}, "helpers must be the 3 that the owner has pinned"),
        ],
    )
    def test_a_question_that_asks_more_than_its_plan_or_the_owner_permits_is_declined(
        self, changes: dict[str, object], error: str
    ) -> None:
        masking = masking_of("d1")
        question = msgspec.structs.replace(question_of_plan(), **changes)
        with pytest.raises(Declined, match=error):
            masking.answer(plan_for("d1", question), result_of("d1"), MODEL, 1.0)

    @pytest.mark.parametrize(
        ("part", "error"),
        [
            ("private/p", "part 'private/p' is no exchanged tensor of the model"),
            ("shared/w", "part 'shared/w' has 5 numbers, the tensor 12"),
        ],
    )
    def test_a_question_that_does_not_fit_the_model_is_not_answered(
        self, part: str, error: str
    ) -> None:
        question = question_of_plan()
        parts = {part: msgspec.structs.replace(question.parts["shared/w"], count=5)}
        question = msgspec.structs.replace(question, parts=parts)
        model = MODEL | {"private/p": np.zeros(5, np.float32)}
        with pytest.raises(Malformed, match=error):
            masking_of("d1").answer(plan_for("d1", question), result_of("d1"), model, 1.0)
