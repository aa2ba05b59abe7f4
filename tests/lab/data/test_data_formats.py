"""Every reader, on tiny files in its native format: plain, wrapped, in archives, cut short and scrambled."""

import os
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_samples import PACK, SAMPLES, archive, png, write
from sparring.lab.data import DataError, Folder, MissingData
from sparring.lab.data.agnews import ag_news, tidied
from sparring.lab.data.cnn import cnn
from sparring.lab.data.glue import glue
from sparring.lab.data.imdb import electronics, imdb
from sparring.lab.data.nli import snli
from sparring.lab.data.sst import sst

WAYS = [*PACK, ".tar", ".tar.gz", ".tar.xz", ".tar.bz2", ".zip"]


def lay(root: Path, name: str, way: str) -> Folder:
    sample = SAMPLES[name]
    if way in PACK:
        return write(root, sample.files, way)
    path, raw = archive(sample, way)
    (root / path).parent.mkdir(parents=True)
    (root / path).write_bytes(raw)
    return Folder(root)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_reader_finds_the_same_examples_however_the_files_are_packed(name: str, way: str, tmp_path: Path) -> None:
    assert len(SAMPLES[name].read(lay(tmp_path, name, way))) == SAMPLES[name].size


@pytest.mark.parametrize("name", SAMPLES)
def test_a_missing_file_says_where_it_belongs(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"put that (file|folder) there.*--data DIR or SPARRING_DATA") as caught:
        SAMPLES[name].read(Folder(tmp_path))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("way", ["", ".gz", ".tar.xz", ".zip"])
