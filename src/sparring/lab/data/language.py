"""Text for language modelling: Penn Treebank (Mikolov's version) and WikiText-2."""

from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder

EOS = "<eos>"
SPLITS = ("train", "valid", "test")


def ptb(split: str = "train", data: Folder | str | Path | None = None) -> list[str]:
    """Penn Treebank: 929,589 (train), 73,760 (valid) or 82,430 (test) tokens, `<eos>` after every line.

    Args:
        split: `"train"`, `"valid"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    return _tokens(f"ptb/ptb.{_known('ptb', split)}.txt", data)


def wikitext2(split: str = "train", data: Folder | str | Path | None = None) -> list[str]:
    """WikiText-2: 2,088,628 (train), 217,646 (valid) or 245,569 (test) tokens, `<eos>` after every line.

    Args:
        split: `"train"`, `"valid"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
    """
    return _tokens(f"wikitext-2/{_known('wikitext2', split)}.txt", data)


def _known(name: str, split: str) -> str:
    if split not in SPLITS:
        raise DataError(f"{name} has no split {split!r}; use one of {', '.join(SPLITS)}")
    return split


def _tokens(name: str, data: Folder | str | Path | None) -> list[str]:
    tokens: list[str] = []
    for _, line in as_folder(data).lines(name):
        tokens += line.split()
        tokens.append(EOS)
    if not tokens:
        raise DataError("is empty", name)
    if tokens.count(EOS) == len(tokens):
        raise DataError("holds no word, only empty lines", name)
    return tokens
