"""The real files, where they are: every reader finds the published counts. Skips, saying so, where the folder is absent."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets._twenty_newsgroups import (
    strip_newsgroup_footer,
    strip_newsgroup_header,
    strip_newsgroup_quoting,
)

from sparring.lab.data import DataError, Folder
from sparring.lab.data.agnews import ag_news
from sparring.lab.data.camvid import camvid
from sparring.lab.data.cifar import cifar10, cifar100
from sparring.lab.data.glue import glue
from sparring.lab.data.idx import mnist
from sparring.lab.data.imdb import electronics, imdb
from sparring.lab.data.language import ptb, wikitext2
from sparring.lab.data.newsgroups import without_footers, without_headers, without_quotes
from sparring.lab.data.nli import anli, snli, snli_plain
from sparring.lab.data.parallel import parallel
from sparring.lab.data.preparing import Preparation, spaces
from sparring.lab.data.sst import sst
from sparring.lab.data.vectors import vectors
from sparring.lab.data.vocabulary import Vocabulary


def counts(labels: np.ndarray | None) -> list[int]:
    assert labels is not None
    return np.bincount(labels).tolist()


def test_mnist(data_folder: Path) -> None:
    train, test = mnist("train", data_folder), mnist("test", data_folder)
    assert train.images.shape == (60_000, 28, 28)
    assert counts(train.labels) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(test.labels) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(train.images.mean() / 255 - 0.1307) < 1e-4  # the mean everyone normalises by


def test_cifar(data_folder: Path) -> None:
    train, test = cifar10("train", data_folder, batches=(1,)), cifar10("test", data_folder)
    assert train.images.shape == test.images.shape == (10_000, 3, 32, 32)
    assert counts(test.labels) == [1000] * 10
    assert test.classes[int(test.labels[0])] == "cat"
    fine, coarse = cifar100("test", data_folder), cifar100("test", data_folder, coarse=True)
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    assert counts(fine.labels) == [10] * 100
    assert counts(coarse.labels) == [50] * 20
    with pytest.raises(DataError, match="data_batch_2 is not under"):
        cifar10("train", data_folder)


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("cola", (8551, 1043, 1063)),
        ("rte", (2490, 277, 3000)),
        ("sts-b", (5749, 1500, 1379)),
        ("sst-2", (67_349, 872, 1821)),
        ("qnli", (None, 5463, None)),
    ],
)
def test_glue(task: str, sizes: tuple[int | None, ...], data_folder: Path) -> None:
    for split, size in zip(("train", "dev", "test"), sizes):
        if size is None:
            continue
        texts = glue(task, split, data_folder)
        assert len(texts) == size
        assert (texts.labels is None) == (split == "test")
        assert all(texts.first)


def test_sst(data_folder: Path) -> None:
    assert [len(sst(s, data_folder)) for s in ("train", "dev", "test")] == [8544, 1101, 2210]
    binary = [sst(s, data_folder, classes=2) for s in ("train", "dev", "test")]
    assert [len(texts) for texts in binary] == [6920, 872, 1821]  # table 1 of the attention paper
    assert len(sst("train", data_folder, phrases=True)) == 318_582
    tokens = Preparation(spaces).all(binary[0].first)
    assert round(np.mean([len(sentence) for sentence in tokens])) == 19
    assert len(Vocabulary.build(tokens)) > 13_000


@pytest.mark.long
def test_imdb(data_folder: Path) -> None:
    for split in ("train", "test"):
        assert counts(imdb(split, data_folder).labels) == [12_500, 12_500]
    assert len(imdb("train", data_folder, unlabelled=True)) == 50_000


def test_electronics_stands_in_for_elec(data_folder: Path) -> None:
    assert counts(electronics(data_folder).labels) == [1000, 1000]


def test_ag_news(data_folder: Path) -> None:
    test = ag_news("test", data_folder)
    assert counts(test.labels) == [1900] * 4
    assert len(test.keep("World", "Business")) == 3800  # table 1 of the attention paper
    assert not any("\\" in text for text in test.first)
    assert len(ag_news("sample", data_folder)) == 10_001


def test_nli(data_folder: Path) -> None:
    assert [len(snli_plain(s, data_folder)) for s in ("train", "dev", "test")] == [20_000, 9842, 9824]
    rows = sum(1 for _ in Folder(data_folder).lines("nli/snli_1.0/snli_1.0_dev.jsonl"))
    native, plain = snli("dev", data_folder), snli_plain("dev", data_folder)
    assert rows == 1289
    assert len(native) < rows  # those without an agreed label are left out
    assert native.labels is not None
    assert plain.labels is not None
    assert native.second is not None
    assert plain.second is not None
    bare = lambda text: "".join(c for c in text.lower() if c.isalnum())
    agreed = {(bare(a), bare(b)): y for a, b, y in zip(plain.first, plain.second, plain.labels.tolist())}
    labels = [agreed[bare(a), bare(b)] for a, b in zip(native.first, native.second)]
    assert native.labels.tolist() == labels  # two files from two sources
    assert [len(anli(i, "dev", data_folder)) for i in (1, 2, 3)] == [1000, 1000, 1198]


def test_language(data_folder: Path) -> None:
    tokens = [ptb(s, data_folder) for s in ("train", "valid", "test")]
    assert [len(part) for part in tokens] == [929_589, 73_760, 82_430]
    assert len(set(tokens[0])) == 10_000
    wiki = [wikitext2(s, data_folder) for s in ("train", "valid", "test")]
    assert [len(part) for part in wiki] == [2_088_628, 217_646, 245_569]
    assert len(Counter(wiki[0])) == 33_278


def test_parallel(data_folder: Path) -> None:
    sizes = [len(parallel("multi30k", s, data_folder)) for s in ("train", "val", "test_2016_flickr")]
    assert sizes == [29_000, 1014, 1000]
    assert [len(parallel("iwslt15-en-vi", s, data_folder)) for s in ("tst2012", "tst2013")] == [1553, 1268]
    assert [len(parallel("iwslt14-de-en", s, data_folder)) for s in ("valid", "test")] == [7283, 6750]
    here, there = parallel("multi30k", "val", data_folder), parallel("multi30k", "val", data_folder, reverse=True)
    assert (here.first, here.second) == (there.second, there.first)


def test_glove(data_folder: Path) -> None:
    some = vectors("glove/glove.6B.100d.20k.txt", data_folder, limit=3000)
    assert some.values.shape == (3000, 100)
    assert some.words[:2] == ["the", ","]
    unit = some.values / np.linalg.norm(some.values, axis=1, keepdims=True)
    row = {word: i for i, word in enumerate(some.words)}
    near = unit @ unit[row["king"]]
    assert near[row["queen"]] > near[row["company"]]


def test_camvid(data_folder: Path) -> None:
    pytest.importorskip("PIL", reason="png files need pillow")
    scenes = camvid("val", data_folder)
    assert scenes.images.shape == (12, 3, 360, 480)
    assert scenes.labels.shape == (12, 360, 480)
    assert scenes.labels.max() == 11


MESSAGES = (
    "From: a@b\nSubject: x\n\nYou wrote:\n> old\nNew.\n\n--\nA. Person\n",
    "Lines: 3\n\nIn article <1@2> c@d writes:\n| quoted\n\nText\nmore\n-----\nsig",
    "no header at all",
    "Head: 1\n\n",
    "Head: 1\n\n\n\nbody\n\n\n",
)


@pytest.mark.parametrize("text", MESSAGES)
def test_newsgroup_messages_are_stripped_as_scikit_learn_does(text: str) -> None:
    assert without_headers(text) == strip_newsgroup_header(text)
    assert without_quotes(text) == strip_newsgroup_quoting(text)
    assert without_footers(text) == strip_newsgroup_footer(text)
