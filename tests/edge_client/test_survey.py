"""A device in surveys of secret sums: what binds it, and what it tells."""

import secrets

import msgspec
import numpy as np
import pytest

from edge_client.core.sums import Declined, SecretPolicy
from edge_client.core.survey import check_survey, measured_in, numbers_of, rounding_of
from edge_client.storage.answers import AnswerStore
from edge_client.storage.files import Files, MemoryFiles
from edge_client.storage.surveys import SURVEYS, SurveyStore
from edge_client.work.job import PlanResult
from edge_client.work.masking import Masking
from tests.helper.exchange import HELPER_KEYS, KEYS
from tests.wire.secret_vectors import survey_verbs, vector_survey
from wire.errors import Malformed
from wire.identity.certificates import key_digest
from wire.messages import Evaluate, Mask, Plan
from wire.secret.coordinates import bins_of
from wire.secret.messages import about_of
from wire.secret.payloads import masked_values
from wire.secret.question import SumQuestion
from wire.secret.survey import (
    ONE,
    SURVEY_BITS,
    SURVEY_MOST,
    Plane,
    SurveySum,
    TellGroup,
    parts_of,
)

BUNDLE, MODEL = "b" * 64, "c" * 64
SURVEY = Evaluate("train", "survey", "initial", report=False)
RESPONSES = vector_survey(1, 5)
VERBS = survey_verbs(5)
EXCHANGES = [verb for verb in VERBS if isinstance(verb, SurveySum)]
MOMENTS, DENSITY = EXCHANGES[1:3]
TELL = next(verb for verb in VERBS if isinstance(verb, TellGroup))


def question_of(verb: SurveySum, inputs: int = 5) -> SumQuestion:
    about = about_of(BUNDLE, MODEL, (SURVEY, verb))
    helpers = tuple(key_digest(key.public_key()) for key in HELPER_KEYS[:3])
    parts = parts_of(verb, inputs)
    return SumQuestion(about, parts, SURVEY_BITS, SURVEY_MOST, 5, helpers, 90.0)


def masking_with(files: Files) -> Masking:
    policy = SecretPolicy([key.public_key() for key in HELPER_KEYS[:3]])
    stores = AnswerStore(files), SurveyStore(files)
    return Masking(policy, KEYS["d1"], *stores, secrets.token_bytes)


def plan_of(*verbs: SurveySum | TellGroup | Mask) -> Plan:
    return Plan("run", 1, 1, 1, "d1", BUNDLE, MODEL, (SURVEY, *verbs), 0, 90.0)


def answer(files: Files, verb: SurveySum, question: SumQuestion) -> dict[str, np.ndarray]:
    """The masked integers of a client that has just been started, less its masks: its upload."""
    result = PlanResult(MODEL, numbers=numbers_of(verb, measured_in(RESPONSES)))
    plan = plan_of(verb, Mask(question))
    signed, tensors = masking_with(files).answer(plan, result, {}, 1.0)
    return masked_values(signed, tensors, question)


class TestBindings:
    def test_the_scale_the_planes_and_the_exchanges_of_a_bundle_are_the_first_ones(self) -> None:
        files = MemoryFiles()
        seed = SurveyStore(files).bind(BUNDLE, MOMENTS)
        assert SurveyStore(files).bind(BUNDLE, MOMENTS) == seed
        assert SurveyStore(files).bind(BUNDLE, TELL) == seed
        scale, (plane, *_) = TELL.scale, TELL.planes
        moved = (msgspec.structs.replace(plane, threshold=plane.threshold + 0.1),)
        other = msgspec.structs.replace(scale, spreads=(1.0, 1.0))
        deeper = (plane, Plane("0", plane.axis, 0.5))
        for verb, name in (
            (TellGroup(scale, moved), "plane"),
            (TellGroup(other, (plane,)), "scale"),
            (SurveySum("moments", "", other), "scale"),
        ):
            with pytest.raises(Declined, match=f"survey: {name} was another one before"):
                SurveyStore(files).bind(BUNDLE, verb)
        SurveyStore(files).bind(BUNDLE, TellGroup(scale, deeper))
        again = (plane, Plane("0", plane.axis, 0.6))
        with pytest.raises(Declined, match="survey: plane 0 was another one"):
            SurveyStore(files).bind(BUNDLE, TellGroup(scale, again))
        SurveyStore(files).bind("d" * 64, TellGroup(other, moved))  # of another bundle

    def test_bins_of_a_node_are_told_along_one_set_of_axes(self) -> None:
        files = MemoryFiles()
        SurveyStore(files).bind(BUNDLE, DENSITY)
        fewer = msgspec.structs.replace(DENSITY, axes=DENSITY.axes[1:])
        with pytest.raises(Declined, match="survey: density was another one before"):
            SurveyStore(files).bind(BUNDLE, fewer)

    def test_a_damaged_file_tells_nothing_more(self) -> None:
        files = MemoryFiles()
        SurveyStore(files).bind(BUNDLE, MOMENTS)
        files.write(SURVEYS, (files.read(SURVEYS) or b"")[:-3])
        with pytest.raises(Declined, match=r"surveys\.json is damaged"):
            SurveyStore(files).bind(BUNDLE, MOMENTS)


