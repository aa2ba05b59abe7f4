"""`learnable_bernoulli` end to end: exact in u, unbiased on convolutions, clean beside batch norm and plain dropout."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.nn import BernoulliDropout


def per_example_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def two_layers(rescale: bool) -> nn.Sequential:
    torch.manual_seed(0)
    first = BernoulliDropout(2, keep=0.7, rescale=rescale)
    with torch.no_grad():
        first.logits.copy_(torch.tensor([0.8, -0.4]))
    second = BernoulliDropout(logits=first.logits, rescale=rescale)
    layers = [nn.Linear(2, 2), nn.Tanh(), first, nn.Linear(2, 2), nn.Tanh(), second, nn.Linear(2, 1)]
    return nn.Sequential(*layers).double()


def expected_gradient(model: nn.Sequential, x: Tensor, y: Tensor, layers: list[BernoulliDropout]) -> Tensor:
    """Gradient of the expected loss by running every mask through `perturbed_call`."""
    site, units = sp.Mask("**"), layers[0].logits.numel()
    keep = torch.sigmoid(layers[0].logits)
    total = torch.zeros((), dtype=x.dtype)
    for bits in itertools.product([0.0, 1.0], repeat=units * len(layers)):
        masks = list(torch.tensor(bits, dtype=x.dtype).reshape(len(layers), units))
        chance = torch.stack([torch.where(z > 0.5, keep, 1 - keep).prod() for z in masks]).prod()
        placed = [(z / keep if layer.rescale else z).expand(len(x), -1) for z, layer in zip(masks, layers)]
        total = total + chance * per_example_square(sp.perturbed_call(model, {site: placed}, x), y).mean()
    return torch.autograd.grad(total, layers[0].logits)[0]


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("estimator", [sp.ARM(), sp.DisARM()], ids=repr)
def test_integrated_over_u_the_objective_has_the_true_gradient(
    estimator: sp.ARM, rescale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = two_layers(rescale)
    first, second = model[2], model[5]
    assert isinstance(first, BernoulliDropout)
    assert isinstance(second, BernoulliDropout)
    assert first.logits is second.logits
    x, y = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 1, dtype=torch.float64)
    objective = sp.recipes.learnable_bernoulli(model, per_example_square, estimator=estimator)
    current: list[Tensor] = []

    def chosen(index: int) -> Any:
        return lambda input: current[index].expand(3, 2)

    for index, layer in enumerate((first, second)):
        monkeypatch.setattr(layer, "uniform", chosen(index))
    keep = torch.sigmoid(first.logits).detach()
    axes = []
    for k in range(4):
        edges = sorted([0.0, float(keep[k % 2]), 1 - float(keep[k % 2]), 1.0])
        axes.append([((a + b) / 2, b - a) for a, b in itertools.pairwise(edges)])
    total = torch.zeros(2, dtype=torch.float64)
    for cell in itertools.product(*axes):
        current[:] = torch.tensor([mid for mid, _ in cell], dtype=torch.float64).reshape(2, 2)
        (gradient,) = torch.autograd.grad(objective(x, y), first.logits)
        total += math.prod(length for _, length in cell) * gradient
    monkeypatch.undo()
    true = expected_gradient(model, x, y, [first, second])
    assert float((total - true).abs().max()) < 1e-12


@pytest.mark.parametrize(
    "estimator", [sp.ARM(), sp.DisARM(), sp.LeaveOneOut(), sp.Reinforce(baseline="batch"), sp.Enumerate()], ids=repr
)
def test_unbiased_on_a_convolutional_model(estimator: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), BernoulliDropout(3, keep=0.6, rescale=True), nn.Tanh(), nn.Flatten(), nn.Linear(12, 1)
    )
    layer = model[1]
    assert isinstance(layer, BernoulliDropout)
    x, y = torch.randn(1, 1, 4, 4), torch.randn(1, 1)

    def enumerated() -> Tensor:
        total = torch.zeros(())
        for bits in itertools.product([0.0, 1.0], repeat=3):
            z = torch.tensor(bits)
            mask = (z / layer.keep).reshape(1, 3, 1, 1)
            chance = torch.where(z > 0.5, layer.keep, 1 - layer.keep).prod()
            total = total + chance * per_example_square(sp.perturbed_call(model, {sp.Mask("1"): mask}, x), y).mean()
        return torch.autograd.grad(total, layer.logits)[0]

    objective = sp.recipes.learnable_bernoulli(model, per_example_square, estimator=estimator)
    batch, targets = x.expand(512, -1, -1, -1), y.expand(512, -1)
    draws = torch.stack([torch.autograd.grad(objective(batch, targets), layer.logits)[0] for _ in range(60)])
    z = (draws.mean(0) - enumerated()) / (draws.std(0) / math.sqrt(len(draws)))
    assert float(z.abs().max()) < 4.5


def test_beside_batch_norm_and_plain_dropout() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.4), nn.Linear(4, 2), BernoulliDropout(2),
        nn.Dropout(0.3), nn.Linear(2, 2),
    )  # fmt: skip
    layer, norm = model[5], model[1]
    assert isinstance(layer, BernoulliDropout)
    assert isinstance(norm, nn.BatchNorm1d)
    x, y = torch.randn(400, 3), torch.randint(2, (400,))
    objective = sp.recipes.learnable_bernoulli(model, sp.cross_entropy)
    torch.manual_seed(1)
    objective(x, y).backward()
    assert int(norm.num_batches_tracked) == 1
    learned = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    torch.manual_seed(1)  # the same masks in a plain pass: the model's own gradient is that pass's
    sp.cross_entropy(model(x), y).mean().backward()
    for name, parameter in model.named_parameters():
        if name != "5.logits":
            torch.testing.assert_close(learned[name], parameter.grad)
    # the rates: unbiased over repeated draws, other noise included
    exact = sp.recipes.learnable_bernoulli(model, sp.cross_entropy, estimator=sp.Enumerate())
    gaps = []
    for seed in range(80):
        pair = []
        for each in (objective, exact):
            torch.manual_seed(seed)
            pair.append(torch.autograd.grad(each(x, y), layer.logits)[0])
        gaps.append(pair[0] - pair[1])  # same plain dropout in both: what remains is the estimator's own noise
    stacked = torch.stack(gaps)
    z = stacked.mean(0) / (stacked.std(0) / math.sqrt(len(gaps)))
    assert float(z.abs().max()) < 4.5


def test_batch_norm_after_the_dropout_needs_joint_credit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(BernoulliDropout(1, keep=0.6), nn.BatchNorm1d(1), nn.Linear(1, 1)).double()
    layer = model[0]
    assert isinstance(layer, BernoulliDropout)
    x, y = torch.randn(3, 1, dtype=torch.float64), torch.randn(3, 1, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for bits in itertools.product([0.0, 1.0], repeat=3):
        z = torch.tensor(bits, dtype=torch.float64)
        chance = torch.where(z > 0.5, layer.keep, 1 - layer.keep).prod()
        outputs = sp.perturbed_call(model, {sp.Mask("0"): z[:, None]}, x)
        total = total + chance * per_example_square(outputs, y).mean()
    true = float(torch.autograd.grad(total, layer.logits)[0])

    def z_score(joint: bool) -> float:
        objective = sp.recipes.learnable_bernoulli(model, per_example_square, joint=joint)
        draws = torch.cat([torch.autograd.grad(objective(x, y), layer.logits)[0] for _ in range(400)])
        return float((draws.mean() - true) / (draws.std() / math.sqrt(len(draws))))

    assert abs(z_score(joint=True)) < 4.5
    assert abs(z_score(joint=False)) > 6  # an example's mask moves the others' losses through the batch statistics


def test_one_extra_pass_from_the_first_learnable_dropout() -> None:
    calls: list[str] = []

    class Counted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            calls.append(str(self.in_features))
            return super().forward(input)

    model = nn.Sequential(Counted(2, 5), nn.ReLU(), BernoulliDropout(5), Counted(5, 2))
    objective = sp.recipes.learnable_bernoulli(model, sp.cross_entropy)
    objective(torch.randn(4, 2), torch.zeros(4, dtype=torch.long)).backward()
    assert calls == ["2", "5", "5"]
    assert objective.diagnostics["forward_passes"] == 2
    assert objective.diagnostics["learnable_bernoulli/keep/2"] == 0.5


def test_a_layer_used_twice_learns_from_both_calls() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = BernoulliDropout(2, keep=0.7)
            self.out = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.drop(torch.tanh(self.drop(x))))

    torch.manual_seed(0)
    model = Twice().double()
    x, y = torch.randn(2, 2, dtype=torch.float64), torch.randn(2, 1, dtype=torch.float64)
    objective = sp.recipes.learnable_bernoulli(model, per_example_square, estimator=sp.Enumerate())
    (found,) = torch.autograd.grad(objective(x, y), model.drop.logits)
    total = torch.zeros((), dtype=torch.float64)
    for bits in itertools.product([0.0, 1.0], repeat=4):
        z = torch.tensor(bits, dtype=torch.float64).reshape(2, 2)
        chance = torch.where(z > 0.5, model.drop.keep, 1 - model.drop.keep).prod()
        outputs = model.out(torch.tanh(x * z[0]) * z[1])
        total = total + chance * per_example_square(outputs, y).mean()
    (true,) = torch.autograd.grad(total, model.drop.logits)
    torch.testing.assert_close(found, true, atol=1e-12, rtol=0)


def test_units_are_not_taken_for_words_where_there_are_as_many() -> None:
    """A padding mask (B, T) beside a dropout of (B, K) units, T = K: every unit still learns."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.drop, self.out = nn.Embedding(9, 4), BernoulliDropout(4), nn.Linear(4, 1)

        def forward(self, words: Tensor) -> Tensor:
            return self.out(self.drop(self.embedding(words).mean(1)))

    torch.manual_seed(0)
    model = Pooled().double()
    words, y = torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0]]), torch.randn(2, 1, dtype=torch.float64)
    objective = sp.recipes.learnable_bernoulli(model, per_example_square, estimator=sp.Enumerate())
    (plain,) = torch.autograd.grad(objective(words, y), model.drop.logits)
    (padded,) = torch.autograd.grad(objective(words, y, valid=words != 0), model.drop.logits)
    torch.testing.assert_close(padded, plain, atol=1e-12, rtol=0)


