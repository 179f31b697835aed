"""The vectors of tensor names, ``names.json``."""

import json

from tests.wire.signed_vectors import VECTORS

FILE = VECTORS / "names.json"

PARSED: list[tuple[str, str, str, str, bool, bool]] = [
    ("shared/head.weight", "shared", "head.weight", "shared/head.weight", True, False),
    ("shared/a/b.weight", "shared", "a/b.weight", "shared/a/b.weight", True, False),
    ("shared/log_variance", "shared", "log_variance", "shared/log_variance", True, False),
    ("shared/my_running_var", "shared", "my_running_var", "shared/my_running_var", True, False),
    ("shared/variance.running_var", "shared", "variance.running_var", "shared/variance.running_var", True, False),
    ("shared/next/w", "shared", "next/w", "shared/next/w", True, False),
    ("statistic/norm.running_mean", "statistic", "norm.running_mean", "statistic/norm.running_mean", True, False),
    ("statistic/norm.running_var", "statistic", "norm.running_var", "statistic/norm.running_var", True, True),
    ("statistic/running_var", "statistic", "running_var", "statistic/running_var", True, True),
    ("statistic/variance.running_mean", "statistic", "variance.running_mean", "statistic/variance.running_mean", True, False),
    ("statistic/running_var.scale", "statistic", "running_var.scale", "statistic/running_var.scale", True, False),
    ("statistics/norm.running_var", "statistics", "norm.running_var", "statistics/norm.running_var", False, False),
    ("private/bias", "private", "bias", "private/bias", False, False),
    ("private/personal.norm.running_var", "private", "personal.norm.running_var", "private/personal.norm.running_var", False, False),
    ("slot/momentum.head.weight", "slot", "momentum.head.weight", "slot/momentum.head.weight", False, False),
    ("memory/keys", "memory", "keys", "memory/keys", False, False),
    ("received/consensus", "received", "consensus", "received/consensus", False, False),
    ("received/start.head.weight", "received", "start.head.weight", "received/start.head.weight", False, False),
    ("delta/head.weight", "delta", "head.weight", "delta/head.weight", False, False),
    ("delta/log_variance.weight", "delta", "log_variance.weight", "delta/log_variance.weight", False, False),
    ("delta/variance.weight", "delta", "variance.weight", "delta/variance.weight", False, False),
    ("delta/norm.running_var", "delta", "norm.running_var", "delta/norm.running_var", False, False),
    ("response/predict", "response", "predict", "response/predict", False, False),
    ("response/variance", "response", "variance", "response/variance", False, False),
    ("response/survey.gradient", "response", "survey.gradient", "response/survey.gradient", False, False),
    ("response/survey.mean.norm", "response", "survey.mean.norm", "response/survey.mean.norm", False, False),
    ("response/survey.variance.norm", "response", "survey.variance.norm", "response/survey.variance.norm", False, True),
    ("response/survey.mean.variance.norm", "response", "survey.mean.variance.norm", "response/survey.mean.variance.norm", False, False),
    ("response/survey.mean.running_var", "response", "survey.mean.running_var", "response/survey.mean.running_var", False, False),
    ("response/conclude.change.variance.w", "response", "conclude.change.variance.w", "response/conclude.change.variance.w", False, False),
    ("response/survey.variance", "response", "survey.variance", "response/survey.variance", False, False),
    ("batch/x", "batch", "x", "batch/x", False, False),
    ("batch/uniform/extractor.6", "batch", "uniform/extractor.6", "batch/uniform/extractor.6", False, False),
    ("hyper/lr", "hyper", "lr", "hyper/lr", False, False),
    ("uniform/extractor.6", "uniform", "extractor.6", "uniform/extractor.6", False, False),
    ("normal/gradient", "normal", "gradient", "normal/gradient", False, False),
    ("next/shared/head.weight", "next", "shared/head.weight", "shared/head.weight", False, False),
    ("next/statistic/norm.running_var", "next", "statistic/norm.running_var", "statistic/norm.running_var", False, False),
    ("metric/loss_sum", "metric", "loss_sum", "metric/loss_sum", False, False),
    ("metric/variance.norm", "metric", "variance.norm", "metric/variance.norm", False, False),
    ("output/probabilities", "output", "probabilities", "output/probabilities", False, False),
    ("column/weight", "column", "weight", "column/weight", False, False),
    ("kept/memory/keys", "kept", "memory/keys", "kept/memory/keys", False, False),
    ("kept/statistic/norm.running_var", "kept", "statistic/norm.running_var", "kept/statistic/norm.running_var", False, False),
]
"""A name, its role, its name within the role, itself without ``next/``, whether it is exchanged, and whether it is a variance."""
BUILT: list[tuple[str, list[str], str]] = [
    ("shared", ["head.weight"], "shared/head.weight"),
    ("statistic", ["norm.running_var"], "statistic/norm.running_var"),
    ("private", ["bias"], "private/bias"),
    ("slot", ["momentum.head.weight"], "slot/momentum.head.weight"),
    ("memory", ["keys"], "memory/keys"),
    ("received", ["consensus"], "received/consensus"),
    ("received_start", ["head.weight"], "received/start.head.weight"),
    ("started_from", ["received/start.head.weight"], "shared/head.weight"),
    ("delta", ["head.weight"], "delta/head.weight"),
    ("response", ["survey", "variance.norm"], "response/survey.variance.norm"),
    ("response", ["predict"], "response/predict"),
    ("batch", ["weight"], "batch/weight"),
    ("hyper", ["lr"], "hyper/lr"),
    ("uniform", ["extractor.6"], "uniform/extractor.6"),
    ("normal", ["gradient"], "normal/gradient"),
    ("following", ["shared/head.weight"], "next/shared/head.weight"),
    ("metric", ["loss_sum"], "metric/loss_sum"),
    ("output", ["probabilities"], "output/probabilities"),
    ("column", ["weight"], "column/weight"),
    ("kept", ["shared/head.weight"], "kept/shared/head.weight"),
]
"""A function that builds a name, its arguments, and the name."""


def text() -> str:
    """The vectors of tensor names, one a line."""
    fields = ("key", "role", "name", "without_next", "is_exchanged", "is_variance")
    parsed = ",\n".join("  " + json.dumps(dict(zip(fields, row, strict=True))) for row in PARSED)
    built = ",\n".join("  " + json.dumps({"function": function, "arguments": given, "key": key}) for function, given, key in BUILT)
    return f'{{\n "parsed": [\n{parsed}\n ],\n "built": [\n{built}\n ]\n}}\n'
