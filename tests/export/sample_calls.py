"""Functions and layers of torch as models call them, by which the operators of both runtimes are
found."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[], nn.Module]


class Call(nn.Module):
    """A function of a layer's output."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "a slice that is all of it": lambda x: x[:, : x.shape[1]],
    "acos": lambda x: torch.acos(torch.tanh(x) * 0.9),
    "asin": lambda x: torch.asin(torch.tanh(x) * 0.9),
    "atan": torch.atan,
    "atan2": lambda x: torch.atan2(x, x * x + 1),
    "cos": torch.cos,
    "sin": torch.sin,
    "tan": lambda x: torch.tan(torch.tanh(x)),
    "cosh": torch.cosh,
    "sinh": torch.sinh,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": lambda x: torch.log(x * x + 1),
    "log2": lambda x: torch.log2(x * x + 1),
    "log10": lambda x: torch.log10(x * x + 1),
    "log1p": lambda x: torch.log1p(x * x),
    "sqrt": lambda x: torch.sqrt(x * x + 1),
    "rsqrt": lambda x: torch.rsqrt(x * x + 1),
    "reciprocal": lambda x: torch.reciprocal(x * x + 1),
    "square": torch.square,
    "power": lambda x: (x * x + 1) ** 1.5,
    "power of a tensor": lambda x: (x * x + 1) ** torch.tanh(x),
    "power of a number": lambda x: 2.0**x,
    "neg": torch.neg,
    "sign": lambda x: x * torch.sign(x),
    "floor": lambda x: x + torch.floor(x),
    "ceil": lambda x: x + torch.ceil(x),
    "round": lambda x: x + torch.round(x),
    "trunc": lambda x: x + torch.trunc(x),
    "remainder": lambda x: torch.remainder(x, 1.5),
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "sinc": torch.sinc,
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x * x + 1, value=0.5),
    "hypot": lambda x: torch.hypot(x, x + 1),
    "divided, floor": lambda x: x + torch.div(x, 0.7, rounding_mode="floor"),
    "add a number, and subtract": lambda x: 1 - (x + 2) * 3 / 4,
    "divide a number": lambda x: 1 / (x * x + 1),
    "in place": lambda x: (x * 1).add_(1).mul_(2).sub_(x).div_(3),
    "relu in place": lambda x: torch.relu_(x * 1),
    "clamp": lambda x: torch.clamp(x, -0.5, 0.5),
    "clamp, one side": lambda x: torch.clamp(x, min=0.1),
    "clamp by tensors": lambda x: torch.clamp(x, -(x * x), x * x),
    "maximum": lambda x: torch.maximum(x, x * x),
    "minimum": lambda x: torch.minimum(x, x * x),
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "masked fill": lambda x: x.masked_fill(x > 0.5, 0.5),
    "comparisons": lambda x: x * ((x < 1) & (x >= -1) | (x == 0) & ~(x != 3)).float(),
    "comparisons of tensors": lambda x: x * ((x < x * x) | (x > 2 * x) | (x <= -x)).float(),
    "is finite": lambda x: torch.where(torch.isfinite(x), x, 0.0),
    "nan to num": torch.nan_to_num,
    "sum": lambda x: x.sum(2),
    "sum of all but the batch": lambda x: x.sum((1, 2)).unsqueeze(1),
    "mean": lambda x: x.mean(2),
    "variance": lambda x: x.var(2),
    "standard deviation": lambda x: x.std(2),
    "variance and mean": lambda x: torch.cat(torch.var_mean(x, 2), 1),
    "prod": lambda x: x.prod(2),
    "largest": lambda x: x.amax(2),
    "smallest": lambda x: x.amin(2),
    "max of a dimension": lambda x: x.max(2).values,
    "min of a dimension": lambda x: x.min(2).values,
    "median": lambda x: x.median(2).values,
    "quantile": lambda x: torch.quantile(x, 0.5, 2),
    "norm": lambda x: x.norm(dim=2),
    "linalg norm": lambda x: torch.linalg.vector_norm(x, dim=2),
    "norm of order 1": lambda x: x.norm(p=1, dim=2),
    "logsumexp": lambda x: torch.logsumexp(x, 2),
    "cumsum": lambda x: x.cumsum(2),
    "cumprod": lambda x: x.cumprod(2),
    "cummax": lambda x: x.cummax(2).values,
    "diff": lambda x: x.diff(dim=2),
    "sort": lambda x: x.sort(2).values,
    "argsort": lambda x: x.gather(2, x.argsort(2)),
    "topk": lambda x: x.topk(3, 2).values,
    "kthvalue": lambda x: x.kthvalue(2, 2).values,
    "argmax": lambda x: x.sum(2) + x.argmax(2).float(),
    "softmax": lambda x: x.softmax(1),
    "log softmax": lambda x: x.log_softmax(1),
    "softmin": lambda x: F.softmin(x, 1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "cosine similarity": lambda x: F.cosine_similarity(x, x * x, 2),
    "pairwise distance": lambda x: F.pairwise_distance(x, x * x),
    "cdist": lambda x: torch.cdist(x, x * x),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "einsum": lambda x: torch.einsum("bct,bdt->bcd", x, x),
    "baddbmm": lambda x: torch.baddbmm(x, x, x.new_ones(x.shape[0], 8, 8)),
    "outer": lambda x: x.unsqueeze(2) * x.unsqueeze(1),
    "tril": lambda x: (x @ x.transpose(1, 2)).tril(),
    "triu": lambda x: (x @ x.transpose(1, 2)).triu(),
    "diagonal": lambda x: (x @ x.transpose(1, 2)).diagonal(dim1=1, dim2=2),
    "diagonal matrix": lambda x: torch.diag_embed(x.mean(2)),
    "determinant": lambda x: torch.linalg.det(x[:, :3, :3]).unsqueeze(1),
    "inverse": lambda x: torch.linalg.inv(x[:, :3, :3] + 5 * torch.eye(3)),
    "solve": lambda x: torch.linalg.solve(x[:, :3, :3] + 5 * torch.eye(3), x[:, :3]),
    "singular values": lambda x: torch.linalg.svdvals(x),
    "view": lambda x: x.view(x.shape[0], -1),
    "reshape": lambda x: x.reshape(-1, 2, 16),
    "transposed": lambda x: x.transpose(1, 2).contiguous(),
    "permuted": lambda x: x.permute(0, 2, 1),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat interleave": lambda x: x.repeat_interleave(2, 2),
    "tile": lambda x: torch.tile(x, (1, 1, 2)),
    "flip": lambda x: x.flip(2),
    "roll": lambda x: x.roll(1, 2),
    "rot90": lambda x: torch.rot90(x, 1, (1, 2)),
    "cat": lambda x: torch.cat([x, x * x], 1),
    "stack": lambda x: torch.stack([x, x * x], 1),
    "chunk": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "split in parts": lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1),
    "split": lambda x: torch.cat(x.split(2, 2)[::-1], 2),
    "tensor split": lambda x: torch.cat(torch.tensor_split(x, 3, 2)[::-1], 2),
    "unbind": lambda x: sum(x.unbind(2), x[:, :, 0]),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "slices": lambda x: x[:, 1:3, ::2],
    "slice, from the end": lambda x: x[..., -3:],
    "select": lambda x: x[:, :, 0],
    "a list of indices": lambda x: x[:, [0, 2]],
    "index select": lambda x: x.index_select(2, torch.tensor([0, 3])),
    "gather": lambda x: x.gather(2, torch.zeros_like(x, dtype=torch.int64)),
    "take along dim": lambda x: torch.take_along_dim(x, torch.zeros(1, 1, 1).long(), 2),
    "scatter": lambda x: x.scatter(2, torch.zeros(x.shape[0], 4, 1).long(), 0.5),
    "masked select": lambda x: x + 0 * x.masked_select(x > -9).mean(),
    "nonzero": lambda x: x + 0 * torch.nonzero(x > -9).sum(),
    "boolean index": lambda x: x + 0 * x[x > -9].mean(),
    "item": lambda x: x + 0 * x.abs().max().item(),
    "if of a value": lambda x: x * 2 if x.isfinite().all() else x,
    "index put": lambda x: torch.index_put(x, (torch.tensor([1]),), x.new_zeros(())),
    "slice assigned": lambda x: _assigned(x),
    "swapaxes, movedim": lambda x: x.swapaxes(1, 2).movedim(2, 1),
    "squeeze": lambda x: x.mean(2, keepdim=True).squeeze(2),
    "squeeze of all": lambda x: x.mean(2, keepdim=True).squeeze(),
    "flatten, unflatten": lambda x: x.flatten(1).unflatten(1, (8, 4)),
    "full, ones, zeros": lambda x: (
        x + torch.full((4, 1), 2.0) + torch.ones(1, 8) + torch.zeros_like(x) + x.new_full((1,), 3.0)
    ),
    "arange": lambda x: x * torch.arange(8.0),
    "linspace": lambda x: x * torch.linspace(0, 1, 8),
    "hann window": lambda x: x * torch.hann_window(8),
    "eye": lambda x: torch.eye(4) @ x,
    "one hot": lambda x: F.one_hot(x.argmax(2), 8).float() + x,
    "searchsorted": lambda x: x + torch.bucketize(x, torch.tensor([0.0, 1.0])).float(),
    "meshgrid": lambda x: (
        x + torch.meshgrid(torch.arange(4.0), torch.arange(8.0), indexing="ij")[0]
    ),
    "detach": lambda x: x + x.detach(),
    "clone": torch.clone,
    "double": lambda x: x.double().mul(2).float(),
    "half": lambda x: x.half().mul(2).float(),
    "bfloat16": lambda x: x.bfloat16().mul(2).float(),
    "int32": lambda x: x + x.int().float(),
    "integer division": lambda x: x + (x.long() // 2).float(),
    "bool": lambda x: x * x.bool().float(),
    "any and all": lambda x: x * (x > 0).any(2, keepdim=True) * (x > -9).all(2, keepdim=True),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "rfft, power": lambda x: torch.fft.rfft(x).abs().square(),
    "rfft, real and imaginary": lambda x: torch.cat(
        [torch.fft.rfft(x).real, torch.fft.rfft(x).imag], 1
    ),
    "rfft, angle": lambda x: torch.fft.rfft(x).angle(),
    "view as real": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
    "fft": lambda x: torch.fft.fft(x).abs(),
    "rfft2": lambda x: torch.fft.rfft2(x).abs(),
    "stft": lambda x: torch.stft(x.mean(1), 4, window=torch.ones(4), return_complex=True).abs(),
    "complex product": lambda x: (
        torch.fft.rfft(x) * torch.complex(torch.ones(5), torch.ones(5))
    ).abs(),
    "pad": lambda x: F.pad(x, (1, 2)),
    "pad by a value": lambda x: F.pad(x, (1, 2), value=0.5),
    "pad, negative": lambda x: F.pad(x, (-1, 2)),
    "pad, reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "pad, replicate": lambda x: F.pad(x, (1, 2), mode="replicate"),
    "pad, circular": lambda x: F.pad(x, (1, 2), mode="circular"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "linear": lambda x: F.interpolate(x, size=16, mode="linear"),
    "area": lambda x: F.interpolate(x, size=4, mode="area"),
    "len": lambda x: x.view(len(x), -1),
    "loop over examples": lambda x: torch.stack([row * 2 for row in x]),
    "range of examples": lambda x: torch.stack([x[i] for i in range(x.shape[0])]),
    "examples halved": lambda x: x * float(x.shape[0] // 2),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention, causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "glu": lambda x: F.glu(x, 1),
    "huber": lambda x: F.smooth_l1_loss(x, x * x, reduction="none"),
}


def _assigned(x: Tensor) -> Tensor:
    x = x * 1
    x[:, 0] = 0.0
    return x


LAYERS: dict[str, Make] = {
    **{
        kind: getattr(nn, kind)
        for kind in (
            "ReLU",
            "ReLU6",
            "ELU",
            "SELU",
            "CELU",
            "GELU",
            "SiLU",
            "Mish",
            "Softplus",
            "Softsign",
            "Hardswish",
            "Hardsigmoid",
            "Hardtanh",
            "LeakyReLU",
            "PReLU",
            "LogSigmoid",
            "Tanhshrink",
            "Softshrink",
            "Hardshrink",
            "Identity",
            "Sigmoid",
            "Tanh",
        )
    },
    "gelu of tanh": lambda: nn.GELU("tanh"),
    "rrelu": nn.RReLU,
    "threshold": lambda: nn.Threshold(0.1, 0.5),
    "conv": lambda: nn.Conv1d(4, 4, 3),
    "conv, strided": lambda: nn.Conv1d(4, 4, 3, stride=2, padding=1),
    "conv, groups": lambda: nn.Conv1d(4, 4, 3, groups=2, dilation=2),
    "conv, same": lambda: nn.Conv1d(4, 4, 4, padding="same"),
    "conv transposed": lambda: nn.ConvTranspose1d(4, 4, 3),
    "max pool": lambda: nn.MaxPool1d(2),
    "max pool, overlapping": lambda: nn.MaxPool1d(3, 2, 1),
    "max pool, ceil": lambda: nn.MaxPool1d(3, ceil_mode=True),
    "average pool": lambda: nn.AvgPool1d(2),
    "average pool, overlapping": lambda: nn.AvgPool1d(3, 2),
    "average pool, ceil": lambda: nn.AvgPool1d(3, ceil_mode=True),
    "average pool, padded": lambda: nn.AvgPool1d(3, 2, 1),
    "average pool, uncounted": lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False),
    "lp pool": lambda: nn.LPPool1d(2, 2),
    "adaptive average": lambda: nn.AdaptiveAvgPool1d(4),
    "adaptive average, uneven": lambda: nn.AdaptiveAvgPool1d(3),
    "adaptive max": lambda: nn.AdaptiveMaxPool1d(4),
    "adaptive max, one": lambda: nn.AdaptiveMaxPool1d(1),
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm without weights": lambda: nn.BatchNorm1d(4, affine=False),
    "layer norm": lambda: nn.LayerNorm(8),
    "layer norm of all": lambda: nn.LayerNorm((4, 8)),
    "rms norm": lambda: nn.RMSNorm(8),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm1d(4, affine=True),
    "local response": lambda: nn.LocalResponseNorm(2),
    "dropout": lambda: nn.Dropout(0.2),
    "dropout of channels": lambda: nn.Dropout1d(0.2),
    "lstm": lambda: _Recurrent(nn.LSTM),
    "gru": lambda: _Recurrent(nn.GRU),
    "rnn": lambda: _Recurrent(nn.RNN),
    "lstm cell": lambda: _Cell(),
    "attention of heads": lambda: _Heads(),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "bilinear": lambda: _Bilinear(),
    "reflection": lambda: nn.ReflectionPad1d(2),
    "replication": lambda: nn.ReplicationPad1d(2),
    "circular": lambda: nn.CircularPad1d(2),
    "constant pad": lambda: nn.ConstantPad1d(2, 0.5),
    "upsample": lambda: nn.Upsample(scale_factor=2),
    "channel shuffle": lambda: nn.ChannelShuffle(2),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3)),
}
IMAGE_LAYERS: dict[str, Make] = {
    "conv2d": lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1),
    "conv2d, depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "conv2d transposed": lambda: nn.ConvTranspose2d(4, 4, 2, 2),
    "max pool2d": lambda: nn.MaxPool2d(2),
    "max pool2d, overlapping": lambda: nn.MaxPool2d(3, 2, 1),
    "average pool2d": lambda: nn.AvgPool2d(2),
    "average pool2d, overlapping": lambda: nn.AvgPool2d(3, 2),
    "adaptive average2d": lambda: nn.AdaptiveAvgPool2d(2),
    "adaptive average2d, uneven": lambda: nn.AdaptiveAvgPool2d(3),
    "adaptive average2d, one": lambda: nn.AdaptiveAvgPool2d(1),
    "adaptive max2d": lambda: nn.AdaptiveMaxPool2d(2),
    "batch norm2d": lambda: nn.BatchNorm2d(4),
    "instance norm2d": lambda: nn.InstanceNorm2d(4),
    "dropout2d": lambda: nn.Dropout2d(0.2),
    "pixel shuffle": lambda: nn.PixelShuffle(2),
    "pixel unshuffle": lambda: nn.PixelUnshuffle(2),
    "upsample2d": lambda: nn.Upsample(scale_factor=2),
    "bilinear2d": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "bicubic2d": lambda: nn.Upsample(scale_factor=2, mode="bicubic"),
    "reflection2d": lambda: nn.ReflectionPad2d(1),
    "replication2d": lambda: nn.ReplicationPad2d(1),
    "zero pad2d": lambda: nn.ZeroPad2d(1),
    "unfold2d": lambda: nn.Unfold(3),
    "local response2d": lambda: nn.LocalResponseNorm(2),
    "grid sample": lambda: Call(
        lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 4, 4, 2), align_corners=False)
    ),
    "conv3d": lambda: Call(lambda x: F.conv3d(x.unsqueeze(1), torch.ones(1, 1, 2, 2, 2))),
    "max pool3d": lambda: Call(lambda x: F.max_pool3d(x.unsqueeze(1), 2)),
    "average pool3d": lambda: Call(lambda x: F.avg_pool3d(x.unsqueeze(1), 2)),
}