def test_frozen_or_evaluating_layers_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 4), BernoulliDropout(4), nn.Linear(4, 4), BernoulliDropout(4), nn.Linear(4, 2))
    model[1].logits.requires_grad_(False)  # type: ignore[union-attr, operator]
    objective = sp.recipes.learnable_bernoulli(model, sp.cross_entropy)
    x, y = torch.randn(6, 2), torch.zeros(6, dtype=torch.long)
    objective(x, y).backward()
    assert model[1].logits.grad is None
    assert bool(model[3].logits.grad.abs().sum() > 0)  # type: ignore[union-attr]
    objective.eval()
    objective(x, y).backward()
    assert objective.diagnostics["forward_passes"] == 1


def test_the_value_is_the_plain_loss_and_the_prior_adds_its_kl() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), BernoulliDropout(4, keep=0.8), nn.Linear(4, 2))
    x, y = torch.randn(6, 2), torch.zeros(6, dtype=torch.long)
    bare = sp.recipes.learnable_bernoulli(model, sp.cross_entropy)
    prior = sp.recipes.learnable_bernoulli(model, sp.cross_entropy, prior_scale=0.5, dataset_size=50)
    torch.manual_seed(0)
    plain = sp.cross_entropy(model(x), y).mean()
    torch.manual_seed(0)
    assert torch.equal(bare(x, y), plain)
    torch.manual_seed(0)
    consumer = model[3]
    assert isinstance(consumer, nn.Linear)
    norm = float(consumer.weight.detach().square().sum())
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    kl = 0.8 / (2 * 0.25) * norm - 4 * entropy
    assert prior(x, y).item() == pytest.approx(plain.item() + kl / 50, rel=1e-5)


