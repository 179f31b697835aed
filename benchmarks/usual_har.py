"""Models of the literature on activity recognition, and of mechanisms that usual models have, in
plain torch: each a function (shape of an example, number of classes) -> module."""

# mypy: disable-error-code="no-any-return"
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.usual_images import Shape


class AttentionOverTime(nn.Module):
    """Weighted sum over time, added by a factor that trains to the last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.score(torch.tanh(self.hidden(x))).squeeze(2), dim=1)
        context = torch.bmm(weights.unsqueeze(1), x).squeeze(1)
        return x[:, -1] + self.gamma * context


class TinyHar(nn.Module):
    """Zhou et al., 2022: convolutions of each channel, attention between channels, their fusion,
    an LSTM, and attention over time."""

    def __init__(self, shape: Shape, classes: int, filters: int = 8) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(1, filters, (5, 1), (2, 1)), nn.BatchNorm2d(filters), nn.ReLU()),
            *(nn.Conv2d(filters, filters, (5, 1)), nn.BatchNorm2d(filters), nn.ReLU()),
        )
        self.interaction = nn.TransformerEncoderLayer(filters, 2, 16, 0.1, batch_first=True)
        self.fusion = nn.Linear(shape[0] * filters, 2 * filters)
        self.lstm = nn.LSTM(2 * filters, 2 * filters, batch_first=True)
        self.aggregation = AttentionOverTime(2 * filters)
        self.out = nn.Linear(2 * filters, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x.transpose(1, 2).unsqueeze(1)).permute(0, 2, 3, 1)
        batch, time, channels, filters = x.shape
        x = self.interaction(x.reshape(batch * time, channels, filters))
        x = F.relu(self.fusion(x.reshape(batch, time, channels * filters)))
        return self.out(self.aggregation(self.lstm(x)[0]))


class AttendAndDiscriminate(nn.Module):
    """Abedin et al., 2021: convolutions over time, attention between sensors at each time, two GRU
    layers, and attention over time."""

    class Interaction(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.query, self.key, self.value = (
                nn.Conv1d(width, width, 1, bias=False) for _ in range(3)
            )
            self.gamma = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            shares = F.softmax(torch.bmm(self.query(x).transpose(1, 2), self.key(x)), dim=1)
            return self.gamma * torch.bmm(self.value(x), shares) + x

    def __init__(self, shape: Shape, classes: int, filters: int = 8, hidden: int = 12) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, filters, (5, 1)) for a in (1, filters, filters)
        )
        self.interaction, self.dropout = self.Interaction(filters), nn.Dropout(0.5)
        self.gru = nn.GRU(filters * shape[0], hidden, num_layers=2, dropout=0.25)
        self.aggregation = AttentionOverTime(hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).unsqueeze(1)
        for layer in self.convolutions:
            x = F.relu(layer(x))
        x = torch.stack([self.interaction(x[:, :, t]) for t in range(x.shape[2])], dim=0)
        states, _ = self.gru(self.dropout(x.flatten(2)))
        return self.out(self.aggregation(states.transpose(0, 1)))


class TinierHar(nn.Module):
    """Bian et al., 2025: residual depthwise separable convolutions, a GRU in both directions, and
    attention over time."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, pool: int) -> None:
            super().__init__()
            self.depthwise = nn.Conv1d(inputs, inputs, 5, padding="same", groups=inputs, bias=False)
            self.pointwise = nn.Conv1d(inputs, width, 1, bias=False)
            self.norm, self.pool = nn.BatchNorm1d(width), nn.MaxPool1d(pool)
            self.shortcut = nn.Sequential(
                nn.Conv1d(inputs, width, 1, bias=False), nn.BatchNorm1d(width)
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.pointwise(self.depthwise(x)))
            return self.pool(F.relu(y + self.shortcut(x)))

    def __init__(self, shape: Shape, classes: int, width: int = 12, hidden: int = 8) -> None:
        super().__init__()
        self.blocks = nn.Sequential(self.Block(shape[0], width, 2), self.Block(width, width, 2))
        self.gru = nn.GRU(width, hidden, batch_first=True, bidirectional=True)
        self.score, self.dropout = nn.Linear(2 * hidden, 1), nn.Dropout(0.5)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(self.blocks(x).transpose(1, 2))
        return self.out(self.dropout((states * self.score(states).softmax(1)).sum(1)))


