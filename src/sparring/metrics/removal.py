"""What a prediction loses when one word is taken out of a sentence."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..passes.one import call
from ..penalties import full_precision
from ..sites.site import Slot
from ..sites.words import Words


@torch.no_grad()
def without_each_word(
    model: nn.Module, inputs: Any, words: Words, chosen: Slot, extract: Callable[[Any], Tensor], logits: Tensor
) -> Tensor:
    """(B, T): total variation between the prediction and the one without word t; 0 on padding.

    The words after t move up by one and padding comes in at the end. Of inputs given by name everything as long as the
    sentence moves along (an attention mask, token types); of inputs given by position only the words do, since the other
    may be a second text.

    Args:
        model: as in `explain`.
        inputs: a batch as the model takes it, word ids among it.
        words: the site of the embedding.
        chosen: the lookup whose words are taken out.
        extract: from what the model returns to its logits.
        logits: of the whole sentences (B, C).

    Paper: Jain and Wallace 2019, Algorithm 2.
    """
    ids = chosen.words
    assert ids is not None
    pad = words.pad
    if pad is None:
        name = chosen.name.partition("#")[0]
        pad = getattr(words.modules(model).get(name), "padding_idx", None)
    if pad is None:
        raise ValueError("leave_one_out needs a word to fill up with; name its id: at=Words(glob, pad=0)")
    leaves, form = tree_flatten(inputs)
    place = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and torch.equal(leaf, ids)), None)
    if place is None:
        raise ValueError(
            "leave_one_out takes words out of the inputs, but none of them holds the ids that the embedding saw"
        )
    along = [
        i
        for i, x in enumerate(leaves)
        if isinstance(x, Tensor) and x.shape == ids.shape and isinstance(inputs, Mapping)
    ]
    whole, found = full_precision(logits).softmax(-1), []
    for t in range(ids.shape[1]):
        changed = list(leaves)
        for i in {place, *along}:
            fill = torch.full_like(leaves[i][:, :1], pad if i == place else 0)
            changed[i] = torch.cat([leaves[i][:, :t], leaves[i][:, t + 1 :], fill], 1)
        output = call(model, tree_unflatten(changed, form))
        found.append((full_precision(extract(output)).softmax(-1) - whole).abs().sum(-1) / 2)
    return torch.stack(found, 1).masked_fill(ids == pad, 0.0)