@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=int(os.environ.get("SPARRING_FUZZ", "6")), derandomize="SPARRING_FUZZ" not in os.environ)
@given(data=st.data())
def test_files_cut_short_or_scrambled_give_a_data_error_or_a_reading(name: str, way: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = lay(Path(where), name, way)
        victims = sorted(path for path in Path(where).rglob("*") if path.is_file())
        victim = data.draw(st.sampled_from(victims))
        raw = bytearray(victim.read_bytes())
        if data.draw(st.booleans()):
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        else:
            for _ in range(data.draw(st.integers(1, 4))):
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        victim.write_bytes(bytes(raw))
        with suppress(DataError):
            SAMPLES[name].read(folder)


@pytest.mark.parametrize("way", [way for way in WAYS if way])
@pytest.mark.parametrize("name", ["mnist", "sst", "imdb"])
def test_a_packed_file_cut_anywhere_is_never_read(name: str, way: str, tmp_path: Path) -> None:
    folder = lay(tmp_path, name, way)
    for victim in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        if "urls" in victim.name:
            continue  # not a review: nobody reads it
        raw = victim.read_bytes()
        # A tar ends in blocks of nothing; one lost zero block more or less loses no data.
        end = len(raw) if way != ".tar" else len(raw.rstrip(b"\0"))
        for cut in np.linspace(0, end - 1, 23).astype(int):
            victim.write_bytes(raw[:cut])
            with pytest.raises(DataError):
                SAMPLES[name].read(folder)
        victim.write_bytes(raw)


@pytest.mark.parametrize(
    ("name", "file", "raw", "message"),
    [
        ("sst", "sst/trees/dev.txt", b"(3 (2 a) (2 b))\n(3 (2 a) (2 b)\n", "line 2: is a broken tree"),
        ("sst", "sst/trees/dev.txt", b"(3 (2 a) (7 b))\n", "line 1: has the label '7'"),
        ("sst", "sst/trees/dev.txt", b"(3 (2 a)) b\n", "line 1: has 'b' outside"),
        ("sst", "sst/trees/dev.txt", b"(3 (2 ))\n", "line 1: has a bracket without words"),
        ("ag_news", "ag_news/ag_news_csv/test.csv", b'"1","a","b"\n"2","a\n\nb","c', "line 2: is not valid csv"),
        ("ag_news", "ag_news/ag_news_csv/test.csv", b'"1","a"\n', "line 1: has 2 fields"),
        ("ag_news", "ag_news/ag_news_csv/test.csv", b'"5","a","b"\n', "line 1: has the label '5'"),
        ("cola", "glue/CoLA/train.tsv", b"a\t1\t\tfine\nb\t1\tcut\n", "line 2: has 3 columns, expected 4"),
        ("rte", "glue/RTE/dev.tsv", b"index\tsentence1\n", "line 1: has no column 'sentence2'"),
        ("mnli", "glue/MNLI/dev_mismatched.tsv", b"sentence1\tsentence2\tgold_label\na\tb\thidden\n", "label 'hidden'"),
        (
            "qqp",
            "glue/QQP/train.tsv",
            b"question1\tquestion2\tis_duplicate\n" + b"cut\n" * 11,
            "line 12: has 1 columns, the header has 3",
        ),
        ("sts-b", "glue/STS-B/dev.tsv", b"sentence1\tsentence2\tscore\na\tb\tnan\n", "line 2: has the score 'nan'"),
        ("snli", "nli/snli_1.0/snli_1.0_dev.jsonl", b'{"sentence1": "a"}\n', "line 1: is not an object with"),
        ("snli", "nli/snli_1.0/snli_1.0_dev.jsonl", b"[" * 100_000 + b"\n", "line 1: is not json"),
        ("glove", "glove/tiny.txt", b"a 1 2\nb 1 2\nc 1\n", "line 3: has 1 numbers, the lines before it have 2"),
        ("glove", "glove/tiny.txt", b"a 1 2\nb 1 x\n", "line 2: has something that is not a number"),
        ("glove", "glove/tiny.txt", b"a 1 2\nb 1 inf\n", "line 2: has a number that is not finite"),
        ("fasttext", "fasttext/tiny.vec", b"3 2\na 1 2\nb 1 2\n", "cut short: holds 2 vectors, its header promises 3"),
        (
            "babi",
            "babi/tasks_1-20_v1-2/en-10k/qa2_two-supporting-facts_test.txt",
            b"1 A.\n3 B.\n",
            "line 2: is numbered",
        ),
        ("multi30k", "multi30k/val.en", b"A girl.\n", "multi30k/val.en: has 1 lines, but multi30k/val.de has 2"),
        ("ptb", "ptb/ptb.valid.txt", b"a\n\xff\xfe\n", "line 2: is not utf-8 text"),
        ("cnn", "cnn/cnn/questions/test/0.question", b"http://a\n\nb\n", "has 2 parts"),
        ("camvid", "camvid/CamVid/val/a.png", b"\x89PNG\r\n\x1a\nno picture", "val/a.png: is not a whole png"),
        ("camvid", "camvid/CamVid/val/a.png", png(np.zeros((5, 6, 3), np.uint8)), r"a.png: has the size \(4, 6\), its"),
        ("camvid", "camvid/CamVid/valannot/a.png", png(np.full((4, 6), 12, np.uint8)), "holds the class 12, expected"),
        (
            "camvid",
            "camvid/CamVid/val.txt",
            b"/SegNet/CamVid/val/b.png /SegNet/CamVid/valannot/a.png\n",
            "line 1: names",
        ),
        (
            "cifar100",
            "cifar100/cifar-100-python/meta",
            pickle.dumps({"fine_label_names": ["one"]}),
            "train: holds a label 1, expected 0 to 0",
        ),
        ("mnist", "mnist/train-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x02\x01\x01", r"labels of shape \(2,\) for 5"),
    ],
)
def test_a_broken_file_is_named_with_its_line(name: str, file: str, raw: bytes, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {**SAMPLES[name].files, file: raw})
    with pytest.raises(DataError, match=message):
        SAMPLES[name].read(folder)


def test_texts_come_out_as_they_were_meant(tmp_path: Path) -> None:
    for name in ("ag_news", "imdb", "electronics", "snli", "mrpc", "rte"):
        write(tmp_path, SAMPLES[name].files)
    news = ag_news("test", tmp_path)
    assert news.first == ['Oil "up", again At $50 a barrel', 'Line break A, "b" and c']
    assert news.labels is not None
    assert [news.classes[i] for i in news.labels] == ["Business", "World"]
    assert news.keep("World", "Business").labels.tolist() == [1, 0]  # type: ignore[union-attr]
    raw = ag_news("test", tmp_path, title=False, tidy=False).first
    assert raw == ["At  #36;50\\a barrel", 'A, "b" and c']
    assert imdb("test", tmp_path).first == ["Schlecht – bad.", "Bad. Very bad.", "Good."]
    assert imdb("test", tmp_path, markup=True).first[1] == "Bad.<br /><br />Very bad."
    assert electronics(tmp_path).first[0] == "It is negative <3. Really."
    assert snli("dev", tmp_path).labels.tolist() == [1, 0]  # type: ignore[union-attr]
    assert glue("rte", "dev", tmp_path).first == ['A "b', "d"]  # a lone quote is a character here
    assert glue("mrpc", "test", tmp_path).second == ["b", "d"]
    assert glue("qqp", "train", write(tmp_path, SAMPLES["qqp"].files)).labels.tolist() == [1, 0]
    assert glue("mnli", "dev_mismatched", write(tmp_path, SAMPLES["mnli"].files)).labels.tolist() == [2]
    with pytest.raises(DataError, match="mnli has no split 'dev'; use one of train, dev_matched"):
        glue("mnli", "dev", tmp_path)


def test_backslashes_of_ag_news_are_line_ends() -> None:
    assert tidied(r"one\two \not three\n Four\\") == "one two not three Four"
    assert tidied("AT&amp;T #39;s &lt;b&gt;") == "AT&T's <b>"


def test_cnn_entities_are_split_at_the_first_colon(tmp_path: Path) -> None:
    item = next(iter(cnn("test", write(tmp_path, SAMPLES["cnn"].files))))
    assert item.entities == {"@entity0": "Ann", "@entity3": "Bo: b"}
    assert item.candidates() == ("@entity0", "@entity3")
    assert item.answer == "@entity3"


WORDS = st.text(st.characters(codec="utf-8", exclude_characters=" ()\n\r", exclude_categories=["Zs", "Cc"]), min_size=1)


def trees(depth: int = 4) -> st.SearchStrategy[str]:
    leaf = st.builds("({} {})".format, st.integers(0, 4), WORDS)
    return st.recursive(leaf, lambda t: st.builds("({} {} {})".format, st.integers(0, 4), t, t), max_leaves=2**depth)


@given(st.lists(trees(), min_size=1, max_size=4))
def test_trees_give_back_their_words_and_every_phrase(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = write(Path(where), {"sst/trees/dev.txt": "\n".join(lines).encode()})
        whole, phrases = sst("dev", folder), sst("dev", folder, phrases=True)
        both = sst("dev", folder, classes=2)
    spelled = [[part.rstrip(")") for part in line.split(" ") if not part.startswith("(")] for line in lines]
    assert [text.split(" ") for text in whole.first] == spelled
    assert len(phrases) == sum(line.count("(") for line in lines)
    assert whole.labels is not None
    assert len(both) == int((whole.labels != 2).sum())
