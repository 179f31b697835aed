"""Encoders of transformers in the native engine against torch."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.models.adoption.attention import Attention, replace_attention
from algorithms.models.classifier import Classifier
from algorithms.models.reading.network import Unsupported, network_of
from tests.host.native_cases import check_all, classifier_of


class Encoded(nn.Module):
    """Samples through a linear layer and an encoder, and what is read of them."""

    def __init__(self, window: tuple[int, int], encoder: nn.Module, width: int, read: str) -> None:
        super().__init__()
        self.embed, self.encoder, self.read = nn.Linear(window[0], width), encoder, read
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(self.embed(x.transpose(1, 2)))
        made: Tensor = self.norm(x[:, 0]) if self.read == "first" else self.norm(x).mean(1)
        return made


def encoder_of(
    width: int, heads: int, layers: int, first: bool, activation: str, bias: bool = True
) -> nn.TransformerEncoder:
    """One of torch, away from its usual start, with what training puts in the places of attention
    and dropout."""
    layer = nn.TransformerEncoderLayer(
        width,
        heads,
        width + 3,
        0.0,
        activation,
        1e-3,
        batch_first=True,
        norm_first=first,
        bias=bias,
    )
    made = nn.TransformerEncoder(
        layer, layers, nn.LayerNorm(width) if first else None, enable_nested_tensor=False
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0, 1.2 / width**0.5)
    replace_attention(made)
    for number in range(layers):
        for own in ("dropout", "dropout1", "dropout2", "self_attn.drop"):
            made.set_submodule(f"layers.{number}.{own}", nn.Identity())
    return made


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    *(
        st.sampled_from([(2, 1), (6, 3), (16, 2), (40, 4), (70, 1)]),
        st.integers(1, 2),
        st.sampled_from([(3, 1), (2, 9), (5, 33)]),
    ),
    *(
        st.booleans(),
        st.sampled_from(["relu", "gelu"]),
        st.booleans(),
        st.sampled_from(["first", "mean"]),
    ),
    *(st.sampled_from([1, 3]), st.integers(0, 10**6)),
)
def test_encoders_equal_those_of_torch(
    sizes: tuple[int, int],
    layers: int,
    window: tuple[int, int],
    first: bool,
    act: str,
    bias: bool,
    read: str,
    size: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    encoder = encoder_of(*sizes, layers, first, act, bias)
    check_all(
        classifier_of([Encoded(window, encoder, sizes[0], read)], window, 3), window, size, seed
    )


class Alone(nn.Module):
    """Attention by itself, and a norm without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(3, 8), nn.LayerNorm(8, elementwise_affine=False)
        self.attention = Attention(
            nn.MultiheadAttention(8, 2, batch_first=True, bias=False), "attention"
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.embed(x.transpose(1, 2)))
        made: Tensor = (x + self.attention(x, x, x, need_weights=False)[0]).mean(1)
        return made


def test_attention_by_itself_equals_that_of_torch() -> None:
    torch.manual_seed(0)
    check_all(classifier_of([Alone()], (3, 7), 3), (3, 7), 4, 0)


@pytest.mark.parametrize(
    ("own", "layer", "reason"),
    [
        ("dropout1", nn.Dropout(0.1), "layers.0.dropout1 is Dropout"),
        (
            "self_attn.drop",
            nn.Dropout(0.1),
            "layers.0.self_attn is MultiheadAttention with dropout",
        ),
        (
            "norm1",
            nn.LayerNorm((9, 8)),
            r"layers.0.norm1 is LayerNorm of \[9, 8\], and gets 8 channels",
        ),
        ("linear1", nn.Bilinear(8, 8, 8), "layers.0.linear1 is Bilinear"),
    ],
)
def test_what_the_engine_does_not_have_is_named(own: str, layer: nn.Module, reason: str) -> None:
    encoder = encoder_of(8, 2, 1, False, "gelu")
    encoder.set_submodule(f"layers.0.{own}", layer)
    model = Classifier(
        nn.Identity(), nn.Sequential(Encoded((3, 9), encoder, 8, "mean")), nn.Linear(8, 3)
    )
    with pytest.raises(Unsupported, match=f"extractor.0.encoder.{reason}"):
        network_of(model, (3, 9))
