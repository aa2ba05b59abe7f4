"""Watching the attention scores of one layer costs the others nothing: they keep their own kernel, and no scores are held there."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sparring as sp

transformers = pytest.importorskip("transformers")
HEADS, T = 4, 24


class Seen(TorchDispatchMode):
    """Counts the attention kernels that run, and the tensors with a number for each head and pair of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.pairs = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if "scaled_dot_product" in name:
            self.kernels["backward" if "backward" in name else "forward"] += 1
        self.pairs += sum(isinstance(x, Tensor) and x.shape[1:] == (HEADS, T, T) for x in tree_leaves(found))
        return found


def model_of(family: str, layers: int) -> nn.Module:
    size = {"hidden_size": 32, "num_attention_heads": HEADS, "intermediate_size": 64, "vocab_size": 50}
    torch.manual_seed(0)
    if family == "bert":
        config = transformers.BertConfig(num_hidden_layers=layers, attn_implementation="sdpa", **size)
        model: nn.Module = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=layers, attn_implementation="sdpa", num_key_value_heads=2, pad_token_id=0, **size
        )
        model = transformers.LlamaForSequenceClassification(config)
    return model.eval()


SITE = {"bert": "**.layer.1.**", "llama": "**.layers.1.**"}


def step(family: str, layers: int, padded: bool = False) -> Seen:
    """What a training step of attention AT at the second layer runs."""
    model = model_of(family, layers)
    inputs = {"input_ids": torch.randint(1, 50, (3, T))}
    if padded:
        inputs["attention_mask"] = torch.ones(3, T, dtype=torch.long)
        inputs["attention_mask"][0, T // 2 :] = 0
    objective = sp.recipes.attention_at(model, sp.cross_entropy, SITE[family], replay=False)
    with Seen() as seen:
        objective(inputs, torch.tensor([0, 1, 0])).backward()
    return seen


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("padded", [False, True])
def test_other_layers_keep_their_kernel_and_hold_no_scores(family: str, padded: bool) -> None:
    few, many = step(family, 2, padded), step(family, 6, padded)
    # Three passes forward (clean, look, perturbed), and backward through each of the four layers more in each of them.
    assert many.kernels["forward"] - few.kernels["forward"] == 4 * 3
    assert many.kernels["backward"] - few.kernels["backward"] == 4 * 3
    assert few.pairs > 0, "the watched layer shows its scores"
    assert many.pairs == few.pairs, "a layer that nobody asked for holds scores"
