"""FGSM, BIM and PGD: against the adversarial-robustness-toolbox, closed forms and their own promises."""

from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sparring as sp
from sparring.attacks import BIM, FGSM, PGD, AutoAttack, Logits, RandomSearch, margin, paper_pgd, predictions
from sparring.metrics.robustness import robust_accuracy


def pixels(radius: float, norm: float = inf) -> sp.Ball:
    """The ball of images with pixels in [0, 1]."""
    return {inf: sp.Linf, 2: sp.L2}[norm](radius, box=(0, 1))


ART_NORM = {inf: np.inf, 2: 2}


def art(name: str, net: nn.Module, x: Tensor, y: Tensor, **settings: Any) -> Tensor:
    """Run one of ART's attacks with the true labels."""
    pytest.importorskip("art", reason="adversarial-robustness-toolbox is not installed")
    from art.attacks import evasion
    from art.estimators.classification import PyTorchClassifier

    estimator = PyTorchClassifier(
        net, nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    attack = getattr(evasion, name)(estimator, batch_size=len(x), **settings)
    found = torch.as_tensor(attack.generate(x.numpy(), y.numpy()))
    net.zero_grad(set_to_none=True)
    return found.to(x.dtype)


@pytest.mark.parametrize("norm", [inf, 2])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_fgsm_is_arts(network: str, norm: float, digits: Any, request: pytest.FixtureRequest) -> None:
    net, x, y = request.getfixturevalue(network), digits.x, digits.y
    epsilon = 0.1 if norm == inf else 1.0
    ours = FGSM(pixels(epsilon, norm))(net, x, y)
    theirs = art("FastGradientMethod", net, x, y, norm=ART_NORM[norm], eps=epsilon)
    _agree(net, x, y, ours, theirs, norm)


@pytest.mark.parametrize("norm", [inf, 2])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_bim_is_arts(network: str, norm: float, digits: Any, request: pytest.FixtureRequest) -> None:
    net, x, y = request.getfixturevalue(network), digits.x, digits.y
    epsilon = 0.1 if norm == inf else 1.0
    ours = paper_pgd(pixels(epsilon, norm), start=0, keep="last")(net, x, y)
    theirs = art(
        "ProjectedGradientDescent", net, x, y, norm=ART_NORM[norm], eps=epsilon, eps_step=epsilon / 10, max_iter=10,
        num_random_init=0, verbose=False,
    )  # fmt: skip
    _agree(net, x, y, ours, theirs, norm)


def _agree(net: nn.Module, x: Tensor, y: Tensor, ours: Tensor, theirs: Tensor, norm: float) -> None:
    assert (predictions(net, ours) == y).float().mean() == (predictions(net, theirs) == y).float().mean()
    lengths = [(found - x).flatten(1).norm(p=norm, dim=1) for found in (ours, theirs)]
    torch.testing.assert_close(lengths[0], lengths[1], rtol=1e-3, atol=1e-5)
    same = ((ours - theirs).abs().flatten(1).amax(1) < 1e-4).float().mean()
    assert same >= 0.98  # a sign may differ where a gradient entry is at rounding level


@pytest.mark.parametrize("norm", [inf, 2])
def test_pgd_with_random_starts_is_as_strong_as_arts(norm: float, digits: Any, mlp: nn.Module) -> None:
    x, y = digits.x, digits.y
    epsilon = 0.1 if norm == inf else 1.0
    np.random.seed(0)
    theirs = art(
        "ProjectedGradientDescent", mlp, x, y, norm=ART_NORM[norm], eps=epsilon, eps_step=epsilon / 10, max_iter=10,
        num_random_init=1, verbose=False,
    )  # fmt: skip
    ours = paper_pgd(pixels(epsilon, norm), keep="last")(mlp, x, y)
    right = [(predictions(mlp, found) == y).float().mean().item() for found in (ours, theirs)]
    assert abs(right[0] - right[1]) <= 0.05
    lengths = [(found - x).flatten(1).norm(p=norm, dim=1).mean().item() for found in (ours, theirs)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05)


def test_on_a_linear_model_every_attack_finds_the_best_point() -> None:
    net = nn.Linear(5, 2, bias=False).double()
    x, y = torch.rand(6, 5).double(), torch.tensor([0, 1, 0, 1, 0, 1])
    slope = (net.weight[1] - net.weight[0]).detach()
    toward = torch.where(y[:, None] == 0, slope, -slope)
    box = sp.Linf(0.3)
    for attack in (FGSM(box), BIM(box), PGD(box, loss="margin"), PGD(box, update="sign"), PGD(box, restarts=2)):
        torch.testing.assert_close(attack(net, x, y), x + 0.3 * toward.sign())
    unit = toward / toward.norm(dim=1, keepdim=True)
    for attack in (FGSM(sp.L2(0.3)), BIM(sp.L2(0.3)), BIM(sp.L2(0.3), update="normalised")):
        torch.testing.assert_close(attack(net, x, y), x + 0.3 * unit)


@pytest.mark.parametrize("norm", [inf, 2])
@given(
    seed=st.integers(0, 1000),
    epsilon=st.just(0.0) | st.floats(1e-4, 2.0),
    loss=st.sampled_from(["cross_entropy", "margin", "dlr"]),
)
@settings(max_examples=20, deadline=None)
def test_the_radius_and_the_range_bind(norm: float, seed: int, epsilon: float, loss: Any) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    x, y = torch.rand(5, 6), torch.randint(0, 4, (5,))
    for attack in (FGSM(pixels(epsilon, norm), loss=loss), PGD(pixels(epsilon, norm), steps=4, loss=loss, restarts=2)):
        found = attack(net, x, y)
        assert found.min() >= 0
        assert found.max() <= 1
        assert ((found - x).norm(p=norm, dim=1) <= epsilon + 1e-5).all()


@pytest.mark.parametrize("norm", [inf, 2])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("share", [0.3, 1.0, 3.0])
def test_the_default_attack_is_at_least_as_strong_as_one_step_and_as_the_paper_setting(
    share: float, network: str, norm: float, digits: Any, request: pytest.FixtureRequest
) -> None:
    net, x, y = request.getfixturevalue(network), digits.x, digits.y
    ball = pixels(share * (0.1 if norm == inf else 1.0), norm)
    strong = robust_accuracy(net, PGD(ball), x, y)
    for weaker in (FGSM(ball), paper_pgd(ball)):
        assert strong.plain <= robust_accuracy(net, weaker, x, y).plain


def test_the_default_attack_can_cross_the_ball_and_the_paper_setting_is_there_by_name() -> None:
    ball = pixels(0.4)
    assert PGD(ball).steps * PGD(ball)._player().size == pytest.approx(2.5 * 0.4)
    assert PGD(ball).start == "uniform"
    assert PGD(ball).keep == "best"
    assert (paper_pgd(ball).steps, paper_pgd(ball).step_size) == (10, 0.04)
    assert paper_pgd(ball, start=0).start == 0
    assert paper_pgd(pixels(0.0))(nn.Identity(), torch.zeros(1, 2), torch.tensor([0])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("kind", [sp.L2, sp.Linf])
def test_images_normalised_by_channel_stay_images(kind: Any) -> None:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    low, high = (0 - mean) / std, (1 - mean) / std
    torch.manual_seed(0)
    pixels = (1.6 * torch.rand(6, 3, 4, 4) - 0.3).clamp(0, 1)
    x, y = (pixels - mean.view(-1, 1, 1)) / std.view(-1, 1, 1), torch.arange(6) % 3
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    ball = kind(1.0, box=(low, high))
    for attack in (FGSM(ball), PGD(ball, restarts=2), BIM(ball, keep="last"), RandomSearch(ball, queries=20)):
        found = attack(net, x, y)
        back = found * std.view(-1, 1, 1) + mean.view(-1, 1, 1)
        assert float(back.min()) >= -1e-6
        assert float(back.max()) <= 1 + 1e-6
        assert bool((ball.norm(found - x) <= 1 + 1e-5).all())
        assert float((found - x).abs().max()) > 0.1


def test_restarts_and_best_iterates_never_hurt(digits: Any, cnn: nn.Module) -> None:
    x, y = digits.x, digits.y
    last = robust_accuracy(cnn, BIM(pixels(0.15), keep="last"), x, y)
    best = robust_accuracy(cnn, BIM(pixels(0.15), keep="best"), x, y)
    assert not (best.survived & ~last.survived).any()
    torch.manual_seed(5)
    once = robust_accuracy(cnn, PGD(pixels(0.15)), x, y)
    torch.manual_seed(5)
    often = robust_accuracy(cnn, PGD(pixels(0.15), restarts=4), x, y)
    assert not (often.survived & ~once.survived).any()


def test_nothing_of_the_model_changes(digits: Any, cnn: nn.Module) -> None:
    before = {name: value.clone() for name, value in cnn.state_dict().items()}
    for mode in (True, False):
        cnn.train(mode)
        for attack in (FGSM(pixels(0.1)), PGD(pixels(0.1), steps=2)):
            attack(cnn, digits.x[:20], digits.y[:20])
        assert cnn.training is mode
    for name, value in cnn.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in cnn.parameters())


def test_no_graph_and_no_dependence_on_the_grad_mode(digits: Any, mlp: nn.Module) -> None:
    with torch.no_grad():
        quiet = BIM(pixels(0.1))(mlp, digits.x[:20], digits.y[:20])
    loud = BIM(pixels(0.1))(mlp, digits.x[:20], digits.y[:20])
    assert torch.equal(quiet, loud)
    assert not loud.requires_grad
    with torch.inference_mode():
        x, y = digits.x[:20] + 0, digits.y[:20] + 0  # made here, so that torch forbids them in any graph
        assert torch.equal(BIM(pixels(0.1))(mlp, x, y), loud)
        assert torch.equal(FGSM(pixels(0.1))(mlp, x, y), FGSM(pixels(0.1))(mlp, digits.x[:20], digits.y[:20]))


def test_an_example_is_attacked_alike_in_any_batch(digits: Any, cnn: nn.Module) -> None:
    whole = BIM(pixels(0.1))(cnn, digits.x[:8], digits.y[:8])
    one = torch.cat([BIM(pixels(0.1))(cnn, x[None], y[None]) for x, y in zip(digits.x[:8], digits.y[:8])])
    torch.testing.assert_close(whole, one, rtol=0, atol=1e-5)


class Shifted(nn.Module):
    """A model whose weights carry large fresh noise in every pass."""

    def __init__(self, net: nn.Module, noise: float) -> None:
        super().__init__()
        self.net, self.noise = net, noise

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.noise * torch.randn_like(x))


