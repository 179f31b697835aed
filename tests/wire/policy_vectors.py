"""The vectors of policies: ``policy.json`` has policies, plans, and the rule that each plan
breaks."""

import json

import msgspec
from msgspec.structs import replace

from tests.wire.signed_vectors import RUN, VECTORS, A, B
from wire import messages as m
from wire.messages import (
    Annotate,
    Apply,
    Choose,
    Evaluate,
    Mask,
    Plan,
    Policy,
    Protect,
    Respond,
    SurveySum,
    TellGroup,
    Train,
    Verb,
)
from wire.secret.question import Part, SumQuestion
from wire.secret.survey import Plane, SurveyScale

FILE = VECTORS / "policy.json"
BUNDLE, MEASURING, LABELS, NUM_TEST = "watch", ["survey"], [i // 8 % 4 for i in range(40)], 10
"""Data of every case: the bundle's name, its graphs with responses, the labels of the device's
training windows, and the number of its test windows."""
GUARDED = Policy(max_clip_norm=1.0, min_noise_multiplier=0.5)
CHOOSY = Policy(min_windows=20)
MEMORISED = Evaluate("windows", "memorise", holdout=0.25, report=False, most=256)
TUNED = Train(32, report=False, holdout=0.6)
GLANCE, GAUGE = (
    Evaluate("unlabelled", "glance", report=False, most=64),
    Evaluate("windows", "gauge", report=False, most=256),
)
ONE = replace(GAUGE, most=1)
CLOSING: tuple[Verb, ...] = (
    GLANCE,
    GAUGE,
    Apply("recalibrate", report=False),
    MEMORISED,
    Apply("baseline", report=False),
    Train(32, report=False, holdout=0.25, least=6),
    Apply("blend", report=False),
    MEMORISED,
    Apply("choose"),
    Evaluate("test", "assess"),
)
"""Plans of `personal` after the last round."""
SILENT = tuple(replace(verb, report=False) if isinstance(verb, Apply) else verb for verb in CLOSING)

MASKED = Mask(SumQuestion(A, {"shared/w": Part(6, 0.25)}, 16, 20, 5, (B,), 1.8e9))
SECRET = Policy(min_sum=5)
SURVEY = Evaluate("train", "survey", "initial", report=False)
SCALE = SurveyScale((), (), (0.0,) * 32, (1.0,))
EXCHANGE = SurveySum("scale")
TELL = TellGroup(SCALE, (Plane("", (1.0,) * 32, 0.0),))
SURVEYS: list[tuple[str, Policy, tuple[Verb, ...], str]] = [
    ("an exchange of a survey", SECRET, (SURVEY, EXCHANGE, MASKED), ""),
    ("an exchange where clear updates are permitted", Policy(), (SURVEY, EXCHANGE, MASKED), ""),
    ("an exchange without a sum", SECRET, (SURVEY, EXCHANGE), "survey-sum"),
    ("an exchange without a survey", SECRET, (EXCHANGE, MASKED), "survey-sum"),
    ("an exchange after training", SECRET, (Train(32), SURVEY, EXCHANGE, MASKED), "survey-sum"),
    ("two exchanges", SECRET, (SURVEY, EXCHANGE, EXCHANGE, MASKED), "survey-sum"),
    (
        "a survey that is reported",
        SECRET,
        (replace(SURVEY, report=True), EXCHANGE, MASKED),
        "survey-sum",
    ),
    (
        "a survey by a model that was sent",
        SECRET,
        (replace(SURVEY, model="received"), EXCHANGE, MASKED),
        "survey-sum",
    ),
    (
        "a survey of some windows",
        SECRET,
        (replace(SURVEY, split="inputs", most=3), EXCHANGE, MASKED),
        "survey-sum",
    ),
    ("a device that tells its group", SECRET, (SURVEY, TELL), ""),
    ("a group of a trained model", SECRET, (Train(32), SURVEY, TELL), "tell-group"),
    ("a group that hides in a sum", SECRET, (SURVEY, TELL, MASKED), "tell-group"),
    ("a group and an exchange", SECRET, (SURVEY, TELL, EXCHANGE, MASKED), "tell-group"),
    ("a verb of groups", Policy(verbs=("evaluate", "mask")), (SURVEY, TELL), "verbs"),
    ("a survey over few windows", Policy(min_windows=41), (SURVEY, TELL), "min_windows"),
    ("an exchange without noise", GUARDED, (SURVEY, EXCHANGE, MASKED), "max_clip_norm"),
]

CASES: list[tuple[str, Policy, tuple[Verb, ...], str]] = [
    (
        "the default permits what plans usually ask",
        Policy(),
        (Evaluate(), Train(32, 5), Protect(1.0, 0.1)),
        "",
    ),
    ("epochs", Policy(), (Train(32, 600), Train(32, 600)), "max_epochs"),
    ("as many epochs as permitted", Policy(max_epochs=2.0), (Train(32), Train(32)), ""),
    ("steps that are epochs", Policy(max_epochs=2.0), (Train(20, steps=5),), "max_epochs"),
    ("steps that are as many as permitted", Policy(max_epochs=2.0), (Train(20, steps=4),), ""),
    ("a verb", Policy(verbs=("train",)), (Evaluate(), Train(32)), "verbs"),
    ("verbs that are permitted", Policy(verbs=("train", "evaluate")), (Evaluate(), Train(32)), ""),
    ("no verb is permitted", Policy(verbs=()), (Train(32),), "verbs"),
    ("a graph", Policy(graphs=("step",)), (Train(32), Apply("conclude")), "graphs"),
    ("a verb without a graph", Policy(graphs=("step",)), (Train(32), Protect(1.0)), ""),
    ("a bundle's name", Policy(bundles=("phone",)), (Train(32),), "bundles"),
    ("a bundle's name that is permitted", Policy(bundles=("phone", "watch")), (Train(32),), ""),
    ("no protect", GUARDED, (Train(32),), "max_clip_norm"),
    ("protect before train", GUARDED, (Protect(1.0, 0.5), Train(32)), "max_clip_norm"),
    ("protect last", GUARDED, (Evaluate(), Train(32), Protect(1.0, 0.5)), ""),
    ("a longer clip norm", GUARDED, (Train(32), Protect(1.5, 5.0)), "max_clip_norm"),
    ("a shorter clip norm with its noise", GUARDED, (Train(32), Protect(0.5, 0.25)), ""),
    ("less noise", GUARDED, (Train(32), Protect(1.0, 0.4)), "min_noise_multiplier"),
    (
        "noise in the step is no protect",
        Policy(min_noise_multiplier=1.0),
        (Train(32, hyper={"noise_multiplier": 1.0}),),
        "min_noise_multiplier",
    ),
    ("training that is not reported", GUARDED, (Train(32, report=False),), ""),
    (
        "a survey after training",
        GUARDED,
        (Train(32), Evaluate("train", "survey"), Protect(1.0, 0.5)),
        "max_clip_norm",
    ),
    (
        "a survey after training that is not reported",
        GUARDED,
        (Train(32, report=False), Evaluate("train", "survey")),
        "max_clip_norm",
    ),
    (
        "a survey that stays",
        GUARDED,
        (Train(32), Evaluate("train", "survey", report=False), Protect(1.0, 0.5)),
        "",
    ),
    (
        "a survey before training",
        GUARDED,
        (Evaluate("train", "survey"), Train(32), Protect(1.0, 0.5)),
        "max_clip_norm",
    ),
    ("a survey alone", GUARDED, (Evaluate("train", "survey"),), "max_clip_norm"),
    ("a graph over the tensors alone", GUARDED, (Apply("conclude"),), "max_clip_norm"),
    ("a graph over the tensors alone that stays", GUARDED, (Apply("conclude", report=False),), ""),
    (
        "a memory of all windows that stays",
        GUARDED,
        (Evaluate("windows", "survey", report=False),),
        "",
    ),
    ("a survey of all windows", GUARDED, (Evaluate("windows", "survey"),), "max_clip_norm"),
    (
        "a survey of all windows, of which few have labels",
        Policy(min_windows=41),
        (Evaluate("windows", "survey"),),
        "min_windows",
    ),
    (
        "a survey of the first windows",
        CHOOSY,
        (Evaluate("windows", "survey", most=39),),
        "min_windows",
    ),
    (
        "a survey of the first windows of an owner who permits any",
        Policy(tell_classes=True),
        (Evaluate("windows", "survey", most=1),),
        "",
    ),
    (
        "scores over the first windows",
        CHOOSY,
        (replace(GAUGE, most=25), Apply("choose")),
        "min_windows",
    ),
    ("scores over enough first windows", CHOOSY, (replace(GAUGE, most=26), Apply("choose")), ""),
    (
        "scores over the first ones held out",
        Policy(min_windows=10),
        (replace(MEMORISED, most=26), Apply("choose")),
        "min_windows",
    ),
    (
        "an answer after a look at one window",
        CHOOSY,
        (ONE, Apply("recalibrate", report=False), Respond(A)),
        "min_windows",
    ),
    (
        "training after a look at one window",
        CHOOSY,
        (ONE, Apply("recalibrate", report=False), Train(8)),
        "min_windows",
    ),
    (
        "a survey after a look at one window",
        CHOOSY,
        (ONE, Apply("recalibrate", report=False), Evaluate("train", "survey")),
        "min_windows",
    ),
    (
        "a survey of windows without labels",
        CHOOSY,
        (Evaluate("unlabelled", "survey"),),
        "min_windows",
    ),
    (
        "scores over one window without labels",
        CHOOSY,
        (replace(GLANCE, most=1), Apply("choose")),
        "min_windows",
    ),
    ("scores over enough windows without labels", CHOOSY, (GLANCE, Apply("choose")), ""),
    ("epochs that are left out", Policy(max_epochs=2.0), (Train(32, 5, least=41),), ""),
    ("training that is left out", Policy(min_windows=20), (Train(32, holdout=0.6, least=40),), ""),
    ("accuracy after training", GUARDED, (Train(32), Evaluate(), Protect(1.0, 0.5)), ""),
    (
        "an answer after training",
        GUARDED,
        (Train(32), Respond(A), Protect(1.0, 0.5)),
        "max_clip_norm",
    ),
    (
        "a graph over the tensors after training",
        GUARDED,
        (Train(32), Apply("conclude"), Protect(1.0, 0.5)),
        "max_clip_norm",
    ),
    (
        "a survey over three windows",
        Policy(min_windows=4),
        (Evaluate("holdout", "survey", holdout=0.075),),
        "min_windows",
    ),
    (
        "a survey over windows that are too few to be held out",
        Policy(min_windows=4, tell_classes=True),
        (Evaluate("holdout", "survey", holdout=0.05),),
        "",
    ),
    (
        "a survey over enough windows",
        Policy(min_windows=3, tell_classes=True),
        (Evaluate("holdout", "survey", holdout=0.1),),
        "",
    ),
    (
        "a survey over half a window more",
        Policy(min_windows=4),
        (Evaluate("holdout", "survey", holdout=0.0875),),
        "min_windows",
    ),
    (
        "a survey over few windows that stays",
        Policy(min_windows=4),
        (Evaluate("holdout", "survey", holdout=0.075, report=False),),
        "",
    ),
    (
        "training on what is left over",
        Policy(min_windows=20),
        (Train(32, holdout=0.6),),
        "min_windows",
    ),
    ("training on enough that is left over", Policy(min_windows=20), (Train(32, holdout=0.5),), ""),
    ("few test windows", Policy(min_windows=11), (Evaluate(),), "min_windows"),
    ("a choice over too few windows", Policy(min_windows=41), (Choose((A, B)),), "min_windows"),
    ("an answer over too few windows", Policy(min_windows=41), (Respond(A),), "min_windows"),
    ("scores over the windows held out", CHOOSY, (MEMORISED, Apply("choose")), "min_windows"),
    (
        "scores over enough windows held out",
        Policy(min_windows=8),
        (MEMORISED, Apply("choose")),
        "",
    ),
    ("scores over few windows that stay", CHOOSY, (MEMORISED, Apply("choose", report=False)), ""),
    (
        "scores after a report over enough windows",
        replace(CHOOSY, tell_classes=True),
        (Evaluate("train", "survey"), Apply("conclude")),
        "",
    ),
    (
        "scores over held windows that there are not",
        CHOOSY,
        (Evaluate("holdout", "survey", report=False), Apply("conclude")),
        "",
    ),
    (
        "scores over all windows, which are too few",
        Policy(min_windows=41),
        (Apply("conclude"),),
        "min_windows",
    ),
    ("a closing that reports", CHOOSY, CLOSING, "min_windows"),
    ("a closing that does not report", Policy(min_windows=10), SILENT, ""),
    ("training that stays on few windows", Policy(min_windows=41), (Train(32, report=False),), ""),
    ("scores of training that stays", CHOOSY, (TUNED, Apply("conclude")), "min_windows"),
    (
        "scores of training that is left out",
        CHOOSY,
        (Train(32, report=False, holdout=0.6, least=40), Apply("conclude")),
        "",
    ),
    ("training that stays in training that is reported", CHOOSY, (TUNED, Train(32)), "min_windows"),
    (
        "training that stays in a survey",
        CHOOSY,
        (TUNED, Evaluate("train", "survey")),
        "min_windows",
    ),
    ("training that stays in an answer", CHOOSY, (TUNED, Respond(A)), "min_windows"),
    ("how well a model answers after training that stays", CHOOSY, (TUNED, Evaluate("train")), ""),
    (
        "a survey of all windows, of which few are held out",
        CHOOSY,
        (Evaluate("windows", "survey", holdout=0.25),),
        "min_windows",
    ),
    ("an unreported graph that reports", Policy(unreported=("choose",)), CLOSING, "unreported"),
    ("an unreported graph", Policy(unreported=("choose",)), SILENT, ""),
    (
        "an unreported survey",
        Policy(unreported=("survey",)),
        (Evaluate("train", "survey"),),
        "unreported",
    ),
    (
        "an unreported survey that stays",
        Policy(unreported=("survey",)),
        (Evaluate("train", "survey", report=False),),
        "",
    ),
    ("an unreported step", Policy(unreported=("step",)), (Train(32),), "unreported"),
    ("an unreported step that stays", Policy(unreported=("step",)), (Train(32, report=False),), ""),
    ("an unreported answer", Policy(unreported=("predict",)), (Respond(A),), "unreported"),
    (
        "an unreported choice of a model",
        Policy(unreported=("evaluate",)),
        (Choose((A, B)),),
        "unreported",
    ),
    (
        "an unreported column stays",
        Policy(unreported=("ratio",)),
        (Annotate("ratio", "weight"),),
        "",
    ),
    ("training outside a secret sum", SECRET, (Train(32),), "min_sum"),
    ("training in a secret sum", SECRET, (Evaluate(), Train(32), MASKED), ""),
    ("training in what is no last verb", SECRET, (MASKED, Train(32)), "min_sum"),
    ("a secret sum of those with enough windows", Policy(), (Train(32, least=2), MASKED), "mask"),
    ("a secret sum of some windows", Policy(), (Train(32, holdout=0.2), MASKED), "mask"),
    ("a secret sum after a number of steps", Policy(), (Train(32, steps=3), MASKED), "mask"),
    ("a secret sum of what stays", Policy(), (Train(32, report=False), MASKED), "mask"),
    ("a secret sum after a choice", Policy(), (Choose((A, B)), Train(32), MASKED), "mask"),
    ("a secret sum after a column", Policy(), (Annotate("ratio", "w"), Train(32), MASKED), "mask"),
    ("a secret sum of tensors", Policy(), (Apply("conclude"), Train(32), MASKED), "mask"),
    ("a secret sum after an answer", Policy(), (Respond(A), Train(32), MASKED), "mask"),
    ("two secret sums", Policy(), (Train(32), MASKED, MASKED), "mask"),
    ("a secret sum after few windows", Policy(), (ONE, Train(32), MASKED), "mask"),
    ("a test outside a secret sum", SECRET, (Evaluate(),), "min_sum"),
    ("training that stays, without a secret sum", SECRET, (Train(32, report=False),), "min_sum"),
    ("a choice of a model outside a secret sum", SECRET, (Choose((A, B)),), "min_sum"),
    ("a survey that a secret sum leaves out", Policy(), (Evaluate("train", "survey"), MASKED), ""),
    ("training in a secret sum without noise", GUARDED, (Train(32), MASKED), "max_clip_norm"),
    ("noise before the mask", GUARDED, (Evaluate(), Train(32), Protect(1.0, 0.5), MASKED), ""),
    (
        "training in a secret sum on few windows",
        Policy(min_windows=41),
        (Train(32), MASKED),
        "min_windows",
    ),
    ("a verb that is not permitted", Policy(verbs=("train",)), (Train(32), MASKED), "verbs"),
    ("a survey that tells classes", Policy(), (Evaluate("train", "survey"),), "tell_classes"),
    (
        "a survey that tells classes before training",
        Policy(),
        (Evaluate("train", "survey", "initial"), Train(32)),
        "tell_classes",
    ),
    (
        "a survey of test windows tells classes too",
        Policy(),
        (Evaluate("test", "survey"),),
        "tell_classes",
    ),
    (
        "a survey of held windows tells classes too",
        Policy(),
        (Evaluate("holdout", "survey", holdout=0.25),),
        "tell_classes",
    ),
    (
        "a survey of all windows tells the classes of those with labels",
        Policy(),
        (Evaluate("windows", "survey", "initial"),),
        "tell_classes",
    ),
    ("a survey that may tell", Policy(tell_classes=True), (Evaluate("train", "survey"),), ""),
    ("a survey of inputs", Policy(), (Evaluate("inputs", "survey", "initial"), Train(32)), ""),
    ("a survey of windows without labels alone", Policy(), (Evaluate("unlabelled", "survey"),), ""),
    ("a survey with labels that stays", Policy(), (Evaluate("train", "survey", report=False),), ""),
    (
        "a survey of the first inputs",
        CHOOSY,
        (Evaluate("inputs", "survey", most=39),),
        "min_windows",
    ),
    ("a survey of enough inputs", CHOOSY, (Evaluate("inputs", "survey"),), ""),
    (
        "a survey of inputs of which few have labels",
        Policy(min_windows=41),
        (Evaluate("inputs", "survey"),),
        "min_windows",
    ),
    (
        "a survey of inputs is not covered either",
        GUARDED,
        (Evaluate("inputs", "survey"),),
        "max_clip_norm",
    ),
    ("a column is not a measurement", Policy(min_windows=41), (Annotate("ratio", "weight"),), ""),
]
"""A name, a policy, a plan's verbs, and the rule that the plan breaks; empty where it breaks
none."""

TOLD: list[tuple[str, Policy, list[int], tuple[int, ...] | None]] = [
    ("class counts stay on the device", Policy(), [0, 2, 2], None),
    ("class counts may be told", Policy(tell_classes=True), [0, 2, 2], (1, 0, 2)),
    ("no windows", Policy(tell_classes=True), [], ()),
    ("a class number that is too large", Policy(tell_classes=True), [0, 1000], None),
    ("the last class number", Policy(tell_classes=True), [999], (0,) * 999 + (1,)),
]
"""A name, a policy, the classes of a device's training windows, and what a check-in says of
them."""


def plan_of(verbs: tuple[Verb, ...]) -> Plan:
    """The plan with these verbs."""
    return m.Plan(RUN, 1795305600, 3, 0, "p01-left", A, B, verbs, 3000012, 1795306200.0)


def text() -> str:
    """The file, a case a line."""
    about = {"bundle": BUNDLE, "measuring": MEASURING, "labels": LABELS, "num_test": NUM_TEST}
    rows = [
        json.dumps(
            {
                "name": name,
                "policy": msgspec.to_builtins(policy),
                "plan": msgspec.to_builtins(plan_of(verbs)),
                "rule": rule,
            }
        )
        for name, policy, verbs, rule in (*CASES, *SURVEYS)
    ]
    told = [
        json.dumps(
            {"name": name, "policy": msgspec.to_builtins(policy), "y": y, "classes": classes}
        )
        for name, policy, y, classes in TOLD
    ]
    cases, classes = ",\n  ".join(rows), ",\n  ".join(told)
    return (
        f'{{\n "about": {json.dumps(about)},\n "cases": [\n  {cases}\n ],\n "told": [\n  '
        f"{classes}\n ]\n}}\n"
    )
