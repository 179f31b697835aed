"""Usual models of images in plain torch: each a function (shape of an example, number of classes)
-> module.

`MobileNetV3` (small) and `ResNet18` are those of torchvision layer for layer, written here because
torchvision does not install beside every version of torch; for 1,000 classes they have as many
parameters as theirs.
"""

# mypy: disable-error-code="no-any-return"
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]


class MobileNetV2(nn.Module):
    """Inverted residuals with depthwise convolutions and ReLU6 (Sandler et al., 2018)."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int, expand: int = 3) -> None:
            super().__init__()
            width = inputs * expand
            self.layers = nn.Sequential(
                *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()),
                *(
                    nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU6(),
                ),
                *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
            )
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.layers(x)
            return x + made if self.adds else made

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()
        )
        self.blocks = nn.Sequential(
            self.Block(8, 8, 1), self.Block(8, 12, 2), self.Block(12, 12, 1)
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(12, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(x)).mean((2, 3)))


def eighths(width: float) -> int:
    """The multiple of eight that is nearest to a width, and not less than nine tenths of it."""
    near = max(8, int(width + 4) // 8 * 8)
    return near + 8 if near < 0.9 * width else near


class MobileNetV3(nn.Module):
    """The small one: hardswish and squeeze-and-excitation (Howard et al., 2019, table 2)."""

    BLOCKS = (
        *(
            (3, 16, 16, True, nn.ReLU, 2),
            (3, 72, 24, False, nn.ReLU, 2),
            (3, 88, 24, False, nn.ReLU, 1),
        ),
        *(
            (5, 96, 40, True, nn.Hardswish, 2),
            (5, 240, 40, True, nn.Hardswish, 1),
            (5, 240, 40, True, nn.Hardswish, 1),
        ),
        *(
            (5, 120, 48, True, nn.Hardswish, 1),
            (5, 144, 48, True, nn.Hardswish, 1),
            (5, 288, 96, True, nn.Hardswish, 2),
        ),
        *((5, 576, 96, True, nn.Hardswish, 1), (5, 576, 96, True, nn.Hardswish, 1)),
    )
    """Kernel, width between, outputs, whether it squeezes, activation, stride."""

    class Squeeze(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            few = eighths(width // 4)
            self.layers = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(width, few, 1),
                nn.ReLU(),
                nn.Conv2d(few, width, 1),
                nn.Hardsigmoid(),
            )

        def forward(self, x: Tensor) -> Tensor:
            return x * self.layers(x)

    @staticmethod
    def normed(
        inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> tuple[nn.Module, nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return layer, nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01)

    class Block(nn.Module):
        def __init__(
            self,
            inputs: int,
            kernel: int,
            width: int,
            outputs: int,
            squeezes: bool,
            act: type[nn.Module],
            stride: int,
        ) -> None:
            super().__init__()
            normed = MobileNetV3.normed
            wide = [*normed(inputs, width, 1), act()] if width != inputs else []
            middle = [
                *normed(width, width, kernel, stride, width),
                act(),
                *([MobileNetV3.Squeeze(width)] if squeezes else []),
            ]
            self.layers = nn.Sequential(*wide, *middle, *normed(width, outputs, 1))
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.layers(x)
            return x + made if self.adds else made

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        layers, width = [*self.normed(shape[0], 16, 3, 2), nn.Hardswish()], 16
        for kernel, between, outputs, squeezes, act, stride in self.BLOCKS:
            layers.append(self.Block(width, kernel, between, outputs, squeezes, act, stride))
            width = outputs
        self.features = nn.Sequential(*layers, *self.normed(width, 576, 1), nn.Hardswish())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1024, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class ResNet18(nn.Module):
    """He et al., 2016: a convolution of 7 and a pool, then four stages of two blocks."""

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = (
                nn.Conv2d(inputs, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            self.conv2, self.bn2 = (
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            self.downsample = nn.Sequential()
            if stride > 1:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
                )

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.bn1(self.conv1(x)))
            return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        stages = [
            (self.Block(a, b, 1 if a == b else 2), self.Block(b, b, 1))
            for a, b in ((64, 64), (64, 128), (128, 256), (256, 512))
        ]
        self.stages = nn.Sequential(*(block for stage in stages for block in stage))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.stages(self.stem(x))).flatten(1))


class Vit2d(nn.Module):
    """Patches of an image and torch's encoder layers."""

    def __init__(self, shape: Shape, classes: int, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(shape[0], width, 7, stride=7)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True, norm_first=True), 1
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
