"""Labelled and unlabelled examples in one call: one pass or two, the same loss; what is safe, and what is said."""

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from methods import METHODS, Method
from scenes import SCENES
from sparring import recipes


def model(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh(), nn.Linear(8, 3)).double()


def data() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3, torch.randn(9, 4, dtype=torch.float64)


class Fixed(sp.Player):
    """Answers with a direction that depends on the example alone, so that joint and separate passes play the same."""

    def respond(self, game: sp.Game) -> sp.Response:
        return sp.Response([0.3 * torch.sin(7 * slot.value) for slot in game.slots])


def objective(net: nn.Module, **options: Any) -> sp.Objective:
    return sp.Objective(net, sp.cross_entropy, sp.Term(sp.Output("0"), Fixed(), sp.kl), sp.Entropy(0.3), **options)


def gradients(loss: Tensor, net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(net.parameters())))


@pytest.mark.parametrize("separate", [None, True, False])
def test_one_pass_or_two_give_the_sum_of_two_means(separate: bool | None) -> None:
    net, (x, y, more) = model(), data()
    both = objective(net, separate=separate)
    loss = both(x, y, unlabelled=more)
    assert both.diagnostics["forward_passes"] == (4 if separate else 2)
    apart = objective(net)
    expected = apart(x, y) + apart(more)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(loss, net), gradients(expected, net), rtol=1e-9, atol=1e-12)


def test_batch_norm_keeps_the_two_apart_and_moves_on_both() -> None:
    net, (x, y, more) = model(norm=True), data()
    twin = copy.deepcopy(net)
    both = objective(net)
    both(x, y, unlabelled=more)
    assert both.diagnostics["forward_passes"] == 4
    twin(x), twin(more)
    torch.testing.assert_close(net[1].running_mean, twin[1].running_mean)
    assert int(net[1].num_batches_tracked) == 2


@pytest.mark.parametrize("shapes", ["words", "mapping", "tuple"])
def test_inputs_of_every_form_are_joined_and_odd_ones_kept_apart(shapes: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, ids: Tensor, scale: Tensor | None = None) -> Tensor:
            return self.head(self.embed(ids).mean(1))

    net = Net().double()
    few, many = torch.randint(9, (3, 5)), torch.randint(9, (4, 5))
    longer = torch.randint(9, (4, 6))
    y = torch.tensor([0, 1, 2])
    form = {
        "words": lambda t: t,
        "mapping": lambda t: {"ids": t, "scale": torch.ones(len(t))},
        "tuple": lambda t: (t, torch.ones(len(t))),
    }[shapes]
    both = sp.Objective(net, sp.cross_entropy, sp.Term(sp.Output("embed"), Fixed(), sp.kl))
    for more, passes in ((many, 2), (longer, 4)):
        loss = both(form(few), y, unlabelled=form(more))
        assert both.diagnostics["forward_passes"] == passes
        torch.testing.assert_close(loss, both(form(few), y) + both(form(more)))


def test_one_training_step_is_counted() -> None:
    net, (x, y, more) = model(), data()
    both = objective(net)
    both(x, y, unlabelled=more)
    assert both.number == 1
    with pytest.raises(ValueError, match="goes beside labelled"):
        both(x, unlabelled=more)


def test_methods_that_need_labels_say_that_they_used_none() -> None:
    net, (x, y, more) = model(), data()
    plain = sp.Objective(net, sp.cross_entropy)
    torch.testing.assert_close(plain(x, y, unlabelled=more), plain(x, y))
    assert plain.diagnostics["forward_passes"] == 1
    supervised = recipes.adversarial_training(net, sp.cross_entropy)
    supervised(x, y, unlabelled=more)
    assert supervised.diagnostics["unlabelled_used"] == 0


@pytest.mark.parametrize("joint", [True, False])
def test_without_labels_the_clean_side_is_a_constant_unless_asked(joint: bool) -> None:
    """Two sides that may both move are nearest to each other where all predictions are the same."""
    net, (x, y, more) = model(), data()

    def gradient(detach: bool | None) -> list[Tensor]:
        term = sp.Term(sp.Output("0"), Fixed(), sp.kl, detach_clean=detach)
        both = sp.Objective(net, sp.cross_entropy, term, separate=not joint)
        return gradients(both(x, y, unlabelled=more), net)

    def by_hand(detached: bool) -> Tensor:
        def charge(inputs: Tensor, detach: bool) -> Tensor:
            clean = net(inputs)
            values = net[0](inputs)
            moved = net[1:](values + 0.3 * torch.sin(7 * values.detach()))
            return sp.kl(clean.detach() if detach else clean, moved).mean()

        return sp.cross_entropy(net(x), y).mean() + charge(x, False) + charge(more, detached)

    torch.testing.assert_close(gradient(None), gradients(by_hand(True), net))
    torch.testing.assert_close(gradient(False), gradients(by_hand(False), net))


