"""A class for each step of a window: learned, measured and answered step by step, on every backend
as torch has it."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import shoal
from algorithms.composition import read_algorithm
from algorithms.models.blocks import conv
from algorithms.models.registry import make_model
from algorithms.models.tcn import CHANNELS, LAYERS, Dilated, tcn
from algorithms.models.text import WIDTH, Embedded
from algorithms.tasks.sequence import Sequence
from edge_client.commands.predict import told
from edge_client.data.labels import classes_of_steps
from export.describe import example_inputs, named
from export.model_file import agreement, to_onnx_file
from export.parity import check_parity
from export.publish import publish
from export.runtimes import load_whole
from simulation.contract.rounds import repeats
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import for_task
from simulation.local.fleet import write_device_folder
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName
from tests.algorithms.task_cases import check_composed, ran, ran_alike
from tests.support.bundles import some_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from tests.support.labels import STEPS, relabelled, steps
from tests.support.objectives import OBJECTIVES
from wire.arrays import names
from wire.bundle import Window
from wire.errors import ConfigError, DataError
from wire.identity.keys import new_key
from wire.tasks import NO_LABEL

ALGORITHM = "fedavg+sequence"
LEARNS = "fedavg:lr=0.05+sequence"


def test_steps_are_learned_and_answered_one_by_one() -> None:
    result = shoal.simulate(
        steps(synthetic_fleet(3, num_windows=90)),
        algorithm=LEARNS,
        rounds=6,
        local_epochs=2,
        newcomers=1,
    )
    assert known(result.accuracy.mean) > 0.7
    device = sorted(result.data.devices)[0]
    windows = result.data.devices[device]
    probabilities = result.predict(windows.test_x, device=device)
    assert probabilities.shape == (12, STEPS, 3)
    np.testing.assert_allclose(probabilities.sum(2), 1, rtol=1e-5)
    assert result.predict(windows.test_x[:0], device=device).shape == (0, STEPS, 3)
    said = result.predictions(device)
    assert said.tolist() == probabilities.argmax(2).tolist()
    labelled = windows.test_y != NO_LABEL
    assert result.confusion(device).sum() == labelled.sum() < labelled.size
    assert np.trace(result.confusion(device)) == (said == windows.test_y)[labelled].sum()
    shares = [(one == y)[y != NO_LABEL].mean() for one, y in zip(said, windows.test_y, strict=True)]
    assert result.summary.devices[device].accuracy == pytest.approx(
        round(sum(shares)) / len(shares)
    ), "in whole windows"
    assert 0 < known(result.macro_f1.mean) <= 1
    assert known(known(result.summary.newcomers).macro_f1).mean is not None
    assert result.summary.accuracy_is == "labelled steps of a window whose class is told rightly"


def test_the_step_and_the_answers_are_those_of_plain_torch() -> None:
    fleet = steps(synthetic_fleet(1))
    objective = objective_for_fleet(fleet, read_algorithm("fedavg:lr=0.1:momentum=0+sequence"), 0)
    inputs = example_inputs(objective, fleet.window.shape)
    y = inputs[names.Y] = torch.from_numpy(fleet.devices["d0"].train_y[: len(inputs[names.X])])
    weights = {
        key: value.clone().requires_grad_()
        for key, value in objective.initial().items()
        if key.startswith("shared/")
    }
    state = {names.name_of(k): v for k, v in weights.items()}
    state |= {
        names.name_of(k): v for k, v in objective.initial().items() if k.startswith("statistic/")
    }
    logits = torch.func.functional_call(objective.model.train(), state, inputs[names.X])
    each = [
        torch.nn.functional.cross_entropy(one, label, ignore_index=NO_LABEL)
        for one, label in zip(logits, y, strict=True)
    ]
    made = named(objective.graphs()["step"])(inputs)
    gradients = torch.autograd.grad(torch.stack(each).mean(), list(weights.values()))
    for (key, value), gradient in zip(weights.items(), gradients, strict=True):
        torch.testing.assert_close(
            made[names.following(key)], value - 0.1 * gradient, atol=1e-5, rtol=1e-5
        )
    shares = [
        (one.argmax(1) == label)[label != NO_LABEL].float().mean()
        for one, label in zip(logits, y, strict=True)
    ]
    assert float(made[names.NUM_CORRECT]) == pytest.approx(float(sum(shares)))


@given(st.integers(0, 2**32 - 1))
def test_what_steps_without_a_label_are_told_changes_nothing(seed: int) -> None:
    drawing = torch.Generator().manual_seed(seed)
    logits, other = (torch.randn(5, STEPS, 3, generator=drawing) for _ in range(2))
    y = torch.randint(NO_LABEL, 3, (5, STEPS), generator=drawing)
    y[0] = NO_LABEL
    task, mixed = Sequence(), torch.where((y == NO_LABEL).unsqueeze(2), other, logits)
    for measure in (task.losses, task.right):
        torch.testing.assert_close(measure(mixed, y), measure(logits, y))
        assert float(measure(logits, y)[0]) == 0, "a window without labels has no part in anything"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_step_has_the_class_that_all_its_samples_have(
    count: int, parts: int, samples: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(NO_LABEL, 2, (count, parts * samples))
    for window, made in zip(labels, classes_of_steps(labels, parts), strict=True):
        own = [set(window[at : at + samples].tolist()) for at in range(0, len(window), samples)]
        assert made.tolist() == [held.pop() if len(held) == 1 else NO_LABEL for held in own]


@pytest.mark.parametrize("backend", ["batched", "messages"])
def test_every_backend_makes_the_same_steps(backend: BackendName) -> None:
    eager, other = ran_alike(ALGORITHM, steps(synthetic_fleet(2)), backend)
    for device_id, device in eager.summary.devices.items():
        assert other.summary.devices[device_id].macro_f1 == pytest.approx(
            known(device.macro_f1), abs=0.05
        )


def test_the_native_backend_says_that_its_loss_is_another() -> None:
    with pytest.raises(
        ConfigError, match=r"backend native: the loss of sequence is more than the cross-entropy\."
    ):
        ran(ALGORITHM, steps(synthetic_fleet(2)), "native", rounds=1)


@pytest.mark.representatives("fedavg", "ditto", "fedgen")
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_composes_or_is_refused_by_name(name: str) -> None:
    check_composed(name, "sequence", 3, Window(("a", "b"), 32, 32, steps=STEPS))


@pytest.mark.full
def test_tiny_fleets_of_steps_repeat() -> None:
    repeats("dbe+distfl+sequence")


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        (
            "fedavg",
            {},
            r"y must be int64\[40\] for classification, got int64\[40, 4\]: these are classes of "
            r"steps, of the task sequence, as in fedavg\+sequence",
        ),
        (
            "fedavg+multi-label",
            {},
            r"y must be int64\[40, 3\] for multi-label, got int64\[40, 4\]: these are classes of "
            r"steps",
        ),
        (
            "fedavg+sequence",
            {"model": "har-cnn"},
            "model har-cnn gives one answer for a whole window, .* Use tcn",
        ),
        ("fedavg+sequence", {"labels": 5}, "labels must be all or none, .* are not classes, got 5"),
        (
            "fedavg+knn-per+sequence",
            {},
            "the task sequence cannot use them. Use personal, recalibrated or served",
        ),
    ],
)
def test_what_does_not_go_with_steps_is_refused(
    algorithm: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        shoal.simulate(steps(synthetic_fleet(2)), algorithm=algorithm, rounds=1, **options)


def test_windows_without_steps_have_no_sequence() -> None:
    with pytest.raises(
        DataError,
        match=r"y must be int64\[40, 0\] for sequence, got int64\[40\]: these are classes, one for "
        r"each window, of the task class",
    ):
        ran(ALGORITHM, synthetic_fleet(2))
    with pytest.raises(ConfigError, match="sequence needs windows with a label for each step"):
        objective_for_fleet(synthetic_fleet(2), read_algorithm(ALGORITHM), 0)
    made = for_task(steps(synthetic_fleet(1)), "reconstruction")
    assert made.window.steps == 0, "windows alone are given back"


class PerStep(nn.Module):
    """A recurrent network of a user's own; `last` says whether its classes come last."""

    def __init__(self, last: bool = True) -> None:
        super().__init__()
        self.gru, self.out, self.last = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 3), last

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.gru(x.transpose(1, 2))[0][:, 7::8]
        logits: Tensor = self.out(hidden) if self.last else self.out(hidden[:, 0])
        return logits


