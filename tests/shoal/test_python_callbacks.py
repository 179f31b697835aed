"""Callbacks: what they are told, how they stop a run, and that a run which was interrupted goes on
with whole histories."""

import csv
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import shoal
from algorithms.composition import read_algorithm
from shoal.api.callbacks import Tracker
from simulation.datasets.windows import FleetData
from tests.shoal.small import small
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import quantities, several_labels, steps
from wire.errors import ConfigError


def run(
    *callbacks: shoal.Callback, algorithm: str = "fedavg", rounds: int = 3, **others: Any
) -> shoal.Result:
    """A run of four devices."""
    return shoal.simulate(
        synthetic_fleet(4),
        algorithm=algorithm,
        model=small,
        rounds=rounds,
        callbacks=callbacks,
        **others,
    )


class Told:
    """Keeps what it was told; answers with what `answer` says."""

    def __init__(
        self, answer: Callable[[shoal.Progress], shoal.Stop | None] = lambda _progress: None
    ) -> None:
        self.progress: list[shoal.Progress] = []
        self.answer = answer

    def on_round(self, progress: shoal.Progress) -> shoal.Stop | None:
        self.progress.append(progress)
        return self.answer(progress)


def stop_after(number: int) -> Told:
    """Stops after so many rounds of training."""
    return Told(lambda progress: shoal.STOP if progress.round == number else None)


class Interrupted(Exception):
    """Stands for a power cut."""


def interrupted_after(number: int) -> Told:
    """Breaks a run off after so many rounds of training."""

    def answer(progress: shoal.Progress) -> None:
        if progress.round == number:
            raise Interrupted

    return Told(answer)


def test_they_are_told_of_every_round_and_of_the_last_test() -> None:
    told = Told()
    result = run(told)
    assert [(p.round, p.metrics.phase, p.metrics.evaluated) for p in told.progress] == [
        (1, "training", 0),
        (2, "training", 1),
        (3, "training", 2),
        (3, "evaluating", 3),
    ]
    assert told.progress[-1].history == result.rounds
    assert [p.history for p in told.progress] == [result.rounds[: i + 1] for i in range(4)]
    final = {e.device: e.accuracy for e in result.evaluations if e.final}
    assert told.progress[-1].accuracies == final
    assert [set(p.groups.values()) for p in told.progress] == [{0}] * 4


def test_what_is_no_callback_is_refused_before_the_first_round() -> None:
    with pytest.raises(
        ConfigError, match=r"callbacks: a object has no method on_round\(progress\)"
    ):
        shoal.simulate("nowhere", callbacks=[object()])  # type: ignore[list-item]


def test_preparations_are_rounds_too() -> None:
    told = Told()
    run(told, algorithm="dbe", rounds=1)
    assert [(p.round, p.metrics.phase) for p in told.progress] == [
        (0, "preparing"),
        (1, "training"),
        (1, "evaluating"),
    ]


def test_they_see_the_models_as_they_are_then() -> None:
    """After a round the model is that of a run which ends there; a device's is what it would answer
    with."""
    seen: list[tuple[torch.nn.Module, torch.nn.Module]] = []

    def look(progress: shoal.Progress) -> None:
        if progress.metrics.phase == "training":
            seen.append((progress.model(), progress.model(device="d1")))

    run(Told(look))
    assert len(seen) == 3
    for number, (of_group, of_device) in enumerate(seen, start=1):
        ended = run(rounds=number)
        for value, other, own in zip(
            of_group.parameters(), ended.model().parameters(), of_device.parameters(), strict=True
        ):
            assert torch.equal(value, other)
            assert torch.equal(value, own)


def test_what_a_device_keeps_is_in_its_model_at_once() -> None:
    told: list[torch.nn.Module] = []

    def look(progress: shoal.Progress) -> None:
        told.append(progress.model(device="d2"))

    result = run(Told(look), algorithm="fedper", rounds=2)
    first, second, last = (
        [v.detach() for n, v in module.named_parameters() if n.startswith("head.")]
        for module in told
    )
    assert not torch.equal(first[0], second[0])
    assert torch.equal(second[0], last[0])
    with pytest.raises(shoal.ConfigError, match="so this model is not whole"):
        result.model()