class ConvLstm(nn.Module):
    """Shi et al., 2015: an LSTM whose gates are convolutions, over the parts of a window."""

    def __init__(self, shape: Shape, classes: int, width: int = 6, parts: int = 4) -> None:
        super().__init__()
        self.width, self.parts = width, parts
        self.gates = nn.Conv1d(shape[0] + width, 4 * width, 3, padding=1)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.chunk(self.parts, dim=2)
        hidden = cell = x.new_zeros(x.shape[0], self.width, frames[0].shape[2])
        for frame in frames:
            i, f, o, g = self.gates(torch.cat([frame, hidden], 1)).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
        return self.out(hidden.mean(2))


class CausalRms(nn.Module):
    """Blocks as language models have them: RMSNorm first, causal attention, a gated SiLU."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.project = nn.Linear(width, width, bias=False)
            self.gate, self.up, self.down = (
                nn.Linear(a, b, bias=False)
                for a, b in ((width, 2 * width), (width, 2 * width), (2 * width, width))
            )

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                part.unflatten(2, (2, -1)).transpose(1, 2)
                for part in self.qkv(self.before(x)).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(mixed.transpose(1, 2).flatten(2))
            y = self.after(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def __init__(self, shape: Shape, classes: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(shape[0], width)
        self.blocks = nn.Sequential(self.Block(width), self.Block(width))
        self.norm, self.out = nn.RMSNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.embed(x.transpose(1, 2))))[:, -1])


class MaskedText(nn.Module):
    """Ids with 0 as padding: embeddings, torch's encoder with the mask of padding, and the mean
    over what is not padding."""

    def __init__(self, shape: Shape, classes: int, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(shape[1], width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.squeeze(1)
        words = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        states = self.encoder(words, src_key_padding_mask=ids == 0)
        present = (ids != 0).unsqueeze(2).float()
        return self.out((states * present).sum(1) / present.sum(1).clamp(min=1))


class LoraEncoder(nn.Module):
    """A frozen encoder with adapters of low rank on queries and values (Hu et al., 2022)."""

    class Adapted(nn.Module):
        def __init__(self, width: int, rank: int = 2) -> None:
            super().__init__()
            self.fixed = nn.Linear(width, width)
            self.lora_down = nn.Linear(width, rank, bias=False)
            self.lora_up = nn.Linear(rank, width, bias=False)
            nn.init.zeros_(self.lora_up.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.fixed(x) + self.lora_up(self.lora_down(x))

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.query, self.value = LoraEncoder.Adapted(width), LoraEncoder.Adapted(width)
            self.key, self.project = nn.Linear(width, width), nn.Linear(width, width)
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.before(x)
            q, k, v = (
                layer(y).unflatten(2, (2, -1)).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.project(mixed)
            return x + self.mlp(self.after(x))

    def __init__(self, shape: Shape, classes: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(shape[0], width)
        self.blocks = nn.Sequential(self.Block(width), self.Block(width))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora" in name)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.embed(x.transpose(1, 2))).mean(1))


class Padded(nn.Module):
    """A convolution of each padding mode, with groups and dilation among them."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(shape[0], 8, 5, padding=2, padding_mode="circular"), nn.ReLU()),
            *(nn.Conv1d(8, 8, 3, padding=2, dilation=2, padding_mode="reflect"), nn.ReLU()),
            *(nn.Conv1d(8, 8, 5, padding=2, groups=4, padding_mode="replicate"), nn.ReLU()),
            *(nn.Conv1d(8, 12, 3, stride=2, padding=3, dilation=3, groups=2), nn.ReLU()),
            *(nn.AvgPool1d(2), nn.Flatten()),
        )
        self.out = nn.Linear(12 * (shape[1] // 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x))


class Padded2d(nn.Module):
    """Padding modes in two dimensions."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(shape[0], 8, 3, padding=(1, 2), padding_mode="circular"), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, padding=1, groups=4, padding_mode="replicate"), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, padding=2, dilation=2, padding_mode="reflect"), nn.ReLU()),
            *(nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2), nn.GroupNorm(3, 12), nn.ReLU()),
        )
        self.out = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x).mean((2, 3)))


class Volumes(nn.Module):
    """Convolutions in three dimensions, over the channels of an image as its depth."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv3d(1, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU()),
            *(nn.Conv3d(6, 8, (2, 3, 3), stride=2, padding=1, groups=2), nn.ReLU()),
        )
        self.out = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x.unsqueeze(1)).mean((2, 3, 4)))
