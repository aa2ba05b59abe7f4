"""Small models with their data: the stages on which every method is tried."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.body(x)
        return self.head(self.dropout(x.mean((2, 3))))


class TextClassifier(nn.Module):
    """Embedding, LSTM, masked mean, classifier; token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5, padding_idx=0)
        self.dropout = nn.Dropout(0.2)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        valid = (tokens != 0).unsqueeze(-1)
        states, _ = self.lstm(self.dropout(self.embedding(tokens)) * valid)
        return self.head((states * valid).sum(1) / valid.sum(1))


class Encoder(nn.Module):
    """A small transformer encoder that returns an object with `.logits`, called with keywords as Hugging Face models are."""

    @dataclass
    class Result:
        logits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> "Encoder.Result":
        hidden = self.layers(self.embedding(input_ids), src_key_padding_mask=~attention_mask.bool())
        return Encoder.Result(self.head(hidden[:, 0]))


class Seq2Seq(nn.Module):
    """Source and target embeddings, GRU encoder and decoder, logits for every target position."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(9, 5)
        self.target = nn.Embedding(9, 5)
        self.encoder = nn.GRU(5, 6, batch_first=True)
        self.decoder = nn.GRU(5, 6, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(6, 9)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.source(source))
        states, _ = self.decoder(self.target(target), state)
        return self.head(self.dropout(states))


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.dropout = nn.Dropout(0.1)
        self.second = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.first(x))))


@dataclass(frozen=True)
class Scene:
    """A model, a batch for it, and where to perturb it.

    Attributes:
        model: makes a fresh model.
        batch: makes (inputs, targets, valid) for B examples.
        loss: supervised loss.
        penalty: a divergence that suits the outputs.
        at: glob of an additive site.
        late: glob of an additive site deep in the network, where prefix replay pays.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Any, Tensor, Any]]
    loss: Callable[..., Tensor]
    penalty: Callable[..., Tensor]
    at: str
    late: str

    def setup(
        self, dtype: torch.dtype = torch.float64, examples: int = 5, seed: int = 0
    ) -> tuple[nn.Module, Any, Tensor, Any]:
        torch.manual_seed(seed)
        model = self.model().to(dtype)
        inputs, targets, valid = self.batch(examples)
        cast = lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
        inputs = {k: cast(v) for k, v in inputs.items()} if isinstance(inputs, dict) else cast(inputs)
        return model.train(), inputs, cast(targets), valid


def _lengths(batch: int, longest: int) -> Tensor:
    lengths = torch.randint(2, longest + 1, (batch,))
    lengths[0] = longest
    return torch.arange(longest) < lengths.unsqueeze(1)


def _pixels(batch: int) -> tuple[Any, Tensor, Any]:
    return torch.randn(batch, 1, 6, 6), torch.randint(3, (batch,)), None


def _features(batch: int) -> tuple[Any, Tensor, Any]:
    return torch.randn(batch, 4), torch.randint(3, (batch,)), None


def _tokens(batch: int) -> tuple[Any, Tensor, Any]:
    valid = _lengths(batch, 7)
    return torch.randint(1, 11, (batch, 7)) * valid, torch.randint(3, (batch,)), valid


def _keywords(batch: int) -> tuple[Any, Tensor, Any]:
    valid = _lengths(batch, 6)
    inputs = {"input_ids": torch.randint(1, 11, (batch, 6)) * valid, "attention_mask": valid.long()}
    return inputs, torch.randint(3, (batch,)), None


def _pairs(batch: int) -> tuple[Any, Tensor, Any]:
    source, target = _lengths(batch, 6), _lengths(batch, 4)
    inputs = (torch.randint(1, 9, (batch, 6)) * source, torch.randint(1, 9, (batch, 4)) * target)
    return inputs, torch.randint(1, 9, (batch, 4)), {"source": source, "target": target, "outputs": target}


def _numbers(batch: int) -> tuple[Any, Tensor, Any]:
    return torch.randn(batch, 4), torch.randn(batch), None


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def _learned() -> nn.Module:
    """Learnable dropout of both granularities around a plain one; `guided`, since some tests train it without an estimator."""
    rows = [sp.nn.BernoulliDropout(8, keep=0.7, rescale=True), sp.nn.BernoulliDropout(1, keep=0.8, rescale=True)]
    for row in rows:
        row.guided = True
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), rows[0], nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), rows[1], nn.Linear(8, 3)
    )


def _ensemble() -> nn.Module:
    """Three networks tied by priority dropout."""
    nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(3)]
    return sp.ensembles.Ensemble(nets, head="4", dropout=sp.ensembles.LaplacePriorityDropout(gamma=50.0))


SCENES = {
    scene.name: scene
    for scene in (
        Scene("mlp", _mlp, _features, sp.cross_entropy, sp.kl, "0", "5"),
        Scene("learned", _learned, _features, sp.cross_entropy, sp.kl, "0", "3"),
        Scene("ensemble", _ensemble, _features, sp.cross_entropy, sp.kl, "members.*.body.0", "members.*.head"),
        Scene("convnet", ConvNet, _pixels, sp.cross_entropy, sp.kl, "stem", "dropout"),
        Scene("lstm", TextClassifier, _tokens, sp.cross_entropy, sp.kl, "embedding", "head"),
        Scene("transformer", Encoder, _keywords, sp.cross_entropy, sp.kl, "embedding", "layers.layers.1.linear1"),
        Scene("seq2seq", Seq2Seq, _pairs, sp.cross_entropy, sp.kl, "source|target", "dropout"),
        Scene("regression", Regressor, _numbers, sp.squared_loss, sp.squared_error, "first", "dropout"),
    )
}
