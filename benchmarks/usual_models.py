"""Models as their users write them in plain torch: each a function (shape of an example,
number of outputs) -> module.

None knows Shoal. Those of images are in `benchmarks.usual_images`.
"""

# mypy: disable-error-code="no-any-return"
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.usual_har import (
    AttendAndDiscriminate,
    CausalRms,
    ConvLstm,
    LoraEncoder,
    MaskedText,
    Padded,
    Padded2d,
    TinierHar,
    TinyHar,
    Volumes,
)
from benchmarks.usual_images import MobileNetV2, MobileNetV3, ResNet18, Shape, Vit2d


class DeepConvLstm(nn.Module):
    """Ordonez and Roggen, 2016: four convolutions over time, two LSTM layers, the last state."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        widths = [shape[0], 16, 16, 16, 16]
        self.convolutions = nn.ModuleList(nn.Conv1d(a, b, 5) for a, b in itertools.pairwise(widths))
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.out = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = F.relu(layer(x))
        states, _ = self.lstm(x.transpose(1, 2))
        return self.out(states[:, -1])


class Gru(nn.Module):
    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(shape[0], 16, batch_first=True)
        self.out = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x.transpose(1, 2))[0][:, -1])


class BiGru(nn.Module):
    """Two layers in both directions, with the GRU's own dropout between them, and one before the
    last layer."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.gru = nn.GRU(
            shape[0], 8, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True
        )
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.gru(x.transpose(1, 2))[0].mean(1)))


class Transformer(nn.Module):
    """Sinusoidal positions and two layers of torch's encoder, with its dropout."""

    positions: Tensor

    def __init__(self, shape: Shape, classes: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(shape[0], width)
        angles = torch.arange(shape[1]).unsqueeze(1) * torch.exp(
            torch.arange(0, width, 2) * (-math.log(10000.0) / width)
        )
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], 2).flatten(1))
        layer = nn.TransformerEncoderLayer(
            width, 4, 32, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(x.transpose(1, 2)) + self.positions).mean(1))


class Vit(nn.Module):
    """Patches of time, a class token, learned positions, norm first, attention by
    `scaled_dot_product_attention`."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                self.qkv(self.before(x)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4).unbind()
            )
            x = x + self.project(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.mlp(self.after(x))

    def __init__(self, shape: Shape, classes: int, width: int = 16, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv1d(shape[0], width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, shape[1] // patch + 1, width))
        self.blocks = nn.Sequential(self.Block(width), self.Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).transpose(1, 2)
        tokens = torch.cat([self.token.expand(tokens.shape[0], -1, -1), tokens], 1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class Tcn(nn.Module):
    """Bai et al., 2018: causal convolutions with growing dilation and residual connections."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, dilation: int) -> None:
            super().__init__()
            self.pad = (2 * dilation, 0)
            self.first = nn.Conv1d(inputs, width, 3, dilation=dilation)
            self.second = nn.Conv1d(width, width, 3, dilation=dilation)
            self.skip = nn.Conv1d(inputs, width, 1) if inputs != width else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.first(F.pad(x, self.pad)))
            return F.relu(F.relu(self.second(F.pad(y, self.pad))) + self.skip(x))

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            self.Block(shape[0], 12, 1), self.Block(12, 12, 2), self.Block(12, 12, 4)
        )
        self.linear = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(x)[:, :, -1])


class InceptionTime(nn.Module):
    """Fawaz et al., 2020: kernels of several lengths beside a pool, a residual connection."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int) -> None:
            super().__init__()
            self.bottleneck = nn.Conv1d(inputs, width, 1, bias=False)
            self.kernels = nn.ModuleList(
                nn.Conv1d(width, width, k, padding=k // 2, bias=False) for k in (3, 5, 9)
            )
            self.pool = nn.Sequential(
                nn.MaxPool1d(3, stride=1, padding=1), nn.Conv1d(inputs, width, 1, bias=False)
            )
            self.norm = nn.BatchNorm1d(4 * width)

        def forward(self, x: Tensor) -> Tensor:
            narrow = self.bottleneck(x)
            return F.relu(
                self.norm(
                    torch.cat([*(kernel(narrow) for kernel in self.kernels), self.pool(x)], 1)
                )
            )

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.first, self.second = self.Block(shape[0], 4), self.Block(16, 4)
        self.shortcut = nn.Sequential(nn.Conv1d(shape[0], 16, 1, bias=False), nn.BatchNorm1d(16))
        self.pool, self.fc = nn.AdaptiveAvgPool1d(1), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(F.relu(self.second(self.first(x)) + self.shortcut(x))).flatten(1))


class Mixer(nn.Module):
    """Tolstikhin et al., 2021, over patches of time."""

    class Block(nn.Module):
        def __init__(self, tokens: int, width: int) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(
                nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
            )
            self.channels = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.tokens(self.before(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.after(x))

    def __init__(self, shape: Shape, classes: int, width: int = 16, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv1d(shape[0], width, patch, stride=patch)
        self.blocks = nn.Sequential(*(self.Block(shape[1] // patch, width) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patches(x).transpose(1, 2))).mean(1))


class Fft(nn.Module):
    """The magnitudes of a Fourier transform of each channel, and a perceptron."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(shape[0] * (shape[1] // 2 + 1), 32), nn.ReLU(), nn.Linear(32, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(torch.log1p(torch.fft.rfft(x).abs()).flatten(1))


