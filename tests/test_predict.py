"""Monte-Carlo prediction: what runs once, what is drawn again, and what is left as it was."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import sparring as sp
from sparring.nn import BernoulliDropout, ConcreteDropout, GaussianDropout

CALLS: Counter[int] = Counter()  # outside the model: one that sets attributes as it runs is not replayed


class Counted(nn.Linear):
    @property
    def calls(self) -> int:
        return CALLS[id(self)]

    def forward(self, input: Tensor) -> Tensor:
        CALLS[id(self)] += 1
        return super().forward(input)


def net(drop: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    CALLS.clear()
    return nn.Sequential(Counted(3, 8), nn.BatchNorm1d(8), nn.ReLU(), drop, Counted(8, 4))


DROPOUTS = [nn.Dropout(0.5), BernoulliDropout(8), ConcreteDropout(8, p=0.4), GaussianDropout(8), nn.AlphaDropout(0.5)]


@pytest.mark.parametrize("drop", DROPOUTS, ids=lambda d: type(d).__name__)
def test_every_pass_draws_anew_but_the_prefix_runs_once(drop: nn.Module) -> None:
    model = net(drop).train()
    x = torch.randn(6, 3)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = sp.predict(model, x, samples=7, keep_samples=True)
    assert found.samples is not None
    assert len({tuple(sample.flatten().tolist()) for sample in found.samples}) == 7
    assert (model[0].calls, model[4].calls) == (1, 7)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())  # batch norm evaluates
    assert not any(m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())


@pytest.mark.parametrize("drop", DROPOUTS, ids=lambda d: type(d).__name__)
def test_replay_changes_no_bit(drop: nn.Module) -> None:
    model = net(drop).eval()
    x = torch.randn(6, 3)
    torch.manual_seed(1)
    found = sp.predict(model, x, samples=4, keep_samples=True).samples
    drop.train()
    torch.manual_seed(1)
    with torch.no_grad():
        expected = torch.stack([model(x).softmax(-1) for _ in range(4)])
    assert torch.equal(found, expected)


def test_noise_of_the_models_own_before_the_dropout_is_not_replayed() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x)

    model = nn.Sequential(Noisy(), nn.Dropout(1e-9), nn.Linear(3, 4))
    found = sp.predict(model, torch.zeros(2, 3), samples=5, keep_samples=True).samples
    assert found is not None
    assert len({tuple(sample.flatten().tolist()) for sample in found}) == 5


def test_modules_that_speak_through_attributes_run_in_every_pass() -> None:
    class Adds(nn.Module):
        total = 0.0

        def forward(self, x: Tensor) -> Tensor:
            self.total = self.total + x
            return self.total

    class Begins(nn.Module):
        def __init__(self, later: Adds) -> None:
            super().__init__()
            self.layer, self.later = nn.Linear(3, 64), (later,)

        def forward(self, x: Tensor) -> Tensor:
            self.later[0].total = 0.0
            return self.layer(x)

    torch.manual_seed(0)
    adds = Adds()
    model = nn.Sequential(Begins(adds), nn.Linear(64, 64), nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 4), adds)
    x = torch.randn(6, 3)
    torch.manual_seed(1)
    found = sp.predict(model, x, samples=5, keep_samples=True)
    model.train()
    torch.manual_seed(1)
    with torch.no_grad():
        expected = torch.stack([model(x).softmax(-1) for _ in range(5)])
    torch.testing.assert_close(found.samples, expected)


def test_the_numbers_against_their_definitions() -> None:
    model = net(BernoulliDropout(8))
    found = sp.predict(model, torch.randn(6, 3), samples=20, keep_samples=True)
    assert found.samples is not None
    rows = found.samples.double()
    mean = rows.mean(0)
    entropy = torch.tensor([-sum(p * math.log(p) for p in row) for row in mean.tolist()], dtype=torch.float64)
    inner = torch.tensor([[-sum(p * math.log(p) for p in row) for row in s] for s in rows.tolist()]).mean(0)
    torch.testing.assert_close(found.probabilities.double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.mutual_information.double(), entropy - inner, rtol=1e-4, atol=1e-5)


def test_the_mean_approaches_the_expectation() -> None:
    """One learnable unit: the mean probability is keep * p(kept) + (1 - keep) * p(dropped)."""
    model = nn.Sequential(BernoulliDropout(1, keep=0.3), nn.Linear(1, 2))
    torch.manual_seed(0)
    found = sp.predict(model, torch.ones(4000, 1), samples=10).probabilities.mean(0)
    linear = model[1]
    assert isinstance(linear, nn.Linear)
    kept, dropped = (linear(torch.full((1,), v)).softmax(-1).detach() for v in (1.0, 0.0))
    torch.testing.assert_close(found, 0.3 * kept + 0.7 * dropped, atol=0.01, rtol=0)


def test_the_mode_comes_back_after_an_error() -> None:
    model = net(nn.Dropout()).train()
    with pytest.raises(RuntimeError):
        sp.predict(model, torch.randn(2, 99))
    assert model.training
    assert not any(m._forward_pre_hooks or "forward" in m.__dict__ for m in model.modules())


class First(nn.Module):
    """The first thing that the inner module returns, at the last step."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        return self.head((found[0] if isinstance(found, tuple) else found)[:, -1])


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return super().forward(x, x, x)


def hidden_dropouts() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    return {
        "torch's transformer": nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False),
        "between layers": nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True),
        "recurrent weights": sp.nn.WeightDrop(nn.GRU(8, 8, batch_first=True), 0.5),
        "attention weights": SelfAttention(8, 2, dropout=0.5, batch_first=True),
    }


@pytest.mark.parametrize("kind", hidden_dropouts())
def test_dropout_inside_other_layers_draws_in_every_pass(kind: str) -> None:
    model = First(hidden_dropouts()[kind]).eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    found = sp.predict(model, torch.randn(3, 5, 8), samples=6, keep_samples=True).samples
    assert found is not None
    assert len({tuple(sample.flatten().tolist()) for sample in found}) == 6
    assert not any(module.training for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_words_are_dropped_in_every_pass() -> None:
    model = nn.Sequential(sp.nn.EmbeddingDropout(nn.Embedding(50, 3), 0.5), nn.Flatten(), nn.Linear(60, 4)).eval()
    found = sp.predict(model, torch.arange(40).view(2, 20), samples=5, keep_samples=True).samples
    assert found is not None
    assert len({tuple(sample.flatten().tolist()) for sample in found}) == 5


def test_one_logit_is_refused_not_called_certain() -> None:
    model, x = nn.Sequential(nn.Linear(3, 1), nn.Dropout()), torch.randn(2, 3)
    with pytest.raises(ValueError, match=r"shape \(2, 1\), and the softmax of one is always 1"):
        sp.predict(model, x)
    found = sp.predict(model, x, outputs=lambda z: torch.cat([0 * z, z], -1))
    assert bool((found.entropy > 0).all())
