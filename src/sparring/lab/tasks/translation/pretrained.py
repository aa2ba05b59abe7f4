"""Any encoder-decoder that `transformers` loads, in the place of our own translator: `--set encoder=FOLDER_OR_NAME`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...data.batches import pad
from ...data.records import Texts
from ...errors import LabError, first_line
from ..glue.pretrained import set_dropout, tokenizer
from .pairs import IGNORED, Pairs


@dataclass(frozen=True)
class PretrainedPieces:
    """The pieces of a pretrained tokenizer."""

    table: Any

    def __len__(self) -> int:
        return len(self.table)

    def decode(self, numbers: list[int]) -> str:
        """The text of some pieces, special ones left out."""
        return str(self.table.decode(numbers, skip_special_tokens=True)).strip()


def configuration(encoder: str) -> Any:
    """The configuration of an encoder-decoder, which must say how a translation starts."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(encoder)
    except (OSError, ValueError) as error:
        raise LabError(f"encoder={encoder}: no model can be loaded from it ({first_line(error)})") from error
    if not config.is_encoder_decoder or getattr(config, "decoder_start_token_id", None) is None:
        raise LabError(f"encoder={encoder} is no encoder-decoder; translation needs one, such as Marian, T5 or BART")
    return config


def encoded(texts: Texts, encoder: str, length: int = 0, beam: int = 1) -> Pairs:
    """Pairs as the pretrained model takes them; those longer than `length` pieces are left out (0: none are)."""
    assert texts.second is not None
    table, start = tokenizer(encoder), configuration(encoder).decoder_start_token_id
    sources = table(texts.first)["input_ids"]
    targets = table(text_target=texts.second)["input_ids"]
    kept = [
        k for k, (a, b) in enumerate(zip(sources, targets, strict=True)) if not length or max(len(a), len(b)) <= length
    ]
    if not kept:
        raise LabError(f"length={length} leaves no sentence pair; the shortest has {min(map(len, sources))} pieces")
    source, there = pad([sources[k] for k in kept], table.pad_token_id)
    read, _ = pad([[start, *targets[k][:-1]] for k in kept], table.pad_token_id)
    wanted, valid = pad([targets[k] for k in kept])
    inputs = {
        "input_ids": source,
        "attention_mask": there.long(),
        "decoder_input_ids": read,
        "decoder_attention_mask": valid.long(),
    }
    lengths = torch.tensor([max(len(sources[k]), len(targets[k])) for k in kept])
    references = [texts.second[k] for k in kept]
    labels = wanted.masked_fill(~valid, IGNORED)
    return Pairs(inputs, labels, trimmed, lengths, references, beam, PretrainedPieces(table))


def trimmed(inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch without the columns that are padding in every row, each side for itself."""
    longest = {name: int(inputs[f"{name}attention_mask"].sum(-1).max()) for name in ("", "decoder_")}
    cut = {name: numbers[:, : longest["decoder_" * name.startswith("decoder_")]] for name, numbers in inputs.items()}
    return cut, targets[:, : longest["decoder_"]]


def build(encoder: str, dropout: float) -> nn.Module:
    """The pretrained model."""
    from transformers import AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = configuration(encoder)
    set_dropout(config, dropout)
    try:
        model: nn.Module = AutoModelForSeq2SeqLM.from_pretrained(encoder, config=config, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise LabError(f"encoder={encoder}: no model can be loaded from it ({first_line(error)})") from error
    return model


def words_of(model: Any) -> str:
    """The tables of words of both sides, which may be one: a pattern for `sp.Output`."""
    tables = {model.get_encoder().get_input_embeddings(), model.get_decoder().get_input_embeddings()}
    return "|".join(name for name, module in model.named_modules() if module in tables)


def translate(model: Any, inputs: dict[str, Tensor], beam: int, penalty: float) -> list[list[int]]:
    """The model's own beam search."""
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    longest = 2 * source["input_ids"].shape[1] + 10
    found = model.generate(
        **source, num_beams=beam, length_penalty=penalty, max_new_tokens=longest, max_length=None, do_sample=False
    )
    return [row.tolist() for row in found]
