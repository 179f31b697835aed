"""The server's phases of FedDisk and of its ablation: preparations, programs, late joiners,
options."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from algorithms.core.contract import LocalModel, ObjectiveMemory, Work
from algorithms.core.keys import NEWCOMER
from algorithms.objectives.feddisk import FedDiskServer
from algorithms.objectives.feddisk_ab import DensityRatioServer
from benchmarks.papers.feddisk import effective_cost
from tests.algorithms.feddisk_cases import absorb
from wire.errors import ConfigError
from wire.messages import Annotate, Apply, Evaluate, Train

WORK = Work(16, 2, {"lr": 0.1})


def answered(
    losses: Mapping[str, float], counts: Mapping[str, int] | None = None
) -> list[LocalModel]:
    return [
        LocalModel(
            d,
            (counts or {}).get(d, 10),
            1,
            NEWCOMER,
            {},
            {"response/validate.loss": np.asarray(loss, np.float32)},
        )
        for d, loss in sorted(losses.items())
    ]


def test_preparations_go_on_until_the_validation_loss_rises() -> None:
    server = FedDiskServer(holdout=0.2)
    context = server.begin({}, 0)
    for loss in (9.0, 7.0, 6.5):
        assert server.preparing(context)
        (validate, fit) = server.programs(context, WORK)[""]
        assert validate == Evaluate("holdout", "validate", holdout=0.2)
        assert fit == Train(16, 2, hyper={"lr": 0.1}, graph="density", holdout=0.2)
        context = absorb(server, context, answered({"a": loss, "b": loss}))
    context = absorb(server, context, answered({"a": 6.6, "b": 6.6}))
    assert not server.preparing(context)
    assert context.info["losses"] == pytest.approx([9.0, 7.0, 6.5, 6.6])


def test_validation_losses_count_by_examples_and_must_be_finite() -> None:
    server = FedDiskServer()
    context = absorb(
        server,
        server.begin({}, 0),
        answered({"a": 4.0, "b": 1.0, "c": float("nan")}, {"a": 10, "b": 30, "c": 99}),
    )
    assert context.info["losses"] == [pytest.approx(1.75)]
    context = absorb(server, context, answered({"c": float("inf")}))
    assert context.info["losses"][1] is None
    assert server.preparing(context)


def test_preparations_end_by_patience_and_by_number() -> None:
    server = FedDiskServer(patience=2)
    context = server.begin({}, 0)
    for loss, more in ((5.0, True), (6.0, True), (4.0, True), (4.5, True), (4.2, False)):
        context = absorb(server, context, answered({"a": loss}))
        assert server.preparing(context) == more
    server = FedDiskServer(preparations=2)
    context = absorb(server, server.begin({}, 0), answered({"a": 5.0}))
    assert server.preparing(context)
    assert not server.preparing(absorb(server, context, answered({"a": 4.0})))


def prepared(server: FedDiskServer) -> ObjectiveMemory:
    context = server.begin({}, 0)
    while server.preparing(context):
        context = absorb(server, context, answered({"a": 1.0, "b": 1.0}))
    return context


def test_devices_find_their_weights_once_and_late_joiners_catch_up() -> None:
    server = FedDiskServer(local_checks=2, local_epochs=3, ratio_epochs=7, holdout=0.25)
    context = prepared(server)
    (first,) = server.programs(context, WORK).values()
    local = Train(16, 3, hyper={"lr": 0.1}, graph="local_density", report=False, holdout=0.25)
    check = (
        local,
        Evaluate("holdout", "local_validate", holdout=0.25, report=False),
        Apply("keep_best"),
    )
    assert first == (
        Evaluate(),
        *check,
        *check,
        Train(16, 7, hyper={"lr": 0.1}, graph="ratio", report=False),
        Evaluate("train", "mean_weight", report=False),
        Annotate("weigh_to_mean_one", "weight"),
        Train(16, 2, hyper={"lr": 0.1}),
    )
    context = absorb(server, context, answered({"a": 1.0, "b": 1.0}))
    programs = server.programs(context, WORK)
    assert programs == {
        "": first,
        "device:a": (Evaluate(), WORK.train()),
        "device:b": (Evaluate(), WORK.train()),
    }
    context = absorb(server, context, answered({"a": 1.0, "late": 1.0}))
    assert set(server.programs(context, WORK)) == {"", "device:a", "device:b", "device:late"}


def test_weights_as_they_are_when_asked_for() -> None:
    server = FedDiskServer(mean_one=False)
    verbs = server.programs(prepared(server), WORK)[""]
    assert verbs[-2] == Annotate("weigh", "weight")


def test_the_ablation_prepares_once() -> None:
    server = DensityRatioServer(ratio_epochs=4)
    zeros = np.zeros((2, 2), np.float32)
    context = server.begin({"received/whitening": zeros, "shared/w": zeros}, 0)
    assert server.preparing(context)
    assert server.programs(context, WORK) == {"": (Evaluate("train", "moments"),)}
    assert set(server.received(context, {}, NEWCOMER)) == {"received/whitening"}
    answer = LocalModel(
        "a", 5, 0, NEWCOMER, {}, {"response/moments.second": np.eye(2, dtype=np.float32)}
    )
    context = absorb(server, context, [answer])
    assert not server.preparing(context)
    assert server.programs(context, WORK)[""][1] == Train(
        16, 4, hyper={"lr": 0.1}, graph="ratio", report=False
    )
    context = absorb(server, context, answered({"a": 1.0}))
    assert set(server.programs(context, WORK)) == {"", "device:a"}


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"holdout": 0.0}, "a number above 0 below 1"),
        ({"patience": 0}, "a whole number from 1"),
        ({"preparations": 0}, "a whole number from 1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], allowed: str) -> None:
    with pytest.raises(
        ConfigError, match=f"FedDiskServer: {next(iter(options))} must be {allowed}, got '0'"
    ):
        FedDiskServer(**options)


def test_cost_is_that_of_the_papers_tables() -> None:
    """FEMNIST in Tables I and II: 112 million for FedDisk, 907 million for FedROD."""
    assert round(effective_cost(447_000, 105, 614_000, 15), -6) == 112_000_000
    assert round(effective_cost(447_000, 1015), -6) == 907_000_000
