"""Digits and small networks trained on them, once per session."""

from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Digits(NamedTuple):
    train_x: Tensor
    train_y: Tensor
    x: Tensor
    y: Tensor


@pytest.fixture(scope="session")
def digits() -> Digits:
    raw = load_digits()
    x = torch.tensor(raw.images / 16, dtype=torch.float32)[:, None]
    y = torch.tensor(raw.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return Digits(x[:1200], y[:1200], x[1200:1400], y[1200:1400])


def train(net: nn.Module, digits: Digits, epochs: int) -> nn.Module:
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(digits.train_x)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(digits.train_x[rows]), digits.train_y[rows]).backward()
            optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return net.eval()


@pytest.fixture(scope="session")
def mlp(digits: Digits) -> nn.Module:
    torch.manual_seed(1)
    return train(nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), digits, 12)


@pytest.fixture(scope="session")
def cnn(digits: Digits) -> nn.Module:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(192, 10),
    )
    return train(net, digits, 5)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
