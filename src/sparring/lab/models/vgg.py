"""VGG networks with dropout in the classifier, where the paper puts it."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

VGG19 = (64, 64, "M", 128, 128, "M", *(256,) * 4, "M", *(512,) * 4, "M", *(512,) * 4, "M")
SMALL = (32, "M", 64, "M", 128, "M")
"""Channels of each 3x3 convolution, "M" for 2x2 maximum pooling."""


class VGG(nn.Module):
    """Convolutions, then fully connected layers, each followed by ReLU and dropout, then the classifier.

    >>> import torch
    >>> from sparring.nn import BernoulliDropout
    >>> net = VGG(SMALL, hidden=(64, 64), size=32, dropout=BernoulliDropout)
    >>> net.classifier[2].logits.shape
    torch.Size([64])
    >>> tuple(net.eval()(torch.zeros(2, 3, 32, 32)).shape)
    (2, 10)

    The paper's network is the default: `VGG19` on 224 x 224 images with two hidden layers of 4096.

    Args:
        plan: channels of each convolution and "M" for pooling.
        classes: outputs.
        hidden: units of the fully connected layers; a dropout follows each.
        size: height and width of the images.
        image_channels: channels of the images.
        batch_norm: normalise after each convolution (before any dropout, so that examples do not interact after it).
        dropout: makes the dropout layer from the number of units, e.g. `lambda units: nn.Dropout(0.5)`.

    Paper: section 3.2.1; Simonyan and Zisserman (2014).
    """

    def __init__(
        self,
        plan: Sequence[int | str] = VGG19,
        classes: int = 10,
        hidden: Sequence[int] = (4096, 4096),
        size: int = 224,
        image_channels: int = 3,
        batch_norm: bool = False,
        dropout: Callable[[int], nn.Module] = lambda units: nn.Dropout(0.5),
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = image_channels
        for width in plan:
            if isinstance(width, str):
                if width != "M":
                    raise ValueError(f"plan holds {width!r}; use numbers of channels and 'M' for pooling")
                layers.append(nn.MaxPool2d(2))
                size //= 2
                continue
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU())
            channels = width
        if size < 1:
            raise ValueError("the images are too small for the plan's poolings; use larger images or fewer 'M'")
        self.features = nn.Sequential(*layers)
        self.flatten = nn.Flatten()
        head: list[nn.Module] = []
        units = channels * size**2
        for width in hidden:
            head += [nn.Linear(units, width), nn.ReLU(), dropout(width)]
            units = width
        self.classifier = nn.Sequential(*head, nn.Linear(units, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.flatten(self.features(x)))
