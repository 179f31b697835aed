"""Personal models that devices choose: in plans, in admission, in summaries and in the report."""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from aggregator.aggregation.admission import Refusal, check_tensors, norms_of
from aggregator.fleet.desired import closing_verbs
from aggregator.fleet.events import Started
from aggregator.fleet.reconcile import REST_S
from aggregator.fleet.records import Campaign, Device, Version
from aggregator.http.views import round_view
from aggregator.storage.memory import MemoryBlobs
from aggregator.view.fleet import FleetView
from aggregator.view.summary import KeptCounts, summarize
from algorithms.composition import read_algorithm
from algorithms.personalisation.kept import PersonalChoice
from shoal.reports.files import write_report
from shoal.reports.run_page import Extras
from shoal.reports.words import UNUSABLE, margin_text, names_text, rule_text
from tests.fleet.recorded import Recorded
from tests.fleet.world import settings_of
from tests.support.settings import SETTINGS
from wire import messages as m

NAMES = ("fine-tuned + nearest neighbours (weight 0.5)", "general")
KEPT = PersonalChoice(NAMES[0], 12, 0.25, {NAMES[1]: 0.5})
LAYOUT = (
    ("response/choose.choice", "float32", (2,)),
    ("response/choose.loss", "float32", (2,)),
    ("response/choose.windows", "float32", ()),
)
CLOSING = (
    m.Evaluate("windows", "memorise", report=False),
    m.Apply("choose"),
    m.Evaluate("test", "assess"),
)
CHOICE: dict[str, Any] = {
    "candidates": NAMES,
    "responses": {"choose": LAYOUT, "memorise": (("response/x", "float32", ()),)},
}


class Choosing(Recorded):
    """A campaign whose devices choose personal models."""

    def __init__(self, *device_ids: str) -> None:
        super().__init__(*device_ids, keeps=True, min_devices=len(device_ids), deadline_s=1000.0)

    def feed(self, event: Any) -> Any:
        """Have something happen; a campaign begins with the candidates and verbs of this module."""
        if isinstance(event, Started) and event.campaign == "run":
            settings = replace(event.record.settings, **CHOICE)
            programs = event.record.version.programs | {"closing": CLOSING}
            version = replace(event.record.version, programs=programs)
            own = {"settings": settings, "next_settings": settings, "version": version}
            event = replace(event, record=replace(event.record, **own))
        return super().feed(event)

    def verbs(self, device_id: str) -> tuple[Any, ...]:
        """Return the verbs of a device's assignment."""
        work = self.fleet.devices[device_id].assignment
        assert work is not None
        return work.verbs


def ended(**kept: PersonalChoice | None) -> Choosing:
    """A campaign that is over, in which devices have reported these personal models."""
    world = Choosing(*kept)
    world.answer(*kept)
    for device_id, choice in kept.items():
        world.answer(device_id, kept=choice)
    assert world.campaign.phase == "finished"
    return world


def summary_of(world: Recorded) -> Any:
    return summarize(FleetView(world.fleet), "run", [*world.records.values()], 1.0)


WITHHOLDS = m.Policy(unreported=("choose",))


def campaign(closing: tuple[m.Verb, ...] = CLOSING) -> Campaign:
    """A campaign in which devices do this after the last round."""
    settings = settings_of(**CHOICE)
    programs: dict[str, tuple[m.Verb, ...]] = {"": (m.Train(32),), "closing": closing}
    version = Version(round=0, models={"0": "f" * 64}, memory="", programs=programs, newcomers="0")
    return Campaign(settings=settings, next_settings=settings, version=version)


def device(num_train: int = 10, num_test: int = 4, policy: m.Policy | None = None) -> Device:
    return Device(facts=m.CheckIn("a", num_train, num_test, policy=policy))


