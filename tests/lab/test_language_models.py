"""AWD-LSTM and its vocabulary: the same numbers as the plain formulas, without their memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparring as sp
from sparring.lab.models.language import AWDLSTM, VocabularyHead, head
from sparring.lab.models.language.head import Surprise
from sparring.lab.models.language.vocabulary import check_vocabulary, mark


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> AWDLSTM:
    monkeypatch.setattr(head, "ROWS", 4)  # several pieces even of a small window
    torch.manual_seed(0)
    model = AWDLSTM(words=30, size=6, hidden=8, layers=3).double()
    nn.init.normal_(model.bias)
    return model


def tokens(rows: int = 3, length: int = 6) -> torch.Tensor:
    return torch.randint(30, (rows, length))


def logits_of(model: AWDLSTM, outputs: torch.Tensor) -> torch.Tensor:
    return F.linear(outputs.chunk(2, -1)[0], model.table, model.bias)


def gradients(value: torch.Tensor, model: AWDLSTM) -> list[torch.Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters()), retain_graph=True, materialize_grads=True))


def same(mine: torch.Tensor, theirs: torch.Tensor, model: AWDLSTM) -> None:
    assert torch.allclose(mine, theirs, atol=1e-10)
    weights = torch.rand_like(mine.detach())
    for a, b in zip(gradients((mine * weights).sum(), model), gradients((theirs * weights).sum(), model), strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_the_loss_is_the_cross_entropy_of_the_logits(model: AWDLSTM) -> None:
    words, outputs = tokens(), model(tokens()).outputs
    plain = F.cross_entropy(logits_of(model, outputs).transpose(1, 2), words, reduction="none")
    same(VocabularyHead(model).surprise(outputs, words), plain, model)
    same(VocabularyHead(model).loss(outputs, words), plain.mean(1), model)


def test_the_bias_learns_beside_a_frozen_table() -> None:
    h, table, bias = torch.randn(5, 3), torch.randn(7, 3), torch.zeros(7, requires_grad=True)
    words = torch.randint(7, (5,))
    (plain,) = torch.autograd.grad(F.cross_entropy(h @ table.t() + bias, words, reduction="sum"), bias)
    (found,) = torch.autograd.grad(Surprise.apply(h, table, bias, words).sum(), bias)
    assert torch.allclose(found, plain, atol=1e-6)


def test_the_activation_regularisers_are_those_of_the_released_code(model: AWDLSTM) -> None:
    words, outputs = tokens(), model(tokens()).outputs
    dropped, raw = outputs.chunk(2, -1)
    loss = VocabularyHead(model, alpha=2.0, beta=1.0).loss(outputs, words) - VocabularyHead(model).loss(outputs, words)
    assert torch.allclose(loss.mean(), 2.0 * dropped.pow(2).mean() + (raw[:, 1:] - raw[:, :-1]).pow(2).mean())


def test_the_penalty_is_the_mean_over_the_vocabulary(model: AWDLSTM) -> None:
    """`(output - other).pow(2).mean()`, as fraternal and adversarial dropout charge it."""
    one, other = model(tokens()).outputs, model(tokens()).outputs
    found = VocabularyHead(model).squared_error(one, other)
    plain = sp.squared_error(logits_of(model, one), logits_of(model, other), reduction="mean")
    same(found, plain, model)
    assert torch.allclose(found.mean(), (logits_of(model, one) - logits_of(model, other)).pow(2).mean())


@pytest.mark.parametrize("name", ["kl", "symmetric_kl"])
def test_divergences_over_the_vocabulary(model: AWDLSTM, name: str) -> None:
    one, other = model(tokens()).outputs, model(tokens()).outputs
    plain = getattr(sp, name)(logits_of(model, one), logits_of(model, other))
    same(getattr(VocabularyHead(model), name)(one, other), plain, model)


@pytest.mark.parametrize("what", ["surprise", "squared_error", "symmetric_kl"])
def test_nothing_of_the_size_of_the_logits_is_kept(what: str) -> None:
    model = AWDLSTM(words=5000, size=4, hidden=4, layers=2)
    vocabulary, words = VocabularyHead(model), torch.randint(5000, (4, 100))
    one, other = model(words).outputs, model(words).outputs
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
        getattr(vocabulary, what)(one, words if what == "surprise" else other)
    assert max(sizes) <= 5000 * 4 < 4 * 100 * 5000 / 10  # the table is the largest


def test_reading_on_is_reading_at_once(model: AWDLSTM) -> None:
    model.eval()
    text = tokens(2, 9)
    whole = model(text).outputs
    first = model(text[:, :4])
    rest = model(text[:, 4:], first.state)
    assert torch.allclose(torch.cat([first.outputs, rest.outputs], 1), whole)


def test_every_kind_of_dropout_is_at_work() -> None:
    """Each rate alone makes two passes differ, and none of them does so in evaluation."""
    rates = ("drop_words", "drop_input", "drop_hidden", "drop_output", "drop_weights")
    words = tokens(2, 5)
    for name in rates:
        torch.manual_seed(0)
        model = AWDLSTM(30, 6, 8, 3, **{rate: 0.5 if rate == name else 0.0 for rate in rates})
        assert not torch.equal(model(words).outputs, model(words).outputs), name
        model.eval()
        assert torch.equal(model(words).outputs, model(words).outputs)


def test_weights_are_tied_and_counted_once() -> None:
    model = AWDLSTM(10_000, 400, 1150, 3)
    assert sum(p.numel() for p in model.parameters()) == 24_221_600  # 24M, table 3 of the paper
    assert model.table is model.embedding.embedding.weight


def test_weights_of_another_vocabulary_are_refused() -> None:
    one, other = nn.Module(), nn.Module()
    mark(one, ["a", "b"])
    mark(other, ["a", "c"])
    check_vocabulary(one, one.state_dict())
    for weights in (other.state_dict(), {}):
        with pytest.raises(Exception, match="vocabulary of this data is not the one"):
            check_vocabulary(one, weights)
