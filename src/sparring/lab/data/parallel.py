"""Parallel text for translation: two files whose lines correspond."""

from pathlib import Path

from .errors import DataError
from .files import Folder, as_folder
from .records import Texts

LOCATIONS = {
    "multi30k": ("multi30k/{split}.{language}", ("de", "en"), ("train", "val", "test_2016_flickr")),
    "iwslt15-en-vi": ("iwslt15-en-vi/{split}.{language}", ("en", "vi"), ("train", "train-1k", "tst2012", "tst2013")),
    "wmt16-en-de": (
        "wmt16-en-de/{split}.{language}",
        ("en", "de"),
        ("train.tok.clean.bpe.32000", "newstest2013.tok.bpe.32000", "newstest2014.tok.bpe.32000"),
    ),
    "iwslt14-de-en": (
        "iwslt14-de-en/iwslt14.tokenized.de-en/{split}.{language}",
        ("de", "en"),
        ("train", "valid", "test", "tmp/train", "tmp/valid", "tmp/test"),
    ),
}


def parallel(name: str, split: str = "train", data: Folder | str | Path | None = None, reverse: bool = False) -> Texts:
    """Sentence pairs, source first: `Texts.first` and `Texts.second`, no labels.

    Args:
        name: `"multi30k"` (De-En), `"iwslt15-en-vi"`, `"iwslt14-de-en"` or `"wmt16-en-de"`.
        split: As the files are called, such as `"train"`, `"val"`, `"test_2016_flickr"`, `"tst2013"`; `"tmp/valid"` is
            the text of IWSLT'14 before byte-pair encoding. WMT'16 comes cut into pieces (`@@ `), which are joined again.
        data: The data folder; None for SPARRING_DATA.
        reverse: Translate the other way.
    """
    if name not in LOCATIONS:
        raise DataError(f"no parallel text is called {name!r}; use one of {', '.join(LOCATIONS)}")
    pattern, languages, splits = LOCATIONS[name]
    if split not in splits:
        raise DataError(f"{name} has no split {split!r}; use one of {', '.join(splits)}")
    files = [pattern.format(split=split, language=language) for language in languages]
    found = read_pair(files[1], files[0], data) if reverse else read_pair(files[0], files[1], data)
    if "bpe.32000" not in split:
        return found
    first, second = ([text.replace("@@ ", "") for text in side or ()] for side in (found.first, found.second))
    return Texts(first, second, None)


def read_pair(source: str, target: str, data: Folder | str | Path | None = None) -> Texts:
    """Any two logical files whose lines correspond.

    Args:
        source: Logical name of the source text.
        target: Logical name of the target text.
        data: The data folder; None for SPARRING_DATA.
    """
    folder = as_folder(data)
    first, second = ([line.strip() for _, line in folder.lines(name)] for name in (source, target))
    if len(first) != len(second):
        raise DataError(f"has {len(second):,} lines, but {source} has {len(first):,}", target)
    if not first:
        raise DataError("is empty", source)
    for name, side in ((source, first), (target, second)):
        if not any(side):
            raise DataError("holds no word, only empty lines", name)
    return Texts(first, second, None)