class TestPlan:
    def test_a_device_that_withholds_is_asked_for_no_scores_and_does_all_else(self) -> None:
        assert closing_verbs(campaign(), device()) == CLOSING
        assert closing_verbs(campaign(), device(policy=WITHHOLDS)) == (
            CLOSING[0],
            m.Apply("choose", report=False),
            CLOSING[2],
        )

    def test_a_device_with_too_few_test_windows_for_its_owner_is_not_asked_how_well_it_answers(
        self,
    ) -> None:
        silent = m.Apply("choose", report=False), m.Evaluate("test", "assess", report=False)
        asked = closing_verbs(campaign(), device(policy=m.Policy(min_windows=5)))
        assert asked == (CLOSING[0], *silent)

    def test_a_device_with_too_few_labels_to_judge_by_is_asked_to_train_on_all_of_them(
        self,
    ) -> None:
        def verbs(share: float) -> tuple[m.Verb, ...]:
            choice = (
                m.Evaluate("windows", "memorise", holdout=share, report=False),
                m.Apply("choose"),
            )
            return (
                m.Train(32, holdout=share, report=False),
                m.Evaluate("holdout", "mix", holdout=0.25),
                *choice,
            )

        assert closing_verbs(campaign(verbs(0.25)), device(31)) == verbs(0.0)
        assert closing_verbs(campaign(verbs(0.25)), device(32)) == verbs(0.25)

    def test_a_plan_in_work_stays_and_the_next_one_asks_as_the_owner_permits(self) -> None:
        world = Choosing("a", "b")
        world.answer("a", "b")
        assert world.verbs("b")[1].report
        world.say("b", policy=WITHHOLDS)
        assert world.verbs("b")[1].report, "the device declines it"
        world.carry_out()
        world.decline("b")
        world.pass_time(REST_S)
        assert not world.verbs("b")[1].report
        world.say("b")
        assert not world.verbs("b")[1].report
        world.answer("b")
        assert not world.fleet.devices["b"].policy.withholds

    @pytest.mark.parametrize(
        ("policy", "withholds"),
        [
            (m.Policy(), False),
            (m.Policy(max_epochs=1, tell_classes=True), False),
            (m.Policy(min_noise_multiplier=0.0), False),
            (m.Policy(max_clip_norm=1.0), True),
            (m.Policy(min_noise_multiplier=0.5), True),
            (m.Policy(min_windows=2), True),
            (m.Policy(unreported=("choose",)), True),
            (m.Policy(unreported=()), False),
        ],
    )
    def test_which_policies_withhold(self, policy: m.Policy, withholds: bool) -> None:
        assert policy.withholds == withholds


class TestAdmission:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"response/choose.choice": np.zeros(3, np.float32)}, "wrong-layout"),
            ({"response/choose.choice": np.zeros(2, np.int64)}, "wrong-layout"),
            ({"response/choose.more": np.zeros(2, np.float32)}, "wrong-layout"),
            ({"response/choose.loss": np.array([0.5, np.nan], np.float32)}, "not-finite"),
            ({"response/choose.windows": np.array(np.inf, np.float32)}, "not-finite"),
            ({"response/choose.windows": np.array(1e30, np.float32)}, "norm-too-large"),
        ],
    )
    def test_scores_of_another_layout_or_without_a_value_are_refused(
        self, changes: dict[str, np.ndarray], reason: str
    ) -> None:
        good = {name: np.zeros(shape, dtype) for name, dtype, shape in LAYOUT}
        settings = msgspec.structs.replace(SETTINGS, **CHOICE)
        assert check_tensors(settings, (m.Apply("choose"),), good, norms_of(good)) is None
        sent = {**good, **changes}
        refused = check_tensors(settings, (m.Apply("choose"),), sent, norms_of(sent))
        assert isinstance(refused, Refusal)
        assert refused.reason == reason

    def test_scores_that_were_not_asked_for_are_refused(self) -> None:
        sent = {name: np.zeros(shape, dtype) for name, dtype, shape in LAYOUT}
        settings = msgspec.structs.replace(SETTINGS, **CHOICE)
        refused = check_tensors(settings, (m.Apply("choose", report=False),), sent, norms_of(sent))
        assert isinstance(refused, Refusal)
        assert refused.reason == "wrong-layout"


class TestRecord:
    def test_the_last_round_says_what_those_keep_that_tell(self) -> None:
        record = ended(a=KEPT, b=None).records[2]
        assert (record.phase, record.personal_models) == ("evaluating", {"a": KEPT})
        assert round_view(record).personal_models == {NAMES[0]: 1}

    def test_the_summary_counts_them(self) -> None:
        summary = summary_of(ended(a=KEPT, b=None))
        models = {d: device.personal_model for d, device in summary.devices.items()}
        assert models == {"a": KEPT, "b": None}
        counts = KeptCounts({NAMES[0]: 1, NAMES[1]: 0}, not_told=1)
        assert summary.personal_models == counts

    def test_a_run_whose_devices_do_not_choose_has_none(self) -> None:
        summary = summary_of(Recorded("a", "b"))
        assert summary.personal_models is None
        assert "personal_models" not in msgspec.to_builtins(summary)

    def test_a_device_has_that_of_the_campaign_whose_model_it_has(self) -> None:
        world = ended(a=KEPT, b=KEPT)
        world.settle()
        world.start("later", rounds=1, min_devices=2)
        world.settle()
        found = FleetView(world.fleet).device("a")
        assert found is not None
        assert found.record.last_offer.release
        assert found.personal_model is None, "it has told of none of the later model"


