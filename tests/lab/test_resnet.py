"""Image networks against published parameter counts and shapes."""

import pytest
import torch

from sparring.lab.models.resnet import ResNet18
from sparring.lab.models.small_cnn import SmallCNN


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("classes", "published"), [(10, 11_173_962), (100, 11_220_132)])
def test_resnet18_has_the_published_number_of_parameters(classes, published):
    with torch.device("meta"):
        assert count(ResNet18(classes)) == published


@pytest.mark.parametrize("width", [1, 4, 16])
def test_narrow_resnet18_scales_quadratically_in_its_width(width):
    # 3x3 convolutions: stem 3w, four w*w, then per stage (w_in + 3 w_out) w_out; 1x1 shortcuts; batch norms; head
    stages = [(width * 2**i, width * 2 ** (i + 1)) for i in range(3)]
    convolutions = 27 * width + 9 * 4 * width**2 + sum(9 * (a * b + 3 * b * b) + a * b for a, b in stages)
    norms = 2 * (width + 4 * width + sum(5 * b for _, b in stages))
    assert count(ResNet18(10, width)) == convolutions + norms + 8 * width * 10 + 10


def test_small_cnn_has_the_published_number_of_parameters():
    assert count(SmallCNN()) == 1_199_882


def test_stage_sizes_follow_the_image():
    net = ResNet18(width=2).eval()
    x = torch.zeros(1, 3, 32, 32)
    x = net.layer1(net.relu(net.bn1(net.conv1(x))))
    sides = [x.shape[-1]]
    for layer in (net.layer2, net.layer3, net.layer4):
        x = layer(x)
        sides.append(x.shape[-1])
    assert sides == [32, 16, 8, 4]


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="width=0"):
        ResNet18(width=0)
    with pytest.raises(ValueError, match="size=5"):
        SmallCNN(size=5)
