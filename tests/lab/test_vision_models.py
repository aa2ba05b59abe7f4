"""VGG and FC-DenseNet: counts that identify the published networks, sizes, dropout places."""

import pytest
import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

import sparring as sp
from sparring.lab.models.fc_densenet import FCDenseNet
from sparring.lab.models.vgg import SMALL, VGG
from sparring.nn import BernoulliDropout


def test_vgg19_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        net = VGG(classes=1000)
    assert sum(p.numel() for p in net.parameters()) == 143_667_240
    weighted = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(weighted) == 19
    places = [name for name, m in net.named_modules() if isinstance(m, _DropoutNd)]
    assert places == ["classifier.2", "classifier.5"]


def test_fc_densenet_103_has_103_convolutions_and_15_learnable_layers() -> None:
    with torch.device("meta"):
        net = FCDenseNet(middle_dropout=lambda units: BernoulliDropout(1))
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    assert len(convolutions) == 103
    learned = [name for name, m in net.named_modules() if isinstance(m, BernoulliDropout)]
    assert len(learned) == 15
    assert all(name.startswith("middle.") for name in learned)
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(9.4e6, rel=0.02)  # "9.4 M" in its paper's table
    channels = [block.channels for block in (*net.down, net.middle, *net.up)]
    assert channels == [
        112,
        192,
        304,
        464,
        656,
        240,
        192,
        160,
        112,
        80,
        256,
    ]  # table 2 of its paper, new_only on the way up


@pytest.mark.parametrize("size", [(16, 16), (19, 26), (36, 48)])
def test_fc_densenet_keeps_any_size(size: tuple[int, int]) -> None:
    net = FCDenseNet(classes=4, first=4, growth=2, down=(1, 2), middle=2).eval()
    assert net(torch.randn(2, 3, *size)).shape == (2, 4, *size)


def test_learned_dropout_trains_in_both() -> None:
    torch.manual_seed(0)
    vgg = VGG((4, "M"), hidden=(6, 6), size=8, dropout=BernoulliDropout)
    objective = sp.recipes.learnable_bernoulli(vgg, sp.cross_entropy, prior_scale=1.0, dataset_size=10)
    objective(torch.randn(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)).backward()
    tiny = FCDenseNet(2, first=4, growth=2, down=(1,), middle=2, middle_dropout=lambda units: BernoulliDropout(1))
    pixels = sp.recipes.learnable_bernoulli(tiny, sp.cross_entropy, outputs=lambda o: o.movedim(1, -1))
    pixels(torch.randn(1, 3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.long)).backward()
    for net in (vgg, tiny):
        for layer in net.modules():
            if isinstance(layer, BernoulliDropout):
                assert bool(layer.logits.grad.abs().sum() > 0)


def test_too_small_images_are_named() -> None:
    with pytest.raises(ValueError, match="too small"):
        VGG(SMALL, size=4)
    with pytest.raises(ValueError, match="use 4 or more"):
        FCDenseNet(2, first=4, growth=2, down=(1, 1), middle=1)(torch.zeros(1, 3, 2, 8))
    with pytest.raises(ValueError, match="'P'"):
        VGG((4, "P"))
