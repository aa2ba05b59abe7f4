"""The small menu of models for the user's own data, and models of the user's own: `module:function`."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from ...errors import LabError, unknown
from ...models.resnet import ResNet18
from ...source import blamed_on, load_name
from ...task import Data, Setting

Build = Callable[[Setting, Data], nn.Module]


def chosen(menu: Mapping[str, Build], setting: Setting, data: Data) -> nn.Module:
    """The model that the setting `model` names: from the menu, or whatever a function of the user's returns."""
    name = setting["model"]
    if name in menu:
        return menu[name](setting, data)
    if ":" not in name:
        raise unknown("model", name, [*menu, "module:function", "./file.py:function"])
    build = load_name(name)
    with blamed_on(getattr(getattr(build, "__code__", None), "co_filename", "")):
        model = build(setting, data)
    if not isinstance(model, nn.Module):
        raise LabError(f"model={name} returned a {type(model).__name__}; it must return an nn.Module")
    return model


class ConvNet(nn.Module):
    """Convolutions with batch norm and pooling for images of any size, then `dropout` and the linear layer `fc`.

    >>> import torch
    >>> tuple(ConvNet(3, 5, width=4)(torch.zeros(2, 3, 20, 31)).shape)
    (2, 5)

    Args:
        channels: of the image.
        classes: outputs.
        width: channels of the first convolution; the next two have twice and four times as many.
        drop: rate of the dropout before `fc`.
    """

    def __init__(self, channels: int, classes: int, width: int = 16, drop: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.AvgPool2d(2, ceil_mode=True)]
        self.features = nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.dropout = nn.Dropout(drop)
        self.fc = nn.Linear(16 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, channels, H, W)."""
        return self.fc(self.dropout(self.features(images)))


class Perceptron(nn.Module):
    """Hidden layers with `dropout` behind the last, then the linear layer `fc`; images are flattened.

    >>> import torch
    >>> tuple(Perceptron(30, 2, width=8)(torch.zeros(4, 30)).shape)
    (4, 2)

    Args:
        features: numbers an example.
        outputs: classes, or 1 for a number.
        width: units of each hidden layer.
        drop: rate of the dropout.
        norm: batch norm after every hidden layer.
    """

    def __init__(self, features: int, outputs: int, width: int = 64, drop: float = 0.2, norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for before in (features, width):
            layers += [nn.Linear(before, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.dropout = nn.Dropout(drop)
        self.fc = nn.Linear(width, outputs)

    def forward(self, values: Tensor) -> Tensor:
        """Logits (B, classes), or numbers (B,) where there is one output."""
        found = self.fc(self.dropout(self.hidden(values)))
        return found.squeeze(-1) if self.fc.out_features == 1 else found


def image_menu() -> dict[str, Build]:
    """Models of images (B, C, H, W)."""

    def numbers(data: Data) -> int:
        return int(data.train.inputs[0].numel())

    return {
        "cnn": lambda s, d: ConvNet(d.train.inputs.shape[1], len(d.extra["classes"]), s["width"], s["dropout"]),
        "mlp": lambda s, d: Perceptron(numbers(d), len(d.extra["classes"]), 8 * s["width"], s["dropout"], norm=True),
        "resnet": lambda s, d: ResNet18(len(d.extra["classes"]), s["width"], d.train.inputs.shape[1]),
    }


def table_menu() -> dict[str, Build]:
    """Models of rows of numbers (B, F)."""

    def outputs(data: Data) -> int:
        return len(data.extra["classes"]) or 1

    def linear(setting: Setting, data: Data) -> nn.Module:
        net = nn.Sequential()
        net.add_module("fc", nn.Linear(data.train.inputs.shape[1], outputs(data)))
        if outputs(data) == 1:
            net.add_module("number", nn.Flatten(0))
        return net

    return {
        "mlp": lambda s, d: Perceptron(d.train.inputs.shape[1], outputs(d), s["width"], s["dropout"]),
        "linear": linear,
    }
