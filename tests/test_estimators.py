"""Estimators of the logits' gradient against enumeration: exactly where u can be integrated, by z-score elsewhere."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparring.estimators import ARM, DisARM, Enumerate, Estimator, LeaveOneOut, Reinforce, surrogate, uniforms_given
from sparring.estimators.antithetic import mirrored

SAMPLERS = [ARM(), DisARM(), LeaveOneOut(2), LeaveOneOut(4), Reinforce(), Reinforce(baseline="batch")]


class TwoLayers:
    """Two dropout layers of two units that share their logits, three examples, float64."""

    def __init__(self, rescale: bool, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.x, self.y = (torch.randn(3, n, generator=g, dtype=torch.float64) for n in (2, 1))
        self.weights = [torch.randn(o, i, generator=g, dtype=torch.float64) for o, i in ((2, 2), (2, 2), (1, 2))]
        self.logits = torch.tensor([0.8, -0.4], dtype=torch.float64, requires_grad=True)
        self.rescale = rescale

    def losses(self, masks: list[Tensor], logits: Tensor) -> Tensor:
        hidden = self.x
        for weight, mask in zip(self.weights, masks):
            scale = torch.sigmoid(logits) if self.rescale else torch.ones(())
            hidden = torch.tanh(hidden @ weight.T) * mask / scale
        return (hidden @ self.weights[2].T - self.y).square().squeeze(1)

    def probability(self, masks: list[Tensor]) -> Tensor:
        keep = torch.sigmoid(self.logits)
        return torch.stack([torch.where(z > 0.5, keep, 1 - keep).prod() for z in masks]).prod()

    def true_gradient(self) -> Tensor:
        expected = sum(self.probability(z) * self.losses(z, self.logits).mean() for z in all_masks())
        return torch.autograd.grad(expected, self.logits)[0]

    def pathwise(self) -> Tensor:
        """E_z of the gradient through 1/keep at fixed masks; zero without rescaling."""
        if not self.rescale:
            return torch.zeros(2, dtype=torch.float64)
        expected = sum(self.probability(z).detach() * self.losses(z, self.logits).mean() for z in all_masks())
        return torch.autograd.grad(expected, self.logits)[0]


def all_masks() -> Iterator[list[Tensor]]:
    for bits in itertools.product([0.0, 1.0], repeat=4):
        yield [torch.tensor(bits[:2], dtype=torch.float64), torch.tensor(bits[2:], dtype=torch.float64)]


def cells(logit: float) -> list[tuple[float, float]]:
    """Midpoint and length of the intervals of u on which both masks are constant; the estimators are linear in each."""
    keep = 1 / (1 + math.exp(-logit))
    edges = sorted([0.0, keep, 1 - keep, 1.0])
    return [((a + b) / 2, b - a) for a, b in itertools.pairwise(edges) if b > a]


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("estimator", [ARM(), DisARM()])
def test_antithetic_estimators_integrate_to_the_true_gradient(estimator: ARM, rescale: bool) -> None:
    net = TwoLayers(rescale)
    logits = net.logits.detach()
    total = net.pathwise()
    axes = [cells(float(logits[k % 2])) for k in range(4)]
    for cell in itertools.product(*axes):
        volume = math.prod(length for _, length in cell)
        u = torch.tensor([mid for mid, _ in cell], dtype=torch.float64)
        uniforms = [u[:2].expand(3, 2), u[2:].expand(3, 2)]
        z1 = mirrored([logits, logits], uniforms)
        z2 = [(v < torch.sigmoid(logits)).double() for v in uniforms]
        first, second = net.losses(z1, logits), net.losses(z2, logits)
        for layer in uniforms:  # shared logits: the two layers are summed; examples averaged
            total = total + volume * estimator.combine(logits, layer, first, second).mean(0)
    assert float((total - net.true_gradient()).abs().max()) < 1e-12


@pytest.mark.parametrize("rescale", [False, True])
def test_enumeration_is_exact(rescale: bool) -> None:
    net = TwoLayers(rescale)
    logits = net.logits.detach()
    start = [torch.ones(3, 2, dtype=torch.float64)] * 2
    gradients = Enumerate().gradient([logits] * 2, start, net.losses(start, logits), lambda z: net.losses(z, logits))
    total = sum(g.mean(0) for g in gradients) + net.pathwise()
    torch.testing.assert_close(total, net.true_gradient(), atol=1e-13, rtol=0)


def test_leaving_out_the_pathwise_term_can_flip_the_sign() -> None:
    """Rescaled masks z/keep without the derivative of 1/keep: the mistake of public code, on one unit in closed form.

    E[(z w/keep - 1)^2] = w^2/keep - 2 w + 1, so the gradient is -w^2 (1-keep)/keep: negative. The score part alone is
    keep (1-keep) ((w/keep - 1)^2 - 1), positive for w > 2 keep.
    """
    w, keep = 3.0, 0.25
    logits = torch.tensor([math.log(keep / (1 - keep))], dtype=torch.float64)
    ones = [torch.ones(1, 1, dtype=torch.float64)]

    def loss(z: list[Tensor]) -> Tensor:
        return (z[0][:, 0] * w / keep - 1).square()

    score = float(Enumerate().gradient([logits], ones, loss(ones), loss)[0])
    true = -(w**2) * (1 - keep) / keep
    assert score == pytest.approx(keep * (1 - keep) * ((w / keep - 1) ** 2 - 1))
    assert score > 0 > true


def z_scores(estimator: Estimator, loss: Callable[[list[Tensor]], Tensor], logits: Tensor, true: Tensor) -> Tensor:
    masks = [torch.bernoulli(torch.sigmoid(logits).expand(20_000, -1))]
    samples = estimator.gradient([logits], masks, loss(masks), loss)[0].double()
    return (samples.mean(0) - true) / (samples.std(0) / math.sqrt(len(samples)))


@pytest.mark.parametrize("estimator", SAMPLERS, ids=repr)
def test_every_estimator_is_unbiased(estimator: Estimator) -> None:
    torch.manual_seed(0)
    logits = torch.tensor([1.5, -1.0, 0.2])
    coefficients = torch.tensor([1.0, -2.0, 0.5])

    def loss(z: list[Tensor]) -> Tensor:
        return (z[0] @ coefficients - 0.3).square() + z[0].prod(1)

    one = [torch.ones(1, 3)]
    true = Enumerate().gradient([logits], one, loss(one), loss)[0].mean(0).double()
    assert float(z_scores(estimator, loss, logits, true).abs().max()) < 4.5


def test_disarm_varies_less_than_arm_and_arm_less_than_reinforce() -> None:
    torch.manual_seed(0)
    logits = torch.zeros(4)
    w = torch.randn(4)

    def loss(z: list[Tensor]) -> Tensor:
        return (z[0] @ w - 1).square() + 5

    masks = [torch.bernoulli(torch.full((20_000, 4), 0.5))]
    variance = {
        type(e).__name__: float(e.gradient([logits], masks, loss(masks), loss)[0].var(0).sum())
        for e in (ARM(), DisARM(), Reinforce())
    }
    assert variance["DisARM"] < 0.85 * variance["ARM"]
    assert variance["ARM"] < 0.5 * variance["Reinforce"]


@settings(deadline=None, max_examples=30)
@given(st.floats(-6, 6), st.integers(0, 10**6))
def test_conditional_uniforms_reproduce_their_mask(logit: float, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.full((1,), logit)
    masks = [torch.bernoulli(torch.sigmoid(logits).expand(500, 1))]
    (u,) = uniforms_given([logits], masks)
    assert torch.equal((u < torch.sigmoid(logits)).float(), masks[0])
    assert float(u.min()) >= 0
    assert float(u.max()) <= 1


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.93])
def test_conditional_uniforms_are_uniform(keep: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    torch.manual_seed(0)
    logits = torch.logit(torch.tensor([keep], dtype=torch.float64))
    masks = [torch.bernoulli(torch.full((20_000, 1), keep, dtype=torch.float64))]
    u = uniforms_given([logits], masks)[0].flatten().numpy()
    assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_the_surrogate_is_worth_nothing_and_sums_shared_logits() -> None:
    shared = torch.zeros(1, requires_grad=True)
    g1, g2 = torch.arange(6.0).reshape(2, 3), torch.ones(2, 4, 1, 1)
    charge = surrogate([shared, shared.reshape(1, 1, 1, 1)], [g1, g2])
    assert charge.item() == 0
    charge.backward()
    assert shared.grad is not None
    assert float(shared.grad) == pytest.approx((15 + 8) / 2)


@pytest.mark.parametrize("estimator", [*SAMPLERS, Enumerate()], ids=repr)
def test_a_loss_that_is_not_finite_gives_a_zero_not_a_nan(estimator: Estimator) -> None:
    def broken(z: list[Tensor]) -> Tensor:
        return torch.tensor([float("nan"), float("inf")])

    masks = [torch.ones(2, 3)]
    (gradient,) = estimator.gradient([torch.zeros(3)], masks, torch.tensor([1.0, 1.0]), broken)
    assert bool(gradient.isfinite().all())


def test_a_broken_loss_is_no_baseline_for_the_other_examples() -> None:
    masks = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    losses = torch.tensor([1.0, 2.0, 5.0, torch.nan])
    (found,) = Reinforce(baseline="batch").gradient([torch.zeros(2)], [masks], losses)
    (expected,) = Reinforce(baseline="batch").gradient([torch.zeros(2)], [masks[:3]], losses[:3])
    torch.testing.assert_close(found[:3], expected)
    assert not found[3].any()


@pytest.mark.parametrize("estimator", [ARM(), DisARM(), Reinforce(), Enumerate()], ids=repr)
def test_a_reduced_loss_is_refused(estimator: Estimator) -> None:
    with pytest.raises(ValueError, match="per example"):
        estimator.gradient([torch.zeros(2)], [torch.ones(4, 2)], torch.tensor(1.0), lambda z: torch.tensor(1.0))


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="samples=1"):
        LeaveOneOut(1)
    with pytest.raises(ValueError, match="'mean'"):
        Reinforce(baseline="mean")
    with pytest.raises(ValueError, match=r"13 units give 2\^13"):
        Enumerate().gradient([torch.zeros(13)], [torch.ones(1, 13)], torch.ones(1), lambda z: torch.ones(1))