def test_unlabelled_batches_keep_the_prior_only() -> None:
    model = nn.Sequential(nn.Linear(2, 4), BernoulliDropout(4), nn.Linear(4, 2))
    objective = sp.recipes.learnable_bernoulli(model, sp.cross_entropy, prior_scale=1.0, dataset_size=10)
    objective(torch.randn(3, 2)).backward()
    assert bool(model[1].logits.grad.abs().sum() > 0)  # type: ignore[union-attr]


def test_training_without_the_objective_warns_once() -> None:
    model = nn.Sequential(nn.Linear(2, 4), BernoulliDropout(4), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="rates will not learn"):
        model(torch.randn(3, 2))
    model(torch.randn(3, 2))  # a second warning would be an error here
    quiet = nn.Sequential(nn.Linear(2, 4), BernoulliDropout(4))
    quiet.eval()(torch.randn(3, 2))
    with torch.no_grad():
        quiet.train()(torch.randn(3, 2))


def test_bad_input_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 4), BernoulliDropout(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="dataset_size"):
        sp.recipes.learnable_bernoulli(model, sp.cross_entropy, prior_scale=1.0)
    with pytest.raises(ValueError, match="no BernoulliDropout"):
        sp.recipes.learnable_bernoulli(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), sp.cross_entropy)
    for estimator in (sp.Enumerate(), sp.Reinforce("batch")):  # the first would be wrong, the second always zero
        with pytest.raises(ValueError, match="joint=True"):
            sp.recipes.learnable_bernoulli(model, sp.cross_entropy, estimator=estimator, joint=True)
    reduced = sp.recipes.learnable_bernoulli(model, nn.functional.cross_entropy)
    with pytest.raises(ValueError, match="one per example"):
        reduced(torch.randn(3, 2), torch.zeros(3, dtype=torch.long))
