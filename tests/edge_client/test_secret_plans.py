"""A device whose owner permits secret sums alone: what leaves it, whatever its data do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.core.sums import question_of
from edge_client.agent.loop import Agent
from simulation.datasets.windows import FleetData
from tests.edge_client.device import NOW_S, Device, initial_model
from tests.helper.exchange import HELPER_KEYS, KEYS
from tests.support.bundles import Exported
from wire import messages as m
from wire.codec import decode, digest
from wire.identity.certificates import key_digest
from wire.secret.messages import SCALARS, about_of
from wire.secret.payloads import masked_values
from wire.secret.question import Part, SumQuestion
from wire.secret.survey import SURVEY_BITS, SURVEY_MOST, WIDTH, Plane, SurveyScale, parts_of

VERBS = (m.Evaluate(), m.Train(8))
HELPERS = [key.public_key() for key in HELPER_KEYS[:3]]
SURVEY = m.Evaluate("train", "survey", "initial", report=False)
Run = Callable[[str, Any], Any]


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    policy, key = m.Policy(min_sum=5), KEYS["d0"]
    return Device(fleet, exported, tmp_path, policy=policy, helpers=HELPERS, key=key)


def ask(device: Device, number: int = 1, **changes: Any) -> SumQuestion:
    """Send a plan that asks for a secret sum, and let the device do what it does."""
    verbs = changes.pop("verbs", VERBS)
    parts = {
        key: Part(value.size, 0.25)
        for key, value in initial_model(device.bundle).items()
        if key.startswith(("shared/", "statistic/"))
    }
    about = about_of(device.bundle.digest, digest(device.model), verbs)
    names = sorted(key_digest(key) for key in HELPERS)
    question = question_of(about, parts | SCALARS, 20, 5, names, NOW_S + 100 + number)
    device.offer()
    device.send_plan(number, verbs=(*verbs, m.Mask(question)), **changes)
    device.turn()
    return question


def test_an_update_has_masked_integers_and_counts_nothing(device: Device) -> None:
    question = ask(device)
    ((update, tensors),) = device.updates()
    assert update.share is not None
    masked_values(update.share, tensors, question)
    assert (update.num_train, update.num_steps, update.train_s) == (0, 0, 0.0)
    assert update.evaluated == update.trained == m.Metrics()


def test_a_check_in_says_if_the_windows_are_enough(device: Device) -> None:
    device.turn()
    *_, check_in = (decode(payload, m.CheckIn) for payload in device.sent("check-in"))
    assert device.windows.num_train == 40
    assert (check_in.num_train, check_in.num_test, check_in.classes) == (32, 0, None)


class Failing:
    """Graphs of which one fails, as a model fails on some data that was made to."""

    max_batch = None

    def __init__(self, run: Run, graph: str, error: Exception | None) -> None:
        self._run, self._graph, self._error = run, graph, error

    def run(self, graph: str, inputs: Any) -> Any:
        if graph == self._graph and self._error is not None:
            raise self._error
        outputs = self._run(graph, inputs)
        if graph == self._graph:
            outputs["metric/loss_sum"] = np.float32(np.nan)
        return outputs


@pytest.mark.parametrize("graph", ["step", "evaluate"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), ValueError("broken"), None])
def test_a_device_answers_also_if_its_work_fails(
    device: Device, graph: str, error: Exception | None
) -> None:
    """That it declines would tell of its data."""
    run = device.load_graphs(device.bundle).run
    device.load_graphs = lambda _bundle: Failing(run, graph, error)
    device.start()
    question = ask(device)
    ((update, tensors),) = device.updates()
    assert update.share is not None
    masked_values(update.share, tensors, question)
    assert device.declines() == []
    assert isinstance(device.agent, Agent)


@pytest.mark.parametrize(
    ("verbs", "rule"),
    [
        ((m.Train(8),), "min_sum: the plan does not end with mask"),
        ((m.Train(8, report=False),), "min_sum: the plan does not end with mask"),
        ((m.Evaluate(report=False),), "min_sum: the plan does not end with mask"),
    ],
)
def test_a_plan_outside_a_secret_sum_is_declined(
    device: Device, verbs: tuple[m.Verb, ...], rule: str
) -> None:
    device.offer()
    device.send_plan(verbs=verbs)
    device.turn()
    (declined,) = device.declines()
    assert (declined.reason, declined.detail) == ("policy", rule)


def test_a_choice_by_its_data_is_declined_before_it_is_made(device: Device) -> None:
    ask(device, verbs=(m.Train(8, least=41),))
    (declined,) = device.declines()
    assert declined.detail == "mask: this form of train is not permitted before it"


def test_the_same_question_is_answered_alike_after_a_start(device: Device) -> None:
    ask(device)
    ((first, tensors),) = device.updates()
    device.reply(m.Refuse("d0", "wrong-round", "late", update=device.agent.session.update))
    device.turn()
    device.start()
    device.say()
    ask(device, attempt=1)
    for update, again in device.updates()[-1:]:
        assert update.share == first.share
        assert again.keys() == tensors.keys()
        assert all((again[name] == tensors[name]).all() for name in tensors)


def test_an_offered_model_is_not_tried_on_the_windows(device: Device) -> None:
    device.turn()
    device.release(1)
    report = device.in_use()
    assert (report.number, report.problem) == (1, "")
    assert report.evaluated == report.before == m.Metrics()


def survey(device: Device, number: int, verb: m.SurveySum, **changes: Any) -> SumQuestion:
    """Send a plan with an exchange of a survey, and let the device do what it does."""
    prefix = "response/survey.mean."
    sizes = [
        shape[0]
        for name, _, shape in device.bundle.manifest.responses("survey")
        if name.startswith(prefix)
    ]
    about = about_of(device.bundle.digest, digest(device.model), (SURVEY, verb))
    names = sorted(key_digest(key) for key in HELPERS)
    most = changes.pop("most", SURVEY_MOST)
    parts = parts_of(verb, sum(sizes))
    closes_at_s = NOW_S + 100 + number
    question = question_of(about, parts, most, 5, names, closes_at_s, SURVEY_BITS)
    device.offer()
    device.send_plan(number, verbs=(SURVEY, verb, m.Mask(question)))
    device.turn()
    return question


def scale_for(device: Device) -> SurveyScale:
    layout = device.bundle.manifest.responses("survey")
    count = sum(shape[0] for name, _, shape in layout if name.startswith("response/survey.mean."))
    return SurveyScale((0.0,) * count, (1.0,) * count, (0.0,) * WIDTH, (1.0, 1.0))


def test_an_exchange_of_a_survey_is_masked_and_nothing_else_of_it_is_sent(device: Device) -> None:
    question = survey(device, 1, m.SurveySum("scale"))
    ((update, tensors),) = device.updates()
    assert update.share is not None
    assert {"means", "sketch"} <= masked_values(update.share, tensors, question).keys()
    assert (update.num_train, update.num_steps, update.train_s, update.node) == (0, 0, 0.0, "")


def test_a_device_tells_its_side_and_is_bound_by_the_first_plane(device: Device) -> None:
    scale = scale_for(device)
    plane = Plane("", (1.0,) * scale.width, 0.0)

    def tell(number: int, threshold: float) -> None:
        planes = (Plane("", plane.axis, threshold),)
        device.offer()
        device.send_plan(number, verbs=(SURVEY, m.TellGroup(scale, planes)))
        device.turn()

    tell(1, -1e6)
    ((update, tensors),) = device.updates()
    assert (update.node, update.num_train, update.share, tensors) == ("1", 0, None, {})
    device.start()
    tell(2, 1e6)
    *_, decline = device.declines()
    assert decline.reason == "policy"
    assert "min_sum: survey: plane was another one before" in decline.detail


def test_a_device_of_another_node_is_bound_by_the_plane_that_it_declines(device: Device) -> None:
    """Otherwise its answers to many planes would tell its coordinates."""
    scale = scale_for(device)
    for number, threshold in enumerate((1e6, 1e5), 1):
        planes = (Plane("", (1.0,) * scale.width, threshold),)
        survey(device, number, m.SurveySum("moments", "1", scale, planes))
        device.start()
    first, second = device.declines()
    assert first.reason == "failed"
    assert "min_sum: survey: plane was another one before" in second.detail


def test_a_question_that_rounds_a_survey_in_another_way_is_declined(device: Device) -> None:
    survey(device, 1, m.SurveySum("scale"), most=20)
    assert [decline.reason for decline in device.declines()] == ["failed"]
