"""Steps that run again in backward: the gradient of the whole graph, in the memory of one step."""

import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sparring as sp
from sparring.players.attention_kernel import math_attention
from sparring.players.player import Game, Response


class Whole(sp.PGD):
    """The same player with every step's graph kept: no payoff to compute again, so it falls back on what torch keeps."""

    def respond(self, game: Game) -> Response:
        return super().respond(replace(game, apart=None))


class Network(nn.Module):
    """Attention, dropout and batch norm between an embedding and the classes; parts of it may be checkpointed."""

    def __init__(self, dtype: torch.dtype = torch.float64, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True, activation="gelu")
        self.norm = nn.BatchNorm1d(8)
        self.late = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)
        self.checkpointed = checkpointed
        self.to(dtype)
        with torch.no_grad():
            self.head.weight.mul_(4)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = checkpoint(self.layer, hidden, use_reentrant=False) if self.checkpointed else self.layer(hidden)
        return self.head(self.drop(torch.tanh(self.late(self.norm(hidden.mean(1))))))


def network(**options: Any) -> Network:
    torch.manual_seed(0)
    return Network(**options)


X, Y = torch.randint(20, (6, 5), generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3


def gradients(model: nn.Module, player: sp.PGD, at: str, inputs: Any = X, **words: Any) -> tuple[Tensor, Tensor]:
    term = sp.Term(sp.Output(at), player, sp.kl, 2.0, words.pop("share_noise", True), False)
    objective = sp.Objective(model, sp.cross_entropy, term)
    model.zero_grad()
    torch.manual_seed(3)
    loss = objective(inputs, Y)
    loss.backward()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([g.flatten() for g in found]), loss.detach()


UPDATES: dict[str, dict[str, Any]] = {
    "raw": {"update": "raw", "step_size": 5.0},
    "normalised": {"update": "normalised"},
    "sign": {"update": "sign", "step_size": 0.05},
    "adam": {"update": "adam", "step_size": 0.1},
}


@pytest.mark.parametrize("at", ["embedding", "late"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("update", list(UPDATES))
def test_the_gradient_is_that_of_the_whole_graph(update: str, steps: int, at: str) -> None:
    """Dropout shared, batch norm in training mode, and a ball small enough that every step ends on its surface."""
    words = {"ball": sp.L2(0.2), "steps": steps, "start": 0.1, "unroll": "autograd", **UPDATES[update]}
    kept, again = network(), network()
    expected, loss = gradients(kept, Whole(**words), at)
    found, same = gradients(again, sp.PGD(**words), at)
    torch.testing.assert_close(loss, same, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    for (name, a), b in zip(kept.named_buffers(), again.buffers()):
        assert torch.equal(a, b), f"{name} moved while a step ran again"
    constant, _ = gradients(network(), sp.PGD(**{**words, "unroll": False}), at)
    differs = float((expected - constant).norm() / expected.norm())
    if (update, steps) != ("adam", 1):  # Adam's first move is a sign, but for its 1e-8
        assert (differs > 1e-3) == (update != "sign"), "the ascent's own derivative must be a part of what is compared"


@pytest.mark.parametrize("share_noise", [True, False])
@pytest.mark.parametrize("ball", [sp.L2(0.2), sp.Linf(0.05), sp.L2(0.3, box=(-1, 1))], ids=str)
def test_noise_and_balls(ball: Any, share_noise: bool) -> None:
    words = {"ball": ball, "steps": 3, "start": 0.05, "unroll": "autograd"}
    model = network()
    with torch.no_grad():
        model.embedding.weight.clamp_(-1, 1)
    expected, _ = gradients(model, Whole(**words), "embedding", share_noise=share_noise)
    model.norm.reset_running_stats()
    found, _ = gradients(model, sp.PGD(**words), "embedding", share_noise=share_noise)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_under_gradient_checkpointing_of_the_model_itself() -> None:
    words = {"ball": sp.L2(0.2), "steps": 3, "start": 0.1, "unroll": "autograd"}
    expected, _ = gradients(network(), Whole(**words), "embedding")
    found, _ = gradients(network(checkpointed=True), sp.PGD(**words), "embedding")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_autocast_comes_back_with_the_step() -> None:
    words = {"ball": sp.L2(0.5), "steps": 3, "start": 0.1, "unroll": "autograd"}
    model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    seen: list[torch.dtype] = []
    model[2].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    found = []
    for player in (Whole(**words), sp.PGD(**words)):
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, sp.kl, 2.0))
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.float16):
            loss = objective(x, Y)
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    assert seen == [torch.float16] * (5 + 7), "two of three steps run again, in the precision of the first time"
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 2e-3, "float16 rounds by 1e-3"


def test_inputs_closures_and_what_comes_before_the_model_get_their_gradient() -> None:
    """A backbone outside the objective, inputs that are leaves, and a penalty with a parameter of its own."""
    torch.manual_seed(0)
    backbone, model = nn.Linear(4, 5).double(), nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)

    def penalty(clean: Tensor, perturbed: Tensor) -> Tensor:
        return sp.kl(clean * scale, perturbed * scale)

    words = {"ball": sp.L2(0.5), "steps": 3, "start": 0.1, "unroll": "autograd"}
    wanted = [x, scale, *backbone.parameters(), *model.parameters()]
    found = []
    for player in (Whole(**words), sp.PGD(**words)):
        objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, penalty, detach_clean=False))
        torch.manual_seed(3)
        found.append(torch.autograd.grad(objective(torch.sin(backbone(x)), Y), wanted))
    for a, b in zip(*found):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-12)