def test_averaging_over_the_noise_makes_the_attack_on_a_stochastic_model_stronger(digits: Any, mlp: nn.Module) -> None:
    noisy = Shifted(mlp, 0.4)
    single = robust_accuracy(noisy, BIM(pixels(0.15), keep="last"), digits.x, digits.y, samples=10)
    averaged = robust_accuracy(noisy, BIM(pixels(0.15), keep="last", samples=16), digits.x, digits.y, samples=10)
    assert averaged.plain < single.plain - 0.03


def test_averaged_gradients_are_the_mean_of_single_ones() -> None:
    calls = iter([1.0, -2.0])

    class Flipping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * next(calls)

    seen: list[Tensor] = []

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        seen.append(logits)
        return logits[:, 0]

    moved = FGSM(pixels(0.1), loss=loss, samples=2)(Flipping(), torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    assert len(seen) == 2
    torch.testing.assert_close(moved, torch.tensor([[0.4, 0.5]]))  # mean slope is (1 - 2) / 2 < 0


def test_bad_settings_are_named(digits: Any, mlp: nn.Module) -> None:
    x, y = digits.x[:2], digits.y[:2]
    with pytest.raises(
        ValueError, match=r"run from 0 to 16, outside box=\(0, 1\): give the ball the range that your data has"
    ):
        FGSM(pixels(0.1))(mlp, x * 16, y)
    with pytest.raises(ValueError, match="loss is 'hinge'"):
        PGD(pixels(0.1), loss="hinge")(mlp, x, y)  # type: ignore[arg-type]
    for attack in (FGSM, PGD, BIM, RandomSearch, AutoAttack):
        with pytest.raises(
            TypeError, match=r"\(ball=0.1\): a number does not say which norm; write ball=sp.L2\(0.1\) or"
        ):
            attack(0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"PGD\(steps=0\)"):
        PGD(pixels(0.1), steps=0)
    with pytest.raises(ValueError, match=r"PGD\(update='leap'\)"):
        PGD(pixels(0.1), update="leap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="samples=0"):
        FGSM(pixels(0.1), samples=0)(mlp, x, y)
    with pytest.raises(ValueError, match="samples=0"):
        predictions(mlp, x, samples=0)
    with pytest.raises(ValueError, match="restarts=0"):
        PGD(pixels(0.1), restarts=0)
    with pytest.raises(ValueError, match="keep='worst'"):
        PGD(pixels(0.1), keep="worst")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="attacks need logits"):
        FGSM(pixels(0.1))(_Tuple(), x, y)


class _Tuple(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x, 1


class _Steps(nn.Module):
    """Cuts its input into steps that torch cannot differentiate at all."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x * 15).round().detach() / 15)


@pytest.mark.parametrize("norm", [inf, 2])
def test_a_model_without_a_gradient_is_attacked_as_one_with_a_zero_gradient(
    norm: float, digits: Any, mlp: nn.Module
) -> None:
    x, y = digits.x[:10], digits.y[:10]
    assert torch.equal(FGSM(pixels(0.1, norm))(_Steps(mlp), x, y), x)
    assert torch.equal(BIM(pixels(0.1, norm))(_Steps(mlp), x, y), x)
    assert not torch.equal(PGD(pixels(0.1, norm))(_Steps(mlp), x, y), x)  # the random start needs no gradient


def test_large_inputs_in_half_precision_do_not_overflow() -> None:
    torch.manual_seed(0)
    x, net = torch.rand(2, 1000).mul(255).half(), nn.Linear(1000, 3).half()  # an example sums up to about 127,500
    assert torch.equal(Logits(net)(x), net(x))
    y = net(x).argmax(1)
    ball = sp.Linf(1.0, box=(0, 255))
    steps, noise = (PGD(ball, steps=n, step_size=0.5 if n > 1 else 1e-6)(net, x, y) for n in (8, 1))
    assert (margin(net(steps), y) > margin(net(noise), y) + 1).all()  # the gradient is seen


class _Overflowing(nn.Module):
    """Answers with nan as soon as the first number falls below 0.5."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] < 0.5, torch.nan, x)


def test_nan_is_no_right_answer() -> None:
    x, y = torch.tensor([[0.55, 0.1], [0.3, 0.1]]), torch.tensor([0, 0])
    assert predictions(_Overflowing(), x).tolist() == [0, -1]
    result = robust_accuracy(_Overflowing(), BIM(pixels(0.1)), x, y)
    assert result.right.tolist() == [True, False]
    assert result.survived.tolist() == [False, False]  # the attack drove the first one into nan
