"""Any encoder-decoder that `transformers` loads, in the place of our own translator: `--set encoder=FOLDER_OR_NAME`."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...data.batches import pad
from ...data.records import Texts
from ...errors import LabError
from ..encoders import check_table, load_weights, loading, refuse_unfilled, set_dropout, tokenizer
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
    """The configuration of an encoder-decoder, which must say how a translation starts and ends."""
    from transformers import AutoConfig

    with loading(encoder, "model"):
        config = AutoConfig.from_pretrained(encoder)
    if not config.is_encoder_decoder:
        raise LabError(f"encoder={encoder} is no encoder-decoder; translation needs one, such as Marian, T5 or BART")
    for name, does in (("decoder_start_token_id", "starts"), ("eos_token_id", "ends")):
        if getattr(config, name, None) is None:
            raise LabError(f"encoder={encoder} does not say how a translation {does}; set {name} in its config.json")
    return config


def encoded(texts: Texts, encoder: str, length: int = 0, beam: int = 1) -> Pairs:
    """Pairs as the pretrained model takes them; those longer than `length` pieces are left out (0: none are)."""
    assert texts.second is not None
    table, config = tokenizer(encoder), configuration(encoder)
    start, end = config.decoder_start_token_id, config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    sources = table(texts.first)["input_ids"]
    # A model learns to stop only where the end is a target. Not every tokenizer writes it; mBART's has the language behind it.
    targets = [row if end in row[-2:] else [*row, end] for row in table(text_target=texts.second)["input_ids"]]
    kept = [
        k for k, (a, b) in enumerate(zip(sources, targets, strict=True)) if not length or max(len(a), len(b)) <= length
    ]
    if not kept:
        shortest = min(max(len(a), len(b)) for a, b in zip(sources, targets, strict=True))
        raise LabError(f"length={length} leaves no sentence pair; the shortest needs {shortest}")
    longest, limit = max(len(row) for k in kept for row in (sources[k], targets[k])), positions(config)
    if longest > limit:
        raise LabError(
            f"length={length} keeps a sentence of {longest} pieces, but encoder={encoder} has {limit} positions; use "
            f"length={limit} for the training pairs, and a model with more positions where one to be tested is longer"
        )
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


def positions(config: Any) -> int:
    """How many pieces a model can read; any number where places are relative, as in T5."""
    return getattr(config, "max_position_embeddings", None) or sys.maxsize


def trimmed(inputs: dict[str, Tensor], targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A batch without the columns that are padding in every row, each side for itself."""
    longest = {name: int(inputs[f"{name}attention_mask"].sum(-1).max()) for name in ("", "decoder_")}
    cut = {name: numbers[:, : longest["decoder_" * name.startswith("decoder_")]] for name, numbers in inputs.items()}
    return cut, targets[:, : longest["decoder_"]]


def build(encoder: str, dropout: float) -> nn.Module:
    """The pretrained model; all of it must come from its files."""
    from transformers import AutoModelForSeq2SeqLM

    config = configuration(encoder)
    set_dropout(config, dropout)
    model, unfilled = load_weights(AutoModelForSeq2SeqLM, encoder, config)
    refuse_unfilled(encoder, unfilled)
    check_table(encoder, model)
    return model


def words_of(model: Any) -> str:
    """The tables of words of both sides, which may be one: a pattern for `sp.Output`."""
    tables = {model.get_encoder().get_input_embeddings(), model.get_decoder().get_input_embeddings()}
    return "|".join(name for name, module in model.named_modules() if module in tables)


def translate(model: Any, inputs: dict[str, Tensor], beam: int, penalty: float) -> list[list[int]]:
    """The model's own beam search. Each sentence has a limit of its own, whatever it shares a batch with."""
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    limits = (2 * source["attention_mask"].sum(-1) + 10).clamp(max=positions(model.config))

    def at_limit(written: Tensor, scores: Any) -> Tensor:
        """Which rows are full; those of a sentence's beams stand together, and each began with a start."""
        return written.shape[1] > limits.repeat_interleave(len(written) // len(limits))

    found = model.generate(
        **source,
        num_beams=beam,
        length_penalty=penalty,
        max_new_tokens=int(limits.max()),
        max_length=None,
        do_sample=False,
        stopping_criteria=[at_limit],
    )
    return [row[: limit + 1].tolist() for row, limit in zip(found, limits.tolist(), strict=True)]