def test_entropy_is_that_of_torch_and_has_its_gradient() -> None:
    net, (x, _, _) = model(), data()
    loss = recipes.entropy(net, sp.cross_entropy, weight=2.0)(x)
    expected = 2 * torch.distributions.Categorical(logits=net(x)).entropy().mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, net), gradients(expected, net))


def test_a_class_that_disappears_is_said_once() -> None:
    net, (x, y, more) = model().float(), data()
    both = recipes.vat(net, sp.cross_entropy)
    x, more = x.float(), more.float()
    with torch.no_grad():
        net[-1].bias.copy_(torch.tensor([0.0, 0.0, -50.0]))
    missing = 3 - len(net(more).argmax(1).unique())
    assert missing
    for _ in range(300):
        both(x, y, unlabelled=more)
    with pytest.warns(UserWarning, match=f"{missing} of 3 classes have disappeared"):
        assert both.diagnostics["unlabelled/missing_classes"] == missing
    assert both.diagnostics["unlabelled/missing_classes"] == missing


def test_a_part_of_the_batch_can_be_padded() -> None:
    embed = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)).double()  # an answer for every token
    few, many = torch.randint(9, (3, 5)), torch.randint(9, (4, 5))
    labels = torch.randint(3, (3, 5))
    valid, more_valid = torch.rand(3, 5) > 0.3, torch.rand(4, 5) > 0.3
    valid[:, 0] = more_valid[:, 0] = True
    both = sp.Objective(embed, sp.cross_entropy, sp.Term(sp.Output("0"), Fixed(), sp.kl))
    loss = both(few, labels, valid, many, unlabelled_valid=more_valid)
    torch.testing.assert_close(loss, both(few, labels, valid) + both(many, None, more_valid))
    assert both(few, labels, valid, many, unlabelled_valid=more_valid) != both(few, labels, None, many)


class Sizes(sp.Playable):
    """A term of one's own that says nothing of joint batches."""

    label_free = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def play(self, step: Any) -> Tensor:
        self.seen.append((step.batch, step.labelled))
        return step.outputs.square().mean(1)


def test_a_term_of_ones_own_sees_the_two_batches_apart_unless_it_asks() -> None:
    net, (x, y, more) = model(), data()
    own = Sizes()
    loss = sp.Objective(net, sp.cross_entropy, own)(x, y, unlabelled=more)
    assert own.seen == [(5, None), (9, None)]
    by_hand = sp.cross_entropy(net(x), y).mean() + net(x).square().mean() + net(more).square().mean()
    torch.testing.assert_close(loss, by_hand)


def _has_a_clean_side(method: Method) -> bool:
    known = getattr(recipes, method.name.partition("-")[0], None)
    return method.label_free and known is not None and "detach_clean" in inspect.signature(known).parameters


@pytest.mark.parametrize("method", [m for m in METHODS if _has_a_clean_side(m)], ids=lambda method: method.name)
def test_every_recipe_is_safe_on_data_without_labels(method: Method) -> None:
    """With nobody to hold the predictions, the clean side is a constant by default: the gradient of `detach_clean=True`."""
    found = []
    for words in ({}, {"detach_clean": True}, {"detach_clean": False}):
        torch.manual_seed(0)
        net, inputs, _, valid = SCENES[method.scenes[0]].setup()
        built = method.build(SCENES[method.scenes[0]], net, **words)
        torch.manual_seed(1)
        found.append(gradients(built(inputs, None, valid), net))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert not all(map(torch.equal, found[0], found[2])), "it must make a difference here"


def test_a_leading_term_is_named_on_unlabelled_examples_too() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = sp.recipes.free_lb(model, sp.cross_entropy, "0", ball=sp.L2(0.5), penalty=sp.kl, steps=2, start=0.1)
    objective(torch.randn(4, 4), torch.arange(4) % 3, unlabelled=torch.randn(6, 4))
    assert "unlabelled/free_lb/penalty" in objective.diagnostics
