"""ResNet-18 with the stem used for 32 x 32 images, of any width."""

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to their input (projected where the shape changes).

    >>> import torch
    >>> tuple(BasicBlock(4, 8, stride=2)(torch.zeros(1, 4, 8, 8)).shape)
    (1, 8, 4, 4)
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Eight residual blocks, then global average pooling and the linear layer `fc`.

    >>> import torch
    >>> net = ResNet18(classes=10, width=4)
    >>> tuple(net(torch.zeros(2, 3, 32, 32)).shape), net.fc.in_features
    ((2, 10), 32)

    Args:
        classes: outputs of `fc`.
        width: channels of the first stage, doubled three times; 64 is the published network, whose `fc` reads 512
            features, and 4 the scaled-down one that the priority-dropout paper certifies.
        channels: channels of the image.

    Paper: He et al., "Deep Residual Learning for Image Recognition", with the 3x3 stem without pooling for CIFAR.
    """

    def __init__(self, classes: int = 10, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width={width} leaves no channel; use 1 or more (64 is the published width)")
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(BasicBlock(width, width), BasicBlock(width, width))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2), BasicBlock(8 * width, 8 * width))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.pool(x)))
