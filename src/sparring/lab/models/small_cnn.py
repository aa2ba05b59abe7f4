"""A small convolutional network for small grey images."""

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two 3x3 convolutions, average pooling, one hidden layer, and the linear layer `fc`.

    >>> import torch
    >>> net = SmallCNN(size=8, channels=(8, 16), hidden=32)
    >>> tuple(net(torch.zeros(2, 1, 8, 8)).shape), net.fc.in_features
    ((2, 10), 32)

    With the defaults it has the layers of PyTorch's MNIST example (average pooling instead of maximum pooling, so that
    certificates can see through it).

    Args:
        classes: outputs of `fc`.
        size: height and width of the image.
        image_channels: channels of the image.
        channels: channels of the two convolutions.
        hidden: units that enter `fc`.
    """

    def __init__(
        self,
        classes: int = 10,
        size: int = 28,
        image_channels: int = 1,
        channels: tuple[int, int] = (32, 64),
        hidden: int = 128,
    ) -> None:
        super().__init__()
        if size < 6:
            raise ValueError(f"size={size} is too small for two 3x3 convolutions and pooling; use 6 or more")
        self.conv1 = nn.Conv2d(image_channels, channels[0], 3)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3)
        self.relu2 = nn.ReLU()
        self.pool = nn.AvgPool2d(2)
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(channels[1] * ((size - 4) // 2) ** 2, hidden)
        self.relu3 = nn.ReLU()
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu2(self.conv2(self.relu1(self.conv1(x))))
        return self.fc(self.relu3(self.hidden(self.flatten(self.pool(x)))))
