"""The vectors of policies: ``policy.json`` has policies, plans, and the rule that each plan breaks."""

import json

import msgspec

from tests.wire.signed_vectors import RUN, VECTORS, A, B
from wire import messages as m
from wire.messages import Annotate, Apply, Choose, Evaluate, Plan, Policy, Protect, Respond, Train, Verb

FILE = VECTORS / "policy.json"
BUNDLE, MEASURING, NUM_TRAIN, NUM_TEST = "watch", ["survey"], 40, 10
"""What every case is about: the bundle's name, its graphs with responses, and the device's windows."""
GUARDED = Policy(max_clip_norm=1.0, min_noise_multiplier=0.5)

CASES: list[tuple[str, Policy, tuple[Verb, ...], str]] = [
    ("the default permits what plans usually ask", Policy(), (Evaluate(), Train(32, 5), Protect(1.0, 0.1)), ""),
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
    ("a survey after training", GUARDED, (Train(32), Evaluate("train", "survey"), Protect(1.0, 0.5)), "max_clip_norm"),
    ("a survey after training that is not reported", GUARDED, (Train(32, report=False), Evaluate("train", "survey")), "max_clip_norm"),
    ("a survey that stays", GUARDED, (Train(32), Evaluate("train", "survey", report=False), Protect(1.0, 0.5)), ""),
    ("a survey before training", GUARDED, (Evaluate("train", "survey"), Train(32), Protect(1.0, 0.5)), "max_clip_norm"),
    ("a survey alone", GUARDED, (Evaluate("train", "survey"),), "max_clip_norm"),
    ("a graph over the tensors alone", GUARDED, (Apply("conclude"),), "max_clip_norm"),
    ("a graph over the tensors alone that stays", GUARDED, (Apply("conclude", report=False),), ""),
    ("a memory of all windows that stays", GUARDED, (Evaluate("windows", "survey", report=False),), ""),
    ("a survey of all windows", GUARDED, (Evaluate("windows", "survey"),), "max_clip_norm"),
    ("a survey of all windows, of which few have labels", Policy(min_windows=41), (Evaluate("windows", "survey"),), "min_windows"),
    ("epochs that are left out", Policy(max_epochs=2.0), (Train(32, 5, least=41),), ""),
    ("training that is left out", Policy(min_windows=20), (Train(32, holdout=0.6, least=40),), ""),
    ("accuracy after training", GUARDED, (Train(32), Evaluate(), Protect(1.0, 0.5)), ""),
    ("an answer after training", GUARDED, (Train(32), Respond(A), Protect(1.0, 0.5)), "max_clip_norm"),
    ("a graph over the tensors after training", GUARDED, (Train(32), Apply("conclude"), Protect(1.0, 0.5)), "max_clip_norm"),
    ("a survey over two windows", Policy(min_windows=3), (Evaluate("holdout", "survey", holdout=0.001),), "min_windows"),
    ("a survey over enough windows", Policy(min_windows=3), (Evaluate("holdout", "survey", holdout=0.1),), ""),
    ("a survey over half a window more", Policy(min_windows=3), (Evaluate("holdout", "survey", holdout=0.0625),), "min_windows"),
    ("a survey over few windows that stays", Policy(min_windows=3), (Evaluate("holdout", "survey", holdout=0.001, report=False),), ""),
    ("training on what is left over", Policy(min_windows=20), (Train(32, holdout=0.6),), "min_windows"),
    ("training on enough that is left over", Policy(min_windows=20), (Train(32, holdout=0.5),), ""),
    ("few test windows", Policy(min_windows=11), (Evaluate(),), "min_windows"),
    ("a choice over too few windows", Policy(min_windows=41), (Choose((A, B)),), "min_windows"),
    ("an answer over too few windows", Policy(min_windows=41), (Respond(A),), "min_windows"),
    ("a column is not a measurement", Policy(min_windows=41), (Annotate("ratio", "weight"),), ""),
]
"""A name, a policy, a plan's verbs, and the rule that the plan breaks; empty where it breaks none."""

TOLD: list[tuple[str, Policy, list[int], tuple[int, ...] | None]] = [
    ("class counts stay on the device", Policy(), [0, 2, 2], None),
    ("class counts may be told", Policy(tell_classes=True), [0, 2, 2], (1, 0, 2)),
    ("no windows", Policy(tell_classes=True), [], ()),
    ("a class number that is too large", Policy(tell_classes=True), [0, 1000], None),
    ("the last class number", Policy(tell_classes=True), [999], (0,) * 999 + (1,)),
]
"""A name, a policy, the classes of a device's training windows, and what a check-in says of them."""


def plan_of(verbs: tuple[Verb, ...]) -> Plan:
    """The plan with these verbs."""
    return m.Plan(RUN, 1795305600, 3, 0, "p01-left", A, B, verbs, 3000012, 1795306200.0)


def text() -> str:
    """The file, a case a line."""
    about = {"bundle": BUNDLE, "measuring": MEASURING, "num_train": NUM_TRAIN, "num_test": NUM_TEST}
    rows = [
        json.dumps({"name": name, "policy": msgspec.to_builtins(policy), "plan": msgspec.to_builtins(plan_of(verbs)), "rule": rule})
        for name, policy, verbs, rule in CASES
    ]
    told = [
        json.dumps({"name": name, "policy": msgspec.to_builtins(policy), "y": y, "classes": classes}) for name, policy, y, classes in TOLD
    ]
    cases, classes = ",\n  ".join(rows), ",\n  ".join(told)
    return f'{{\n "about": {json.dumps(about)},\n "cases": [\n  {cases}\n ],\n "told": [\n  {classes}\n ]\n}}\n'