def test_the_report_says_what_devices_keep_and_why_or_that_it_was_not_told(tmp_path: Path) -> None:
    summary = summary_of(ended(a=KEPT, b=None, c=PersonalChoice(NAMES[1], 0)))
    write_report(
        tmp_path, summary, [], MemoryBlobs(), Extras(recipe=read_algorithm("personal").recipe)
    )
    page = " ".join((tmp_path / "report.html").read_text().split())
    rows = {row.partition("</th>")[0]: row for row in re.split('<tr[^>]*><th scope="row">', page)}
    assert (
        f'<td>{NAMES[0]}</td><td class="wide why">loss 0.250 on 12 windows, the least</td>'
        in rows["a"]
    )
    assert (
        "is above the least by no more than 3 standard errors and by no more than 0.5; with fewer"
        in page
    )
    assert "general: the group's model, with BatchNorm's statistics moved" in page.replace(
        "&#39;", "'"
    )
    assert '<td>not reported</td><td class="wide why"></td>' in rows["b"]
    assert '<td class="wide why">no windows held out to judge by</td>' in rows["c"]
    assert '<td class="number">1</td>' in rows["not reported"]
    assert '<meter min="0" max="3" value="1"' in rows["not reported"]
    write_report(tmp_path, summary_of(Recorded("a", "b")), [], MemoryBlobs())
    assert "keep" not in (tmp_path / "report.html").read_text().partition("</style>")[2]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (
            PersonalChoice(NAMES[0], 12, 0.5, {NAMES[1]: 0.25}),
            f"loss 0.500 on 12 windows, margin 0.250 to the least ({NAMES[1]})",
        ),
        (
            PersonalChoice(NAMES[1], 12, 0.25, {NAMES[0]: 0.5}),
            f"loss 0.250 on 12 windows, the least; passed over: {NAMES[0]} (margin 0.250)",
        ),
        (
            PersonalChoice(NAMES[1], 12, 0.25, {NAMES[0]: 0.5}, {NAMES[0]: 0.08, NAMES[1]: 0.0}),
            f"loss 0.250 on 12 windows, the least; passed over: {NAMES[0]} (margin 0.250, "
            "standard error 0.080)",
        ),
        (
            PersonalChoice(NAMES[0], 2, 0.5, {NAMES[1]: 0.25}),
            "loss 0.500 on 2 windows, too few to judge by",
        ),
        (
            PersonalChoice(NAMES[1], 12, 0.5, {NAMES[0]: 0.25}, unusable=NAMES[:1]),
            "loss 0.500 on 12 windows, the least of those to be used; not to be used "
            f"({UNUSABLE}): {NAMES[0]}",
        ),
        (
            PersonalChoice(NAMES[1], 0, unusable=NAMES[:1]),
            f"no windows held out to judge by; not to be used ({UNUSABLE}): {NAMES[0]}",
        ),
        (None, ""),
    ],
)
def test_the_report_says_by_which_margin_a_device_chose(
    kept: PersonalChoice | None, said: str
) -> None:
    assert margin_text(kept, NAMES) == said


@pytest.mark.parametrize(
    ("name", "errors", "said", "few"),
    [
        (
            "personal",
            3.0,
            "no more than 3 standard errors",
            "fine-tuned + nearest neighbours (weight 0.5)",
        ),
        (
            "fedavg+none+knn-per",
            0.0,
            "keeps the one with the least loss",
            "general + nearest neighbours (weight 0.5)",
        ),
        ("fedavg+none+served", None, "chooses among these candidates", ""),
    ],
)
def test_the_report_says_by_which_rule(
    name: str, errors: float | None, said: str, few: str
) -> None:
    recipe = read_algorithm(name).recipe
    assert (recipe and recipe.errors) == errors
    assert said in rule_text(recipe)
    assert bool(few) == bool(names_text(recipe))
    assert ("tuned:" in names_text(recipe), "moved" in names_text(recipe)) == (
        name == "personal",
        name == "personal",
    )
    assert not few or f"with fewer than 3 such windows, {few}, or" in rule_text(recipe)