def test_backward_twice_and_two_losses_at_once() -> None:
    words = {"ball": sp.L2(0.2), "steps": 3, "start": 0.1, "unroll": "autograd"}
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(6, 5, dtype=torch.float64)
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), sp.PGD(**words), sp.kl))
    loss = objective(x, Y) + objective(x + 1, Y)
    once = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    for a, b in zip(once, torch.autograd.grad(loss, list(model.parameters()))):
        assert torch.equal(a, b)


def test_a_model_or_batch_that_changed_before_backward_is_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(6, 5)
    objective = sp.recipes.salt(model, sp.cross_entropy, "0", steps=2, start=0.1)
    loss = objective(x, Y)
    model.eval()
    with pytest.raises(RuntimeError, match=r"mode of Sequential.*Call backward\(\) first"):
        loss.backward()
    loss = objective(x, Y)
    x += 1
    with pytest.raises(RuntimeError, match="changed"):
        loss.backward()


class Kept:
    """What autograd saves and has not let go, in bytes, and the most it ever was. Weights are there anyway and not counted."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {p.data_ptr() for p in model.parameters()}
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> list[Tensor]:
        class Held(list):
            pass

        held = Held([tensor])
        if tensor.data_ptr() not in self.weights:
            self._add(tensor.nbytes)
            weakref.finalize(held, self._add, -tensor.nbytes)
        return held

    def _add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


def most_kept(player: sp.PGD) -> tuple[int, int]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())), nn.Linear(32, 3))
    objective = sp.Objective(model, sp.cross_entropy, sp.Term(sp.Output("0"), player, sp.kl))
    kept = Kept(model)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda held: held[0]):
        objective(torch.randn(256, 32), torch.arange(256) % 3).backward()
    return kept.most, kept.now


def test_three_steps_keep_at_most_a_third_more_than_one() -> None:
    def player(kind: type[sp.PGD], steps: int) -> sp.PGD:
        return kind(sp.L2(0.5), steps, start=0.1, unroll="autograd")

    one, three = most_kept(player(sp.PGD, 1))[0], most_kept(player(sp.PGD, 3))[0]
    assert three <= 1.3 * one
    assert most_kept(player(sp.PGD, 8))[0] <= 1.3 * one
    assert most_kept(player(Whole, 3))[0] > 1.6 * one, "the graph of three steps must be larger, or nothing is measured"


def test_nothing_is_left_when_the_loss_is_gone() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    objective = sp.recipes.salt(model, sp.cross_entropy, "0", steps=3, start=0.1)
    for backward in (True, False):
        x = torch.randn(6, 5)
        gone = weakref.ref(x)
        loss = objective(x, Y)
        if backward:
            loss.backward()
        del x, loss
        gc.collect()
        assert gone() is None


def test_threads_share_the_choice_of_kernel_and_leave_none_behind() -> None:
    """The second thread comes before the first one goes, and goes after it."""
    inside, first_gone, seen = threading.Event(), threading.Event(), []

    def second() -> None:
        with math_attention():
            inside.set()
            first_gone.wait(10)
            seen.append(torch.backends.cuda.flash_sdp_enabled())

    thread = threading.Thread(target=second)
    with math_attention():
        thread.start()
        assert inside.wait(10)
    first_gone.set()
    thread.join()
    assert seen == [False]
    assert torch.backends.cuda.flash_sdp_enabled()
