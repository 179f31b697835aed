"""What devices keep, on its way from an update to the record, the summary, the registry, the HTTP
API and the report."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from immutables import Map

from aggregator.core import state as s
from aggregator.core.admission import Refused, check_tensors, norms_of
from aggregator.core.plan import plan_for
from aggregator.core.record import RoundRecord, record_of
from aggregator.core.registry import Entry
from aggregator.core.summary import KeptCounts, summarize
from aggregator.http.views import round_view
from aggregator.service.devices import Devices
from aggregator.service.forgetting import without_kept
from aggregator.storage.memory import MemoryBlobs
from algorithms.composition import read_algorithm
from algorithms.personalisation.kept import Kept
from shoal.reports.files import write_report
from shoal.reports.run_page import Extras
from shoal.reports.words import UNUSABLE, margin_text, names_text, rule_text
from tests.aggregator.kept_cases import CHOICE, CLOSING, KEPT, LAYOUT, NAMES
from tests.aggregator.round_cases import RECEIVED, Run
from tests.contracts.store import SETTINGS
from tests.support.known import known
from wire import messages as m


def closing(*devices: str, withholding: str = "") -> Run:
    """A run in its last round, for which these devices are asked."""
    run = Run(
        programs={"": (m.Train(32),), "closing": CLOSING},
        rounds=1,
        min_devices=len(devices),
        grace_s=100.0,
        **CHOICE,
    )
    for device in devices:
        run.check_in(device, withholds=device == withholding)
    for device in devices:
        run.update(device)
    run.aggregated()
    assert run.state.phase == "evaluating"
    return run


def ended(run: Run, **kept: Kept | None) -> RoundRecord:
    """The record of the last round, in which devices said this."""
    for device, told in kept.items():
        before = run.state
        update = msgspec.structs.replace(RECEIVED, blob=device * 64, kept=told)
        event = s.UpdateAdmitted(5.0, device, before.round, update)
        run.feed(event)
    record = record_of(before, event, run.state)
    assert record is not None
    assert record.phase == "evaluating"
    return record


class TestPlan:
    def test_a_device_that_withholds_is_asked_for_no_scores_and_does_all_else(self) -> None:
        run = closing("a", "b", withholding="b")
        assert plan_for(run.state, "a").verbs == CLOSING
        assert plan_for(run.state, "b").verbs == (
            CLOSING[0],
            m.Apply("choose", report=False),
            CLOSING[2],
        )

    def test_a_device_with_too_few_test_windows_for_its_owner_is_not_asked_how_well_it_answers(
        self,
    ) -> None:
        run = closing("a", "b", withholding="b")
        run.check_in("b", withholds=True, untested=True)
        silent = m.Apply("choose", report=False), m.Evaluate("test", "assess", report=False)
        assert plan_for(run.state, "b").verbs == (CLOSING[0], *silent)

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

        run = Run(
            programs={"": (m.Train(32),), "closing": verbs(0.25)}, rounds=1, min_devices=2, **CHOICE
        )
        for device, labels in (("a", 31), ("b", 32)):
            run.feed(s.DeviceCheckedIn(1.0, device, labels, 4))
        for device in "ab":
            run.update(device)
        run.aggregated()
        assert plan_for(run.state, "a").verbs == verbs(0.0)
        assert plan_for(run.state, "b").verbs == verbs(0.25)

    def test_a_plan_in_work_still_asks_for_none_when_its_device_no_longer_withholds(self) -> None:
        run = closing("a", "b", withholding="b")
        run.check_in("b")
        assert plan_for(run.state, "b").verbs[1] == m.Apply("choose", report=False)
        run.update("b")
        run.check_in("b")
        assert not run.state.devices["b"].withholds

    def test_a_device_that_begins_to_withhold_is_asked_anew(self) -> None:
        run = closing("a", "b")
        (sent,) = [c for c in run.check_in("b", withholds=True) if isinstance(c, s.SendPlan)]
        assert sent.plan.verbs[1] == m.Apply("choose", report=False)

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
            ({"response/choose.kept": np.zeros(3, np.float32)}, "wrong-layout"),
            ({"response/choose.kept": np.zeros(2, np.int64)}, "wrong-layout"),
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
        assert isinstance(refused, Refused)
        assert refused.reason == reason

    def test_scores_that_were_not_asked_for_are_refused(self) -> None:
        sent = {name: np.zeros(shape, dtype) for name, dtype, shape in LAYOUT}
        settings = msgspec.structs.replace(SETTINGS, **CHOICE)
        refused = check_tensors(settings, (m.Apply("choose", report=False),), sent, norms_of(sent))
        assert isinstance(refused, Refused)
        assert refused.reason == "wrong-layout"


class TestRecord:
    def test_the_last_round_says_what_those_keep_that_tell(self) -> None:
        record = ended(closing("a", "b"), a=KEPT, b=None)
        assert record.kept == {"a": KEPT}
        assert round_view(record).kept == {NAMES[0]: 1}

    def test_the_summary_counts_them(self) -> None:
        run = closing("a", "b")
        summary = summarize(run.state, [ended(run, a=KEPT, b=None)], 1.0)
        assert {d: device.kept for d, device in summary.devices.items()} == {"a": KEPT, "b": None}
        assert summary.kept == KeptCounts({NAMES[0]: 1, NAMES[1]: 0}, not_told=1)

    def test_a_run_whose_devices_do_not_choose_has_none(self) -> None:
        run = Run()
        run.check_in("a")
        summary = summarize(run.state, [], 1.0)
        assert summary.kept is None
        assert "kept" not in msgspec.to_builtins(summary)

    def test_a_device_that_is_forgotten_is_in_no_record(self) -> None:
        record = ended(closing("a", "b"), a=KEPT, b=KEPT)
        assert without_kept(record, {"a"}).kept == {"b": KEPT}

    def test_what_is_stored_is_read_again(self) -> None:
        run = closing("a", "b", withholding="b")
        record = ended(run, a=KEPT, b=None)
        assert msgspec.json.decode(msgspec.json.encode(record), type=RoundRecord) == record
        assert s.decode_state(s.encode_state(run.state)) == run.state
        assert run.state.received["a"].kept == KEPT

    def test_what_earlier_versions_stored_is_read(self) -> None:
        run = closing("a", "b")
        record = ended(run, a=None, b=None)
        state = msgspec.json.decode(s.encode_state(run.state))
        del state["settings"]["candidates"]
        for held in (*state["devices"].values(), *state["received"].values()):
            held.pop("withholds", None)
            held.pop("kept", None)
        settings = msgspec.structs.replace(run.state.settings, candidates=())
        assert s.decode_state(msgspec.json.encode(state)) == msgspec.structs.replace(
            run.state, settings=settings
        )
        earlier = {
            name: value for name, value in msgspec.to_builtins(record).items() if name != "kept"
        }
        assert msgspec.convert(earlier, RoundRecord) == record


class TestRegistry:
    def test_an_entry_says_what_the_device_keeps_of_which_campaign(self) -> None:
        devices = Devices(None, lambda: 7.0)
        devices.on_check_in(m.CheckIn("a", 10, 4))
        devices.on_kept("a", "autumn", 3, KEPT)
        devices.on_check_in(m.CheckIn("a", 10, 4))
        told = devices.entry("a").kept
        assert told is not None
        assert (told.at_s, told.campaign, told.round, told.kept) == (7.0, "autumn", 3, KEPT)
        assert msgspec.json.decode(
            msgspec.json.encode(devices.entry("a")), type=Entry
        ) == devices.entry("a")

    def test_it_is_forgotten_where_the_policy_no_longer_lets_the_device_say_it(self) -> None:
        devices = Devices(None, lambda: 7.0)
        devices.on_kept("a", "autumn", 3, KEPT)
        devices.on_check_in(m.CheckIn("a", 10, 4, policy=m.Policy(max_clip_norm=1.0)))
        assert devices.entry("a").kept is None

    def test_it_follows_from_the_run_that_a_device_has_its_model_of(self) -> None:
        run, devices = closing("a", "b"), Devices(None, lambda: 7.0)
        for device in "ab":
            devices.on_check_in(m.CheckIn(device, 10, 4))
            devices.on_kept(device, "earlier", 9, KEPT)
        ended(run, a=KEPT, b=None)
        for released in (True, False):
            for device in "ab":
                devices.on_models(run.state, device, released)
            told = known(devices.entry("a").kept)
            assert (told.at_s, told.campaign, told.round, told.kept) == (
                5.0,
                run.state.settings.name,
                2,
                KEPT,
            )
            assert (devices.entry("b").kept is not None) == released, (
                "it may still use an earlier release with what it kept of that"
            )

    def test_it_is_not_taken_from_a_run_again_where_the_policy_no_longer_lets_the_device_say_it(
        self,
    ) -> None:
        run, devices = closing("a"), Devices(None, lambda: 7.0)
        ended(run, a=KEPT)
        devices.on_check_in(m.CheckIn("a", 10, 4, policy=m.Policy(max_clip_norm=1.0)))
        devices.on_models(run.state, "a", False)
        assert devices.entry("a").kept is None


def test_the_report_says_what_devices_keep_and_why_or_that_it_was_not_told(tmp_path: Path) -> None:
    run = closing("a", "b", "c")
    none = Kept(NAMES[1], 0)
    summary = summarize(run.state, [ended(run, a=KEPT, b=None, c=none)], 1.0)
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
    assert '<td>not told</td><td class="wide why"></td>' in rows["b"]
    assert '<td class="wide why">no windows held out to judge by</td>' in rows["c"]
    assert '<td class="number">1</td>' in rows["not told"]
    assert '<meter min="0" max="3" value="1"' in rows["not told"]
    plain = summarize(msgspec.structs.replace(run.state, settings=SETTINGS, devices=Map()), [], 1.0)
    write_report(tmp_path, plain, [], MemoryBlobs())
    assert "keep" not in (tmp_path / "report.html").read_text().partition("</style>")[2]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (
            Kept(NAMES[0], 12, 0.5, {NAMES[1]: 0.25}),
            f"loss 0.500 on 12 windows, margin 0.250 to the least ({NAMES[1]})",
        ),
        (
            Kept(NAMES[1], 12, 0.25, {NAMES[0]: 0.5}),
            f"loss 0.250 on 12 windows, the least; passed over: {NAMES[0]} (margin 0.250)",
        ),
        (
            Kept(NAMES[1], 12, 0.25, {NAMES[0]: 0.5}, {NAMES[0]: 0.08, NAMES[1]: 0.0}),
            f"loss 0.250 on 12 windows, the least; passed over: {NAMES[0]} (margin 0.250, "
            "standard error 0.080)",
        ),
        (Kept(NAMES[0], 2, 0.5, {NAMES[1]: 0.25}), "loss 0.500 on 2 windows, too few to judge by"),
        (
            Kept(NAMES[1], 12, 0.5, {NAMES[0]: 0.25}, unusable=NAMES[:1]),
            "loss 0.500 on 12 windows, the least of those to be used; not to be used "
            f"({UNUSABLE}): {NAMES[0]}",
        ),
        (
            Kept(NAMES[1], 0, unusable=NAMES[:1]),
            f"no windows held out to judge by; not to be used ({UNUSABLE}): {NAMES[0]}",
        ),
        (None, ""),
    ],
)
def test_the_report_says_by_which_margin_a_device_chose(kept: Kept | None, said: str) -> None:
    assert margin_text(kept, NAMES) == said


@pytest.mark.parametrize(
    ("name", "errors", "said", "few"),
    [
        ("personal", 3.0, "no more than 3 standard errors", "tuned, neighbours 0.5"),
        (
            "fedavg+none+knn-per",
            0.0,
            "keeps the one with the least loss",
            "general, neighbours 0.5",
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
