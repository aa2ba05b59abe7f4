"""FC-DenseNet for segmentation ("the one hundred layers tiramisu"), with dropout after every convolution."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Dropout = Callable[[int], nn.Module]


def channel_dropout(units: int) -> nn.Module:
    """The hand-tuned baseline: drop channels with probability 0.2."""
    return nn.Dropout2d(0.2)


class DenseLayer(nn.Sequential):
    """Batch norm, ReLU, 3x3 convolution, dropout: `growth` new channels."""

    def __init__(self, channels: int, growth: int, dropout: Dropout) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(channels, growth, 3, padding=1)
        self.dropout = dropout(growth)


class DenseBlock(nn.Module):
    """Layers that each see everything before them; returns only the new channels if `new_only`."""

    def __init__(self, channels: int, layers: int, growth: int, dropout: Dropout, new_only: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(channels + i * growth, growth, dropout) for i in range(layers))
        self.new_only = new_only
        self.channels = layers * growth + (0 if new_only else channels)

    def forward(self, x: Tensor) -> Tensor:
        fresh: list[Tensor] = []
        for layer in self.layers:
            fresh.append(layer(torch.cat([x, *fresh], 1)))
        return torch.cat(fresh if self.new_only else [x, *fresh], 1)


class TransitionDown(nn.Sequential):
    """Batch norm, ReLU, 1x1 convolution, dropout, 2x2 maximum pooling."""

    def __init__(self, channels: int, dropout: Dropout) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(channels, channels, 1)
        self.dropout = dropout(channels)
        self.pool = nn.MaxPool2d(2)


class TransitionUp(nn.Module):
    """Transposed 3x3 convolution with stride 2, cut to the skip connection's size and joined with it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        up = self.conv(x)
        height, width = skip.shape[2:]
        top, left = (up.shape[2] - height) // 2, (up.shape[3] - width) // 2
        return torch.cat([up[:, :, top : top + height, left : left + width], skip], 1)


class FCDenseNet(nn.Module):
    """Dense blocks down, a middle block, dense blocks up with skip connections; logits for every pixel.

    >>> from sparring.nn import BernoulliDropout
    >>> net = FCDenseNet(classes=3, first=8, growth=4, down=(2, 2), middle=3, middle_dropout=lambda units: BernoulliDropout(1))
    >>> tuple(net.eval()(torch.zeros(1, 3, 20, 24)).shape)
    (1, 3, 20, 24)
    >>> sum(isinstance(m, BernoulliDropout) for m in net.modules())
    3

    The defaults are FC-DenseNet-103 on CamVid. The paper replaces the dropout of the middle block's 15 layers and shares
    one rate among the channels of a layer: `middle_dropout=lambda units: BernoulliDropout(1)`. Batch norm follows those
    layers: train with batches of one, as the paper does, or with `joint=True`.

    Args:
        classes: outputs per pixel.
        image_channels: channels of the image.
        first: channels of the first convolution.
        growth: new channels of each dense layer.
        down: layers of each block on the way down; the way up mirrors it.
        middle: layers of the middle block.
        dropout: makes a dropout layer from its number of channels, everywhere but in the middle block.
        middle_dropout: the same for the middle block; None takes `dropout`.

    Paper: section 3.2.2; Jégou et al. (2017).
    """

    def __init__(
        self,
        classes: int = 11,
        image_channels: int = 3,
        first: int = 48,
        growth: int = 16,
        down: Sequence[int] = (4, 5, 7, 10, 12),
        middle: int = 15,
        dropout: Dropout = channel_dropout,
        middle_dropout: Dropout | None = None,
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(image_channels, first, 3, padding=1)
        channels = first
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skips: list[int] = []
        for layers in down:
            block = DenseBlock(channels, layers, growth, dropout, new_only=False)
            channels = block.channels
            skips.append(channels)
            self.down.append(block)
            self.shrink.append(TransitionDown(channels, dropout))
        bottom = DenseBlock(channels, middle, growth, middle_dropout or dropout, new_only=True)
        self.middle, channels = bottom, bottom.channels
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        for i, layers in enumerate(reversed(down)):
            self.grow.append(TransitionUp(channels))
            last = i == len(down) - 1
            block = DenseBlock(channels + skips[-1 - i], layers, growth, dropout, new_only=not last)
            channels = block.channels
            self.up.append(block)
        self.last = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        smallest = 2 ** len(self.down)
        if min(x.shape[2:]) < smallest:
            raise ValueError(
                f"images of {tuple(x.shape[2:])} are too small for {len(self.down)} poolings; use {smallest} or more"
            )
        x = self.first(x)
        skips: list[Tensor] = []
        for block, shrink in zip(self.down, self.shrink):
            skips.append(block(x))
            x = shrink(skips[-1])
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up):
            x = block(grow(x, skips.pop()))
        return self.last(x)