class TestStopping:
    def test_a_run_ends_with_its_test_and_says_why(self) -> None:
        told = stop_after(2)
        result = run(told, rounds=9)
        assert [(p.round, p.metrics.phase) for p in told.progress] == [
            (1, "training"),
            (2, "training"),
            (2, "evaluating"),
        ]
        assert result.summary.ended == "a callback stopped it"
        assert result.outcome.campaign.models == run(rounds=2).outcome.campaign.models
        assert run(rounds=2).summary.ended == ""

    def test_all_are_called_though_one_stops(self) -> None:
        after = Told()
        run(stop_after(1), after)
        assert [p.metrics.phase for p in after.progress] == ["training", "evaluating"]

    def test_a_stopped_run_stays_stopped(self, tmp_path: Path) -> None:
        first = run(stop_after(1), rounds=5, checkpoint=tmp_path)
        again = run(Told(), rounds=5, checkpoint=tmp_path)
        assert (again.outcome.campaign.models, again.summary.ended) == (
            first.outcome.campaign.models,
            "a callback stopped it",
        )
        assert again.rounds == first.rounds

    def test_patience_counts_rounds_without_gain(self) -> None:
        result = run(shoal.EarlyStopping(2, min_delta=1.0), rounds=9)
        assert [(r.round, r.phase) for r in result.rounds] == [
            (1, "training"),
            (2, "training"),
            (3, "training"),
            (3, "evaluating"),
        ]
        told = Told()
        gaining = run(
            shoal.EarlyStopping(3, measure="accuracy_worst"),
            told,
            rounds=12,
            lr=0.05,
            local_epochs=3,
        )
        best, since = -1.0, 0
        for metrics in gaining.rounds[:-1]:
            assert since < 3
            assert metrics.accuracy_worst is not None
            best, since = (
                (metrics.accuracy_worst, 0) if metrics.accuracy_worst > best else (best, since + 1)
            )
        assert since == 3 or len(gaining.rounds) == 13

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((0,), "patience must be at least 1 round, got 0"),
            ((1, 0.0, "median"), r"measure must be one of accuracy_mean, .*, got 'median'"),
        ],
    )
    def test_options_that_cannot_be_are_said(self, arguments: Any, said: str) -> None:
        with pytest.raises(shoal.ConfigError, match=said):
            shoal.EarlyStopping(*arguments)