class _Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer = kind(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.layer(x.transpose(1, 2))[0]
        return states


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x[:, :, 0])
        last: Tensor = self.cell(x[:, :, 1], state)[0]
        return last


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.heads(x, x, x, need_weights=False)[0]
        return states


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x, x * x)
        return y


SAMPLES: dict[str, tuple[Make, tuple[int, ...]]] = {
    **{name: (partial(Call, function), (3, 8)) for name, function in ONE.items()},
    **{name: (make, (3, 8)) for name, make in LAYERS.items()},
    **{name: (make, (3, 8, 8)) for name, make in IMAGE_LAYERS.items()},
}
"""A sample's layer, and the shape of the examples of its model, by name."""
OF_INPUTS = (
    *("prod", "slice assigned", "sort", "median", "unfold", "unfold2d", "grid sample"),
    *("bicubic2d", "bilinear2d", "average pool3d", "complex product"),
    *(name for name in ONE if "fft" in name or name in ("stft", "view as real")),
)
"""Samples that train on devices, or do not, another way on the input of a model."""


class Sample(nn.Module):
    """A model with the sample's layer before the last layer.

    It is behind a convolution, or else it gets the input.
    """

    def __init__(
        self, layer: nn.Module, shape: tuple[int, ...], classes: int, *, behind: bool = True
    ) -> None:
        super().__init__()
        conv = nn.Conv1d if len(shape) == 2 else nn.Conv2d
        self.first: nn.Module = conv(shape[0], 4, 3, padding=1) if behind else nn.Identity()
        self.middle = layer
        with torch.no_grad():
            features = self.middle(self.first(torch.randn(5, *shape))).flatten(1).shape[1]
        self.out = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.middle(self.first(x)).flatten(1))
        return answer
