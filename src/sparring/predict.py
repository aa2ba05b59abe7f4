"""Predictions with their uncertainty, by Monte-Carlo dropout."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .nn import EmbeddingDropout, WeightDrop
from .nn.randomness import Watch, devices_of
from .passes import call
from .passes.layout import Layout, slow_path
from .passes.memory import Look, Memory
from .passes.replay import recording, replaying
from .passes.step import logits_of
from .passes.tape import Tape
from .penalties import full_precision
from .sites.attention.interface import is_hugging_face_attention
from .sites.site import Undo, undo_all

__all__ = ["Prediction", "entropy", "passes", "predict", "stochastic"]


@dataclass(frozen=True)
class Prediction:
    """Mean probabilities and how sure they are.

    Attributes:
        probabilities: mean softmax over the passes (..., C).
        entropy: entropy of that mean, the total uncertainty.
        mutual_information: the part of it that comes from the passes disagreeing (about the model rather than the data).
        samples: every pass's probabilities (S, ..., C), if asked for.
    """

    probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor
    samples: Tensor | None = None


def _draws(module: nn.Module) -> bool:
    """Whether a module in training mode draws, and does nothing else that evaluation would not do."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    if isinstance(module, _DropoutNd | EmbeddingDropout | WeightDrop) or hasattr(module, "draw"):
        return True
    return is_hugging_face_attention(module)


@contextmanager
def stochastic(model: nn.Module) -> Iterator[None]:
    """Dropout draws, everything else (batch norm) evaluates; each module's own mode comes back afterwards.

    Dropout means layers of that name, ours for embeddings and recurrent weights, and what the recurrent and attention layers of
    torch and Hugging Face drop inside. A module that calls `torch.nn.functional.dropout` on its own account evaluates: give it a
    dropout layer.
    """
    modes = [(module, module.training) for module in model.modules()]
    fast_again = slow_path()
    try:
        model.eval()
        for module, _ in modes:
            if _draws(module):
                module.training = True
        yield
    finally:
        fast_again()
        for module, mode in modes:
            module.training = mode


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats of distributions in the last dimension; 0 log 0 = 0.

    >>> entropy(torch.tensor([1.0, 0.0])).item(), round(entropy(torch.tensor([0.5, 0.5])).item(), 4)
    (0.0, 0.6931)
    """
    return torch.special.entr(probabilities).sum(-1)


def passes(model: nn.Module, inputs: Any, samples: int) -> Iterator[Any]:
    """Several calls of the model; what runs before the first dropout runs once, if nothing random happens in it.

    Where the model sets attributes as it runs, everything runs each time: a module behind the dropout may go on with them.
    """
    tape, look = Tape(frozenset()), Look(Memory(), Layout.of(model, ()), inputs) if samples > 1 else None
    noisy = [module for module in model.modules() if _draws(module)]
    closers = [module.register_forward_pre_hook(lambda *_: tape.close()) for module in noisy]
    undo: list[Undo] = [closer.remove for closer in closers]
    try:
        if samples > 1:
            undo.append(recording(model, [tape], Watch(devices_of(model))))
        first = call(model, inputs)
    finally:
        undo_all(undo)
    yield first
    usable = tape if look is not None and not tape.open and tape.noise_free and not look.changed() else None
    for _ in range(samples - 1):
        if usable is not None:
            undo.append(replaying(usable, attached=False, noise=False))
        try:
            answer = call(model, inputs)
        finally:
            undo_all(undo)
        yield answer


@torch.no_grad()
def predict(
    model: nn.Module, inputs: Any, samples: int = 10, keep_samples: bool = False, outputs: Any = None
) -> Prediction:
    """Mean class probabilities over stochastic passes, with predictive entropy and mutual information.

    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    >>> predict(model, torch.ones(2, 4), samples=8).probabilities.shape
    torch.Size([2, 3])

    Args:
        model: a classifier; its logits have the classes in the last dimension.
        inputs: a tensor, tuple or mapping, as the model takes them.
        samples: passes with dropout active; 1 gives a single draw.
        keep_samples: also return every pass's probabilities.
        outputs: from what the model returns to its logits; the tensor itself or its `.logits` by default.
    """
    if samples < 1:
        raise ValueError(f"predict(samples={samples}): at least one pass")
    extract = outputs or logits_of
    mean: Tensor | None = None
    spread: Tensor | None = None
    kept: list[Tensor] = []
    with stochastic(model):
        for answer in passes(model, inputs, samples):
            logits = extract(answer)
            if logits.shape[-1] < 2:
                raise ValueError(
                    f"predict: the logits have shape {tuple(logits.shape)}, and the softmax of one is always 1; give two classes, "
                    "for one logit z of yes or no: outputs=lambda z: torch.cat([0 * z, z], -1)"
                )
            probabilities = full_precision(logits).softmax(-1)
            mean = probabilities if mean is None else mean + probabilities
            spread = entropy(probabilities) if spread is None else spread + entropy(probabilities)
            if keep_samples:
                kept.append(probabilities)
    assert mean is not None
    assert spread is not None
    mean = mean / samples
    total = entropy(mean)
    information = (total - spread / samples).clamp_min(0)
    return Prediction(mean, total, information, torch.stack(kept) if keep_samples else None)