class ResNetGn(nn.Module):
    """Residual blocks with GroupNorm."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int) -> None:
            super().__init__()
            self.first, self.second = (
                nn.Conv1d(inputs, width, 3, stride=2, padding=1),
                nn.Conv1d(width, width, 3, padding=1),
            )
            self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
            self.skip = nn.Conv1d(inputs, width, 1, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.norms[0](self.first(x)))
            return F.relu(self.norms[1](self.second(y)) + self.skip(x))

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(self.Block(shape[0], 16), self.Block(16, 16))
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(x).mean(2))


class Lora(nn.Module):
    """A frozen layer with an adapter of low rank beside it (Hu et al., 2022)."""

    class Adapted(nn.Module):
        def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
            super().__init__()
            self.fixed = nn.Linear(inputs, outputs).requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
            self.up = nn.Parameter(torch.zeros(outputs, rank))

        def forward(self, x: Tensor) -> Tensor:
            return self.fixed(x) + x @ self.down.T @ self.up.T

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(
            self.Adapted(math.prod(shape), 48), nn.ReLU(), self.Adapted(48, 24), nn.ReLU()
        )
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.flatten(x)))


class FrozenBody(nn.Module):
    """A body with BatchNorm that does not train, a block that does, and a head."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(shape[0], 12, 5), nn.BatchNorm1d(12), nn.ReLU(), nn.MaxPool1d(2)
        ).requires_grad_(False)
        self.neck = nn.Sequential(
            nn.Conv1d(12, 12, 3),
            nn.BatchNorm1d(12),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.body(x)))


class Text(nn.Module):
    """A classifier of token ids: embeddings, a convolution, and the largest over time (Kim,
    2014)."""

    def __init__(self, shape: Shape, classes: int, vocabulary: int = 50) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(vocabulary, 16), nn.Conv1d(16, 24, 3, padding=1)
        self.out = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        words: Tensor = self.embedding(x.squeeze(1)).transpose(1, 2)
        return self.out(F.relu(self.conv(words)).amax(2))


class Autoencoder(nn.Module):
    """A window through eight numbers and back; what it gives is as many numbers as the window
    has."""

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 48), nn.Tanh(), nn.Linear(48, 8)
        )
        self.decode = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class Small(nn.Module):
    """Two convolutions and the mean over time, for quantities and for several labels."""

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(shape[0], 16, 5, padding=2), nn.BatchNorm1d(16), nn.SiLU()),
            *(
                nn.Conv1d(16, 16, 5, stride=2),
                nn.BatchNorm1d(16),
                nn.LeakyReLU(0.1),
                nn.AdaptiveAvgPool1d(1),
                nn.Flatten(),
            ),
        )
        self.out = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x))


@dataclass(frozen=True)
class Usual:
    """A model, the shape of an example, the task it is for, and how many ids there are where
    examples are ids."""

    make: Callable[[Shape, int], nn.Module]
    shape: Shape = (3, 24)
    task: str = "classification"
    vocabulary: int = 0


USUAL: dict[str, Usual] = {
    "deepconvlstm": Usual(DeepConvLstm),
    "gru": Usual(Gru),
    "bigru, dropout": Usual(BiGru),
    "transformer encoder": Usual(Transformer),
    "vit-1d": Usual(Vit),
    "tcn": Usual(Tcn),
    "inceptiontime": Usual(InceptionTime),
    "mlp-mixer": Usual(Mixer),
    "fft front end": Usual(Fft),
    "resnet, groupnorm": Usual(ResNetGn),
    "lora": Usual(Lora),
    "frozen body": Usual(FrozenBody),
    "text, embedding": Usual(Text, (1, 24), vocabulary=50),
    "autoencoder": Usual(Autoencoder, task="reconstruction"),
    "regression": Usual(Small, task="regression"),
    "multi-label": Usual(Small, task="multi-label"),
    "mobilenetv2": Usual(MobileNetV2, (1, 28, 28)),
    "mobilenetv3, small": Usual(MobileNetV3, (3, 64, 64)),
    "resnet18": Usual(ResNet18, (3, 64, 64)),
    "vit, images": Usual(Vit2d, (1, 28, 28)),
    "tinyhar": Usual(TinyHar),
    "attend and discriminate": Usual(AttendAndDiscriminate),
    "tinierhar": Usual(TinierHar),
    "convlstm": Usual(ConvLstm),
    "causal, rmsnorm": Usual(CausalRms),
    "text, padding mask": Usual(MaskedText, (1, 24), vocabulary=50),
    "lora, encoder": Usual(LoraEncoder),
    "padding modes": Usual(Padded),
    "padding modes, images": Usual(Padded2d, (2, 9, 8)),
    "conv3d": Usual(Volumes, (4, 7, 6)),
}
