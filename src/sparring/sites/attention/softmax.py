"""Layers that hold their scores in full and call a softmax on them: older families, XLNet, any layer of a user's that does so."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..site import Undo, patch_forward
from .registry import ScoreVisit, register_attention

_SOFTMAXES = (F.softmax, torch.softmax, Tensor.softmax)
_MODELS = "transformers.models."
_HOLDERS = {
    "big_bird": "BigBirdSelfAttention",
    "bloom": "BloomAttention",
    "convbert": "ConvBertSelfAttention",
    "deberta": "DisentangledSelfAttention",
    "deberta_v2": "DisentangledSelfAttention",
    "falcon": "FalconAttention",
    "funnel": "FunnelRelMultiheadAttention",
    "gpt_neo": "GPTNeoSelfAttention",
    "megatron_bert": "MegatronBertSelfAttention",
    "mpnet": "MPNetSelfAttention",
    "rembert": "RemBertSelfAttention",
    "roformer": "RoFormerSelfAttention",
    "squeezebert": "SqueezeBertSelfAttention",
}
HIDDEN = -5e3  # no score of a trained layer is so low: somebody's mask made it


class _AtSoftmax(TorchFunctionMode):
    """While it is on, a softmax over the last dimension of scores is taken of what `look` makes of them.

    A mode belongs to its thread, so other threads see nothing of it.
    """

    def __init__(self, look: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.look, self.seen = look, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _SOFTMAXES:
            return func(*args, **kwargs)
        scores, rest = (args[0], args[1:]) if args else (kwargs.pop("input"), ())
        if (rest[0] if rest else kwargs.get("dim")) in (-1, scores.dim() - 1):
            self.seen = True
            scores = self.look(scores)
        return func(scores, *rest, **kwargs)


def seen_by(scores: Tensor) -> Tensor:
    """True where a mask has not hidden a score; where words look at words, padded ones ask nothing either."""
    seen = scores.detach() > HIDDEN
    if scores.dim() < 3 or scores.shape[-1] != scores.shape[-2]:
        return seen
    return seen & seen.any(-2).unsqueeze(-1)


def seen_by_others(scores: Tensor) -> Tensor:
    """The same where padded words still see themselves (XLNet): a word that nobody else sees is padding."""
    seen = scores.detach() > HIDDEN
    if scores.shape[-1] != scores.shape[-2] or scores.shape[-1] == 1:
        return seen
    itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    words = (seen & ~itself).any(-2)
    return seen & words.unsqueeze(-1) & words.unsqueeze(-2)


def _install(module: nn.Module, visit: ScoreVisit, valid_of: Callable[[Tensor], Tensor]) -> Undo:
    attend = module.forward

    def look(scores: Tensor) -> Tensor:
        valid = valid_of(scores)
        shown = torch.where(valid, scores, 0.0)
        placed = visit(shown, valid)
        return scores if placed is shown else torch.where(valid, placed, scores)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _AtSoftmax(look) as mode:
            output = attend(*args, **kwargs)
        if not mode.seen:
            raise ValueError(
                f"Scores: {type(module).__name__} took no softmax over the last dimension of its scores: load a Hugging Face model "
                'with attn_implementation="eager", and register_attention a function that finds the scores of a layer of yours'
            )
        return output

    return patch_forward(module, forward)


@register_attention(*(f"{_MODELS}{family}.modeling_{family}.{layer}" for family, layer in _HOLDERS.items()))
def through_softmax(module: nn.Module, visit: ScoreVisit) -> Undo:
    """Show the scores that the layer takes a softmax of; what its own mask has hidden is found by its size."""
    return _install(module, visit, seen_by)


@register_attention(_MODELS + "xlnet.modeling_xlnet.XLNetRelativeAttention")
def through_xlnet_softmax(module: nn.Module, visit: ScoreVisit) -> Undo:
    return _install(module, visit, seen_by_others)