def test_a_model_of_ones_own_answers_each_step() -> None:
    fleet = steps(synthetic_fleet(2))
    result = shoal.simulate(fleet, model=PerStep(), algorithm=ALGORITHM, rounds=1)
    assert result.predict(fleet.devices["d0"].test_x, device="d0").shape == (12, STEPS, 3)
    with pytest.raises(
        ConfigError,
        match="model PerStep: its layer 'out' is not called once for all 4 steps of an example",
    ):
        shoal.simulate(fleet, model=PerStep(last=False), algorithm=ALGORITHM, rounds=1)


def test_models_of_the_list_take_ids_and_windows_without_steps() -> None:
    ids = Window(("event",), 12, 12, vocabulary=9, steps=6)
    x = torch.randint(9, (2, 1, 12))
    assert make_model("text-tcn", ids, 3, torch.ones(1))(x).shape == (2, 6, 3)
    whole = Window(("a",), 20, 20)
    assert make_model("tcn", whole, 3, torch.ones(1))(torch.randn(2, 1, 20)).shape == (2, 3)
    for wrong in ({"steps": 3}, {"steps": 4, "height": 5}):
        with pytest.raises(ConfigError, match=r"cannot be divided into . equal steps"):
            make_model("tcn", msgspec.structs.replace(whole, **wrong), 3, torch.ones(1))