class TestAnswers:
    def test_an_exchange_is_rounded_alike_whenever_it_is_asked_for(self) -> None:
        draws = [rounding_of(bytes(32), BUNDLE, MOMENTS) for _ in range(2)]
        assert draws[0](400) == draws[1](400)
        assert draws[0](400) != draws[0](400), "each part has its own bytes"
        assert rounding_of(bytes(32), "d" * 64, MOMENTS)(40) != rounding_of(
            bytes(32), BUNDLE, MOMENTS
        )(40)

    def test_a_question_that_comes_again_gets_the_same_bytes(self) -> None:
        files, question = MemoryFiles(), question_of(MOMENTS)
        first, again = (answer(files, MOMENTS, question) for _ in range(2))
        for part, values in first.items():
            np.testing.assert_array_equal(again[part], values)

    @pytest.mark.parametrize(
        "changes",
        [
            {"bits": 16},
            {"most": 20},
            {"parts": {}},
            {"parts": parts_of(MOMENTS, 5) | {"more": parts_of(SurveySum("scale"), 0)["length"]}},
        ],
    )
    def test_a_question_has_the_parts_and_integers_of_its_exchange(
        self, changes: dict[str, object]
    ) -> None:
        files, good = MemoryFiles(), question_of(MOMENTS)
        with pytest.raises(Malformed, match="question: "):
            answer(files, MOMENTS, msgspec.structs.replace(good, **changes))
        answer(files, MOMENTS, good)

    def test_the_question_about_the_scale_is_checked_by_the_survey(self) -> None:
        scale = SurveySum("scale")
        numbers = numbers_of(scale, measured_in(RESPONSES))
        check_survey(question_of(scale), scale, numbers)
        with pytest.raises(Malformed, match="its parts are not those of the exchange scale"):
            check_survey(question_of(scale, 6), scale, numbers)

    def test_a_device_tells_its_node_and_is_bound_by_it(self) -> None:
        files = MemoryFiles()
        node = masking_with(files).node(plan_of(TELL), PlanResult(MODEL, node="0"))
        assert node == "0"
        moved = (msgspec.structs.replace(TELL.planes[0], threshold=9.0),)
        with pytest.raises(Declined, match="survey: plane was another one before"):
            masking_with(files).node(
                plan_of(TellGroup(TELL.scale, moved)), PlanResult(MODEL, node="0")
            )

    def test_counts_are_exact(self) -> None:
        fixed = question_of(MOMENTS).fixed
        ones = fixed.encode(np.ones(50, np.float32), ONE, np.linspace(0, 1 - 1e-9, 50))
        np.testing.assert_array_equal(ones, 1)
        assert not fixed.encode(np.zeros(50, np.float32), ONE, np.full(50, 1 - 1e-9)).any()


def test_a_point_of_no_place_is_in_the_first_bin() -> None:
    assert bins_of(np.array([np.nan, 0.0]), 1.0).tolist() == [0, 16]


def test_far_points_are_in_the_outermost_bins() -> None:
    along = np.array([-np.inf, -99.0, -4.0, -3.76, 0.0, 3.99, 4.0, 99.0, np.inf])
    assert bins_of(along, 1.0).tolist() == [0, 0, 0, 0, 16, 31, 31, 31, 31]
