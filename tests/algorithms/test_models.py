"""Every registered model: shapes, scaling, a head that sees the representation, the papers' sizes,
and its training step as a graph."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad_and_value

from algorithms.composition import make_objective, read_algorithm
from algorithms.core.functional import functional
from algorithms.models.blocks import norm
from algorithms.models.classifier import Classifier, Scale, watch_representation
from algorithms.models.har_cnn import HarCnn
from algorithms.models.images import resnet18, vgg11
from algorithms.models.registry import MODELS, OF_IDS, default_model, make_model
from export.capture import trace
from export.lowering.onnx_graph import to_onnx
from wire.bundle import Window
from wire.errors import ConfigError

HAR = Window(tuple(f"c{i}" for i in range(9)), 128, 64)
DIGITS = Window(("grey",), 28, 28, height=28)
PHOTOS = Window(("red", "green", "blue"), 32, 32, height=32)
NARROW: dict[str, Callable[[Window, int, Tensor], Classifier]] = {
    **MODELS,
    "vgg11": lambda window, classes, size: vgg11(window, classes, size, share=1 / 16),
    "resnet18": lambda window, classes, size: resnet18(window, classes, size, share=1 / 16),
}


def sizes(window: Window, value: float = 1.0) -> Tensor:
    return torch.full((len(window.channels),), value)


def count(name: str, window: Window, classes: int) -> int:
    return sum(p.numel() for p in make_model(name, window, classes, sizes(window)).parameters())


@pytest.mark.representatives("har-cnn-*", "cnn4-*", "mlp-*")
@pytest.mark.parametrize("window", [HAR, DIGITS, PHOTOS], ids=["har", "digits", "photos"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in OF_IDS])
class TestEveryModel:
    def test_shapes_and_representation(self, name: str, window: Window) -> None:
        model = NARROW[name](window, 6, sizes(window))
        assert isinstance(model.scale, Scale)
        assert isinstance(model.head, nn.Linear)
        with watch_representation(model) as seen:
            logits = model(torch.randn(3, *window.shape))
        assert logits.shape == (3, 6)
        assert seen[0].shape == (3, model.head.in_features)
        assert model.training

    def test_examples_are_divided_by_the_size_of_their_channel(
        self, name: str, window: Window
    ) -> None:
        torch.manual_seed(0)
        one = NARROW[name](window, 4, sizes(window)).eval()
        torch.manual_seed(0)
        other = NARROW[name](window, 4, sizes(window, 2.0)).eval()
        x = torch.randn(2, *window.shape)
        torch.testing.assert_close(one(x), other(2 * x), rtol=1e-5, atol=1e-6)

    def test_every_tensor_is_named_and_the_head_is_the_last_matrix(
        self, name: str, window: Window
    ) -> None:
        model = NARROW[name](window, 4, sizes(window))
        matrices = [n for n, p in model.named_parameters() if p.dim() == 2]
        assert matrices[-1] == "head.weight"
        endings = ("running_mean", "running_var", "num_batches_tracked", "scale.size")
        assert all(n.endswith(endings) for n, _ in model.named_buffers())

    def test_same_torch_seed_same_weights(self, name: str, window: Window) -> None:
        weights = []
        for _ in range(2):
            torch.manual_seed(3)
            weights.append(
                [
                    p.detach().numpy().tobytes()
                    for p in NARROW[name](window, 4, sizes(window)).parameters()
                ]
            )
        assert weights[0] == weights[1]


class TestWhereAModelIsSplit:
    @pytest.mark.parametrize(
        ("name", "window", "features"), [("har-cnn-dbe", HAR, 1664), ("cnn4", DIGITS, 1024)]
    )
    def test_before_all_linear_layers(self, name: str, window: Window, features: int) -> None:
        torch.manual_seed(0)
        whole = make_model(name, window, 6, sizes(window)).eval()
        torch.manual_seed(0)
        split = make_model(f"{name}:cut=convolutions", window, 6, sizes(window)).eval()
        assert isinstance(split.head, nn.Sequential)
        assert (split.num_features, split.num_classes, whole.num_classes) == (features, 6, 6)
        assert split.last_layer == f"head.{len(split.head) - 1}"
        assert isinstance(split.get_submodule(split.last_layer), nn.Linear)
        x = torch.randn(3, *window.shape)
        assert torch.equal(whole(x), split(x))
        with watch_representation(split) as seen:
            split(x)
        assert seen[0].shape == (3, features)

    @pytest.mark.parametrize("algorithm", ["fedgen", "fedgen+dbe", "fedrod", "fedrod+mr"])
    def test_what_needs_a_linear_head_says_so(self, algorithm: str) -> None:
        model = make_model("cnn4:cut=convolutions", DIGITS, 10, sizes(DIGITS))
        with pytest.raises(
            ConfigError,
            match=r"fed(gen|rod) .* needs a head of one linear layer, and the model's has 3 layers"
            r".*cut=last",
        ):
            make_objective(read_algorithm(algorithm), model).initial()

    def test_the_survey_takes_the_last_layer(self) -> None:
        model = make_model("cnn4:cut=convolutions", DIGITS, 10, sizes(DIGITS))
        objective = make_objective(read_algorithm("fedavg"), model)
        batch = {"x": torch.rand(4, 1, 28, 28), "y": torch.tensor([0, 1, 2, 3])}
        assert objective.graphs()["survey"](objective.initial(), batch, {})[
            "metric/gradient"
        ].shape == (10, 512)

    def test_fedper_keeps_the_whole_head(self) -> None:
        objective = make_objective(
            read_algorithm("fedper"), make_model("cnn4:cut=convolutions", DIGITS, 10, sizes(DIGITS))
        )
        assert sorted(k for k in objective.initial() if k.startswith("private/")) == [
            f"private/head.{n}.{part}" for n in (0, 2) for part in ("bias", "weight")
        ]

    def test_options_that_there_are_not(self) -> None:
        with pytest.raises(ConfigError, match="cut must be last or convolutions, got 'middle'"):
            make_model("cnn4:cut=middle", DIGITS, 10, sizes(DIGITS))
        with pytest.raises(ConfigError, match="'cut' is not an option of mlp"):
            make_model("mlp:cut=last", DIGITS, 10, sizes(DIGITS))

    def test_heads_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match="begins and ends with Linear"):
            Classifier(nn.Identity(), nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
        with pytest.raises(ConfigError, match="must have no BatchNorm"):
            Classifier(
                nn.Identity(),
                nn.Flatten(),
                nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            )


class TestSizesOfThePapers:
    def test_dbes_four_layers(self) -> None:
        assert count("cnn4", DIGITS, 10) == 832 + 51_264 + 1024 * 512 + 512 + 5130
        assert make_model("cnn4", PHOTOS, 10, sizes(PHOTOS)).head.in_features == 512

    def test_dbes_har_cnn(self) -> None:
        model = make_model("har-cnn-dbe", HAR, 6, sizes(HAR))
        assert [
            (m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)
        ] == [
            (1664, 1024),
            (1024, 512),
            (512, 6),
        ]

    @pytest.mark.parametrize(
        ("name", "window", "widths", "features"),
        [
            ("autocfl", DIGITS, (20, 50), 800),
            ("autocfl-16-32", DIGITS, (16, 32), 512),
            ("autocfl-6-16", PHOTOS, (6, 16), 400),
        ],
    )
    def test_autocfls_channels(
        self, name: str, window: Window, widths: tuple[int, int], features: int
    ) -> None:
        model = make_model(name, window, 10, sizes(window))
        assert tuple(m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)) == widths
        assert model.head.in_features == features
        assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())

    def test_vgg11_and_resnet18(self) -> None:
        vgg, resnet = (make_model(n, PHOTOS, 10, sizes(PHOTOS)) for n in ("vgg11", "resnet18"))
        assert sum(p.numel() for p in vgg.parameters()) == 9_231_114
        assert sum(p.numel() for p in resnet.parameters()) == 11_173_962
        assert sum(isinstance(m, nn.Conv2d) for m in vgg.modules()) == 8
        assert sum(isinstance(m, nn.Conv2d) for m in resnet.modules()) == 20
        assert vgg.head.in_features == resnet.head.in_features == 512

    def test_vgg11_halves_no_more_than_there_is(self) -> None:
        assert NARROW["vgg11"](DIGITS, 10, sizes(DIGITS))(torch.zeros(2, 1, 28, 28)).shape == (
            2,
            10,
        )

    def test_har_cnn_is_the_class_of_that_name(self) -> None:
        torch.manual_seed(0)
        registered = make_model("har-cnn", HAR, 6, sizes(HAR, 2.0)).state_dict()
        torch.manual_seed(0)
        for name, value in HarCnn(9, 128, 6, sizes(HAR, 2.0)).state_dict().items():
            torch.testing.assert_close(registered[name], value, rtol=0, atol=0)

    def test_group_norm_divides_its_channels(self) -> None:
        assert norm(1, 32, "group").num_groups == 8
        assert norm(2, 6, "group").num_groups == 6
        model = make_model("har-cnn-gn", HAR, 6, sizes(HAR))
        assert sum(isinstance(m, nn.GroupNorm) for m in model.modules()) == 2
        assert [n for n, _ in model.named_buffers()] == ["scale.size"]


class TestRegistry:
    def test_default_has_batch_statistics(self) -> None:
        for window in (HAR, DIGITS):
            model = make_model(default_model(window), window, 3, sizes(window))
            assert any(n.endswith("running_mean") for n, _ in model.named_buffers())

    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_windows_too_short_for_convolutions_have_a_perceptron(self, length: int) -> None:
        window = Window(tuple("abcdef"), length, length)
        assert default_model(window) == "mlp"
        model = make_model(default_model(window), window, 3, sizes(window))
        assert model(torch.zeros(2, 6, length)).shape == (2, 3)

    def test_unknown_name(self) -> None:
        with pytest.raises(ConfigError, match=r"No model 'x'\. Known models: har-cnn, har-cnn-gn"):
            make_model("x", HAR, 3, sizes(HAR))

    @pytest.mark.parametrize(
        ("name", "window"),
        [
            ("har-cnn", Window(("a",), 3, 3)),
            ("cnn4", Window(("a",), 12, 12, height=12)),
            ("har-cnn-dbe", Window(("a",), 20, 20)),
        ],
    )
    def test_examples_that_are_too_small(self, name: str, window: Window) -> None:
        with pytest.raises(ConfigError, match=r"needs larger examples than 1 x .* model mlp\."):
            make_model(name, window, 3, sizes(window))


LOWERED = [
    pytest.param("har-cnn-gn", Window(("a", "b"), 16, 16), id="har-cnn-gn"),
    pytest.param("har-cnn-dbe", Window(("a",), 40, 40), id="har-cnn-dbe"),
    pytest.param("cnn2-bn", Window(("a",), 7, 7, height=6), id="cnn2-bn", marks=pytest.mark.slow),
    pytest.param("mlp", DIGITS, id="mlp"),
    *(
        pytest.param(name, window, marks=pytest.mark.slow, id=f"{name}-{kind}")
        for name in ("cnn4", "autocfl", "har-cnn-gn", "vgg11", "resnet18")
        for kind, window in (("images", DIGITS), ("windows", Window(("a", "b"), 64, 64)))
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "window"), LOWERED)
def test_a_training_step_on_the_device_equals_eager_torch(name: str, window: Window) -> None:
    torch.manual_seed(0)
    model = NARROW[name](window, 5, sizes(window, 2.0))
    tensors = {f"shared/{n}": p.detach().clone() for n, p in model.named_parameters()}
    tensors |= {
        f"statistic/{n}": b.clone()
        for n, b in model.named_buffers()
        if n.endswith(("running_mean", "running_var"))
    }

    def step(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        held = {k: v for k, v in inputs.items() if not k.startswith("batch/")}

        def loss(shared: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            logits, after = functional(model, {**held, **shared}, inputs["batch/x"], training=True)
            return F.cross_entropy(logits, inputs["batch/y"]), after

        gradient, (value, after) = grad_and_value(loss, has_aux=True)(
            {k: v for k, v in held.items() if k.startswith("shared/")}
        )
        return (
            {f"next/{k}": held[k] - 0.05 * g for k, g in gradient.items()}
            | {f"next/{k}": v for k, v in after.items()}
            | {"loss": value}
        )

    captured = to_onnx(
        trace(
            step,
            {
                **tensors,
                "batch/x": torch.randn(7, *window.shape),
                "batch/y": torch.zeros(7, dtype=torch.int64),
            },
        )
    )
    session = onnxruntime.InferenceSession(captured.onnx, providers=["CPUExecutionProvider"])
    for size in (2, 7, 16):
        inputs = {
            **tensors,
            "batch/x": torch.randn(size, *window.shape),
            "batch/y": torch.randint(0, 5, (size,)),
        }
        expected = step(inputs)
        found = dict(
            zip(
                captured.outputs,
                session.run(None, {k: inputs[k].numpy() for k in captured.inputs}),
                strict=True,
            )
        )
        for key, value in expected.items():
            np.testing.assert_allclose(
                found[key], value.detach().numpy(), rtol=1e-2, atol=1e-3, err_msg=key
            )


def test_frozen_layers_of_a_model_that_was_moved() -> None:
    """Frozen parts are looked up in the model at each call: `Module.to` replaces its tensors by
    others."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    for parameter in (*model[0].parameters(), *model[1].parameters()):
        parameter.requires_grad_(False)
    x = torch.randn(5, 3)
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        own = {f"shared/{n}": p.detach() for n, p in model.named_parameters() if p.requires_grad}
        y, _ = functional(model, own, x.to(dtype), training=False)
        assert y.dtype == dtype
        torch.testing.assert_close(y, model(x.to(dtype)))