class TestGoingOn:
    @pytest.mark.parametrize("algorithm", ["fedavg", "personal", "dbe"])
    def test_it_ends_as_if_it_had_not_been_interrupted(
        self, algorithm: str, tmp_path: Path
    ) -> None:
        whole = run(shoal.CsvLog(tmp_path / "whole.csv"), algorithm=algorithm)
        options: dict[str, Any] = {"algorithm": algorithm, "checkpoint": tmp_path / "checkpoint"}
        with pytest.raises(Interrupted):
            run(shoal.CsvLog(tmp_path / "broken.csv"), interrupted_after(2), **options)
        told = Told()
        gone_on = run(shoal.CsvLog(tmp_path / "broken.csv"), told, **options)
        assert [(p.round, p.metrics.phase) for p in told.progress] == [
            (3, "training"),
            (3, "evaluating"),
        ]
        assert gone_on.outcome.campaign.models == whole.outcome.campaign.models
        assert gone_on.rounds == whole.rounds
        assert (tmp_path / "broken.csv").read_text() == (tmp_path / "whole.csv").read_text()

    def test_patience_counts_the_rounds_before(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            run(interrupted_after(2), rounds=9, checkpoint=tmp_path)
        result = run(shoal.EarlyStopping(2, min_delta=1.0), rounds=9, checkpoint=tmp_path)
        assert len(result.rounds) == 4

    def test_another_run_in_the_folder_is_refused(self, tmp_path: Path) -> None:
        run(rounds=1, checkpoint=tmp_path)
        with pytest.raises(shoal.ConfigError, match="is of a run with seed 0, and this one has 1"):
            run(rounds=1, checkpoint=tmp_path, seed=1)


def test_a_csv_file_has_a_line_for_each_round(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "rounds.csv"
    result = run(shoal.CsvLog(path))
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert lines == [
        {name: "" if value is None else str(value) for name, value in asdict(metrics).items()}
        for metrics in result.rounds
    ]
    with pytest.raises(shoal.ConfigError, match="Is a directory"):
        run(shoal.CsvLog(tmp_path), rounds=1)


@pytest.mark.parametrize(
    ("labelled", "task", "names"),
    [
        (lambda data: data, "classification", {"macro_f1"}),
        (several_labels, "multi-label", {"macro_f1", "auc"}),
        (quantities, "regression", {"mae/speed", "mae/height"}),
        (steps, "sequence", {"macro_f1"}),
        (lambda data: data, "reconstruction", set()),
    ],
)
def test_rounds_follow_the_task(
    labelled: Callable[[FleetData], FleetData], task: str, names: set[str], tmp_path: Path
) -> None:
    """The measures after the last round are those of the result, and the loss is the mean of what
    devices reported."""
    told = Told()
    measured: list[dict[str, float]] = []
    look = Told(lambda progress: measured.append(progress.measures()))
    options: dict[str, Any] = {
        "algorithm": f"fedavg+{task}",
        "rounds": 2,
        "callbacks": [told, look, shoal.CsvLog(tmp_path / "r.csv", True)],
    }
    result = shoal.simulate(labelled(synthetic_fleet(3)), **options)
    assert [set(said) for said in measured] == [names] * 3
    last, summary = measured[-1], result.summary
    for name in names & {"macro_f1", "auc"}:
        assert last[name] == pytest.approx(known(getattr(summary, name)).mean, abs=1e-5)
    for name in names - {"macro_f1", "auc"}:
        assert last[name] == pytest.approx(
            known(summary.mae)[name.removeprefix("mae/")].mean, rel=1e-4
        )
    losses = [e.loss for e in result.evaluations if e.final]
    assert result.rounds[-1].test_loss == pytest.approx(sum(losses) / len(losses))
    assert told.progress[0].accuracy_is == read_algorithm(f"fedavg+{task}").parts.task.accuracy
    with (tmp_path / "r.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [{name: float(line[name]) for name in names} for line in lines] == measured


def test_nothing_answers_where_no_measures_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a model has answered")

    monkeypatch.setattr("shoal.api.progress.answers_of", never)
    run(Told(), shoal.CsvLog(tmp_path / "r.csv"), rounds=1)
    with pytest.raises(AssertionError, match="a model has answered"):
        run(shoal.CsvLog(tmp_path / "r.csv", measures=True), rounds=1)


def test_patience_with_a_loss_counts_rounds_in_which_it_gets_no_smaller() -> None:
    falling = run(shoal.EarlyStopping(1, measure="test_loss"), rounds=4, lr=0.05, local_epochs=3)
    losses = [known(r.test_loss) for r in falling.rounds if r.phase == "training"]
    assert losses[0] > losses[1], "a loss that falls does not end the run"
    assert all(before > after for before, after in pairwise(losses[:-1]))
    assert (
        len(run(shoal.EarlyStopping(1, min_delta=9.0, measure="test_loss"), rounds=9).rounds) == 3
    )


def test_tensorboard_has_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboard",
        reason="TensorBoard is not installed: pip install 'shoal[tensorboard]' would run this",
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(shoal.TensorBoard(tmp_path, measures=True))
    events = EventAccumulator(str(tmp_path)).Reload()
    means = [(e.step, e.value) for e in events.Scalars("accuracy_mean")]
    assert means == [(r.evaluated, pytest.approx(r.accuracy_mean)) for r in result.rounds]
    assert [e.step for e in events.Scalars("macro_f1")] == [1, 2, 3, 3]
    assert "windows whose class is told rightly" in str(events.Tensors("accuracy/text_summary")[0])
    own = [e.value for e in events.Scalars("accuracy/d1")]
    assert own == pytest.approx([e.accuracy for e in result.evaluations if e.device == "d1"])


def test_mlflow_has_the_numbers(tmp_path: Path) -> None:
    mlflow = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: pip install 'shoal[mlflow]' would run this"
    )
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow.start_run() as active:
        result = run(shoal.MLflow(measures=True))
    about = mlflow.get_run(active.info.run_id).data
    assert about.tags["accuracy"] == "windows whose class is told rightly"
    assert about.metrics["macro_f1"] == pytest.approx(result.macro_f1.mean, abs=1e-5)
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, "accuracy_mean")
    assert sorted((m.step, m.value) for m in history) == [
        (r.evaluated, r.accuracy_mean) for r in result.rounds
    ]


@pytest.mark.parametrize(
    ("name", "package", "arguments"),
    [
        ("TensorBoard", "torch.utils.tensorboard", ("runs",)),
        ("MLflow", "mlflow", ()),
        ("WandB", "wandb", ()),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, package: str, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = name.lower()
    with pytest.raises(
        shoal.ConfigError,
        match=rf"^shoal\.{name} needs the package {extra}: pip install 'shoal\[{extra}\]'$",
    ):
        getattr(shoal, name)(*arguments)


class Recorded(Tracker):
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(measures=False)
        self.runs: list[dict[str, Any]] = []

    def begin(self, progress: shoal.Progress) -> None:
        self.runs.append({"settings": progress.settings, "steps": [], "status": ""})

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        assert "accuracy_mean" in numbers
        self.runs[-1]["steps"].append(step)

    def end(self, status: str) -> None:
        self.runs[-1]["status"] = status


class TestRuns:
    def test_each_simulation_is_a_run_with_its_settings(self) -> None:
        tracker = Recorded()
        run(tracker, rounds=2, lr=0.05, seed=4)
        run(tracker, rounds=1, algorithm="fedprox", hyper={"mu": 0.5})
        assert [r["steps"] for r in tracker.runs] == [[0, 1, 2], [0, 1]]
        assert [r["status"] for r in tracker.runs] == ["finished"] * 2
        first, second = (r["settings"] for r in tracker.runs)
        assert (first["rounds"], first["hyper.lr"], first["seed"]) == (2, 0.05, 4)
        assert (second["rounds"], second["algorithm"], second["hyper.mu"]) == (1, "fedprox", 0.5)
        assert "hyper.mu" not in first
        assert first["data"] == synthetic_fleet(4).name

    def test_a_run_that_was_interrupted_does_not_go_on_in_the_next(self, tmp_path: Path) -> None:
        tracker = Recorded()
        with pytest.raises(Interrupted):
            run(tracker, interrupted_after(2), rounds=4)
        run(tracker, rounds=1)
        assert [r["status"] for r in tracker.runs] == ["failed", "finished"]

    def test_each_simulation_has_a_csv_file_with_its_columns(self, tmp_path: Path) -> None:
        log = shoal.CsvLog(tmp_path / "r.csv", measures=True)
        run(log, rounds=1)
        shoal.simulate(
            quantities(synthetic_fleet(3)),
            algorithm="fedavg+regression",
            rounds=2,
            callbacks=[log],
        )
        columns = []
        for name, rows in (("r.csv", 2), ("r-2.csv", 3)):
            with (tmp_path / name).open(newline="") as file:
                lines = list(csv.DictReader(file))
            assert len(lines) == rows
            assert all(None not in line and None not in line.values() for line in lines)
            columns.append(set(lines[0]))
        assert columns[1] - columns[0] == {"mae/speed", "mae/height"}
        assert columns[0] - columns[1] == {"macro_f1"}

    def test_mlflow_has_a_run_for_each_simulation(self, tmp_path: Path) -> None:
        mlflow = pytest.importorskip(
            "mlflow", reason="MLflow is not installed: pip install 'shoal[mlflow]' would run this"
        )
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
        tracker = shoal.MLflow()
        with mlflow.start_run() as active:
            for seed in (0, 1):
                run(tracker, rounds=1, seed=seed)
        for seed in (2, 3):
            run(tracker, rounds=1, seed=seed)
        assert mlflow.active_run() is None
        runs = mlflow.search_runs(output_format="list")
        assert sorted(r.data.params["seed"] for r in runs) == list("0123")
        assert {r.info.status for r in runs} == {"FINISHED"}
        parents = {r.data.params["seed"]: r.data.tags.get("mlflow.parentRunId") for r in runs}
        assert parents == {"0": None, "1": active.info.run_id, "2": None, "3": None}
        client = mlflow.MlflowClient()
        for r in runs:
            history = client.get_metric_history(r.info.run_id, "accuracy_mean")
            assert [m.step for m in history] == [0, 1]

    def test_tensorboard_has_a_folder_for_each_simulation(self, tmp_path: Path) -> None:
        pytest.importorskip(
            "tensorboard",
            reason="TensorBoard is not installed: pip install 'shoal[tensorboard]' would run this",
        )
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for seed in (0, 1, 2):
            run(shoal.TensorBoard(tmp_path), rounds=1, seed=seed)
        for seed, folder in enumerate((tmp_path, tmp_path / "run-2", tmp_path / "run-3")):
            events = EventAccumulator(str(folder)).Reload()
            assert [e.step for e in events.Scalars("accuracy_mean")] == [0, 1]
            settings = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]
            assert f"| seed | {seed} |" in settings.decode()

    def test_tensorboard_goes_on_in_the_folder_of_an_interrupted_run(self, tmp_path: Path) -> None:
        pytest.importorskip(
            "tensorboard",
            reason="TensorBoard is not installed: pip install 'shoal[tensorboard]' would run this",
        )
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        options: dict[str, Any] = {"rounds": 4, "checkpoint": tmp_path / "checkpoint"}
        board = tmp_path / "board"
        with pytest.raises(Interrupted):
            run(shoal.TensorBoard(board), interrupted_after(2), **options)
        run(shoal.TensorBoard(board), **options)
        assert [path for path in board.iterdir() if path.is_dir()] == []
        events = EventAccumulator(str(board)).Reload()
        assert [e.step for e in events.Scalars("accuracy_mean")] == [0, 1, 2, 3, 4]

    def test_weights_and_biases_has_a_run_for_each_simulation(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip(
            "wandb", reason="W&B is not installed: pip install 'shoal[wandb]' would run this"
        )
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.chdir(tmp_path)
        seen: list[tuple[str, int, float]] = []

        class Watched(shoal.WandB):
            def end(self, status: Literal["finished", "failed"]) -> None:
                run = self._run
                seen.append((run.id, run.config["seed"], run.summary["accuracy_mean"]))
                super().end(status)

        tracker = Watched("tests", measures=True)
        results = [run(tracker, rounds=1, seed=seed) for seed in (0, 1)]
        assert [seed for _, seed, _ in seen] == [0, 1]
        assert len({run_id for run_id, *_ in seen}) == 2
        assert [accuracy for *_, accuracy in seen] == [r.rounds[-1].accuracy_mean for r in results]