@pytest.mark.parametrize("vocabulary", [0, 9])
def test_a_seed_gives_the_weights_of_layers_drawn_in_the_order_of_the_first_version(
    vocabulary: int,
) -> None:
    torch.manual_seed(0)
    classifier = tcn(Window(("a",), 12, 12, vocabulary=vocabulary), 3, torch.ones(1))
    torch.manual_seed(0)
    blocks = [Dilated(1, CHANNELS, 2**layer) for layer in range(LAYERS)]
    first = conv(1, WIDTH if vocabulary else 1, CHANNELS, 1)
    embedding = [Embedded(vocabulary, WIDTH)] if vocabulary else []
    head = nn.Linear(CHANNELS, 3)
    expected = nn.Sequential(*embedding, first, *blocks, head).parameters()
    for value, same in zip(classifier.parameters(), expected, strict=True):
        assert torch.equal(value, same)


def test_files_and_arrays_of_steps_are_read(tmp_path: Path) -> None:
    fleet = steps(synthetic_fleet(2))
    for device_id in fleet.devices:
        write_device_folder(fleet, device_id, tmp_path / "folders" / device_id)
    held = load_data(str(tmp_path / "folders"))
    assert (held.window.steps, held.classes) == (STEPS, ("0", "1", "2"))
    x, y = fleet.sample()
    called = np.array(["", "run", "sit", "walk"])[y + 1]
    mapped = shoal.load({"a": (x, called), "b": (x, called)})
    assert (mapped.classes, mapped.window.steps) == (("run", "sit", "walk"), STEPS)
    assert mapped.devices["b"].train_y.tolist() == y[:30].tolist(), (
        "the last quarter is for testing"
    )
    two = shoal.load({"a": (x, y % 2)}, classes=("rest", "moves"))
    assert (two.window.steps, two.classes) == (STEPS, ("rest", "moves"))
    assert for_task(shoal.load({"a": (x, y % 2)}), "sequence").window.steps == STEPS, (
        "the task says what columns of 0 and 1 are"
    )
    assert for_task(shoal.load({"a": (x, y % 2)}), "multi-label").window.steps == 0
    blank = y.copy()
    blank[3] = NO_LABEL
    with pytest.raises(DataError, match="no step of window 3 has a label"):
        for_task(shoal.load({"a": (x, blank)}), "sequence")
    with pytest.raises(DataError, match="no step of any window has a label"):
        shoal.load({"a": (x, np.full_like(y, NO_LABEL))})
    with pytest.raises(
        DataError,
        match=r"y has classes for 40 steps of a window, and the windows of X have fewer samples: "
        r"\[40, 2, 32\]",
    ):
        shoal.load({"a": (x, np.repeat(y, 10, axis=1))})


def test_the_watches_go_from_one_exercise_to_the_next() -> None:
    data = load_data("watch-session")
    windows = data.devices["p01-left"]
    assert windows.train_x.shape[1:] == (6, 512)
    assert windows.train_y.shape[1:] == (32,)
    changes = np.array([len(set(y.tolist()) - {NO_LABEL}) for y in windows.train_y])
    assert set(np.unique(changes)) == {1, 2}
    assert 0 < (windows.train_y == NO_LABEL).mean() < 0.02, "a step in which the exercise changes"


@pytest.mark.slow
def test_graphs_on_devices_and_files_of_models_are_those_of_eager_torch() -> None:
    fleet = steps(synthetic_fleet(2))
    objective = some_graphs(
        objective_for_fleet(fleet, read_algorithm(ALGORITHM), 0), "step", "evaluate", "predict"
    )
    published = publish(
        objective, fleet.window, fleet.classes, fleet.sample(), new_key(), name="steps"
    )
    manifest = published.bundle.manifest
    assert (manifest.task, manifest.classes, manifest.label) == (
        "sequence",
        fleet.classes,
        ("int64", (STEPS,)),
    )
    assert check_parity(published.bundle, objective, *fleet.sample(), steps=3).step_error < 1e-4
    x = fleet.devices["d0"].test_x
    whole = load_whole(to_onnx_file(published.bundle, published.bundle.initial, {}))(x)
    answers = objective.graphs()["predict"](objective.initial(), {"x": torch.from_numpy(x)}, {})[
        names.PROBABILITIES
    ]
    np.testing.assert_allclose(whole, answers.detach().numpy(), atol=1e-5)
    assert agreement("sequence", whole, whole) == 1


def test_what_is_told_of_a_window() -> None:
    answer = np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], np.float32)
    assert told("sequence", ("rest", "run"), answer) == {
        "classes": ["rest", "rest", "run"],
        "probabilities": {"rest": [0.75, 0.5, 0.25], "run": [0.25, 0.5, 0.75]},
    }


def test_names_of_labels_that_are_there_are_no_steps() -> None:
    named_columns = relabelled(
        synthetic_fleet(1), ("a", "b", "c"), lambda y: np.eye(3, dtype=np.int64)[y]
    )
    with pytest.raises(DataError, match="these are several labels of a window"):
        for_task(named_columns, "sequence")
