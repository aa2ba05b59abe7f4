"""Which vocabulary a model was trained with: a number that goes with its weights.

>>> int(digest(["a", "b"])) == int(digest(["a", "b"])), int(digest(["a", "b"])) == int(digest(["b", "a"]))
(True, False)
"""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ...errors import LabError


def digest(words: Iterable[str]) -> Tensor:
    """A number that differs when the words or their order differ."""
    return torch.tensor(int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:7]))


def mark(model: nn.Module, words: Iterable[str]) -> None:
    """Let a model's weights carry the digest of its vocabulary."""
    model.register_buffer("vocabulary", digest(words))


def check_vocabulary(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that were trained with other words: the numbers of the words would mean something else."""
    mine, theirs = model.state_dict()["vocabulary"], weights.get("vocabulary")
    if theirs is None or int(mine) != int(theirs):
        raise LabError(
            "the vocabulary of this data is not the one that the first stage was trained with; "
            "give the same --data and vocabulary settings, or another --out to train that stage anew"
        )
