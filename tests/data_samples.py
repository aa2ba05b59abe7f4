"""One tiny file set in the native format of every reader, and ways to wrap them."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparring.lab.data.agnews import ag_news
from sparring.lab.data.babi.stories import babi, format_stories
from sparring.lab.data.babi.world import generate
from sparring.lab.data.camvid import camvid
from sparring.lab.data.cifar import cifar10, cifar100
from sparring.lab.data.cnn import cnn
from sparring.lab.data.files import Folder
from sparring.lab.data.glue import glue
from sparring.lab.data.idx import mnist
from sparring.lab.data.imdb import electronics, imdb
from sparring.lab.data.language import ptb, wikitext2
from sparring.lab.data.newsgroups import newsgroups
from sparring.lab.data.nli import anli, multinli, snli, snli_plain
from sparring.lab.data.parallel import parallel
from sparring.lab.data.sst import sst
from sparring.lab.data.vectors import vectors

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    ".gz": lambda raw: gzip.compress(raw, mtime=0),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@dataclass(frozen=True)
class Sample:
    """Files in a native format, the reader to open them with, and how many examples it must find."""

    files: dict[str, bytes]
    read: Callable[[Folder], Any]
    size: int

    @property
    def top(self) -> str:
        return next(iter(self.files)).split("/")[0]


def idx(array: np.ndarray) -> bytes:
    codes = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
    head = bytes([0, 0, codes[array.dtype.str[1:]], array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(array.dtype.newbyteorder(">")).tobytes()


def batch(labels: dict[str, list[int]], protocol: int = 2) -> bytes:
    count = len(next(iter(labels.values())))
    pixels = np.arange(count * 3072, dtype=np.uint32).astype(np.uint8).reshape(count, 3072)
    return pickle.dumps({"data": pixels, **labels}, protocol=protocol)


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def table(*rows: str) -> bytes:
    return "".join(row.replace("|", "\t") + "\n" for row in rows).encode()


def jsonl(*records: dict[str, str]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


REVIEW = "<review>\n<review_text>\nIt is {} &lt;3.\n\nReally.\n</review_text>\n</review>\n"
QUESTION = (
    "http://a\n\n@entity0 met @entity3 in May\n\n@placeholder was met\n\n@entity3\n\n@entity0:Ann\n@entity3:Bo: b\n"
)
NLI = ({"sentence1": "A", "sentence2": "B", "gold_label": label} for label in ("neutral", "-", "entailment"))
NLI_LINES = jsonl(*NLI)
GROUPS = "20news/20news-bydate-train"

SAMPLES: dict[str, Sample] = {
    "mnist": Sample(
        {
            "mnist/train-images-idx3-ubyte": idx(np.arange(5 * 28 * 28).astype(np.uint8).reshape(5, 28, 28)),
            "mnist/train-labels-idx1-ubyte": idx(np.array([3, 1, 4, 1, 5], dtype=np.uint8)),
        },
        lambda folder: mnist("train", folder),
        5,
    ),
    "cifar10": Sample(
        {
            "cifar10/cifar-10-batches-py/batches.meta": pickle.dumps({"label_names": list("abcdefghij")}, protocol=2),
            "cifar10/cifar-10-batches-py/test_batch": batch({"labels": [9, 0, 3]}),
        },
        lambda folder: cifar10("test", folder),
        3,
    ),
    "cifar100": Sample(
        {
            "cifar100/cifar-100-python/meta": pickle.dumps({b"fine_label_names": [b"a", b"b"]}, protocol=4),
            "cifar100/cifar-100-python/train": batch({"fine_labels": [1, 0], "coarse_labels": [0, 0]}, 4),
        },
        lambda folder: cifar100("train", folder),
        2,
    ),
    "cola": Sample(
        {"glue/CoLA/train.tsv": table("gj04|1||Fine it is.", "gj04|0|*|Is it fine not.")},
        lambda folder: glue("cola", "train", folder),
        2,
    ),
    "cola-test": Sample(
        {"glue/CoLA/test.tsv": table("index|sentence", "0|Fine.")}, lambda folder: glue("cola", "test", folder), 1
    ),
    "rte": Sample(
        {"glue/RTE/dev.tsv": table("index|sentence1|sentence2|label", '0|A "b|c|entailment', "1|d|e|not_entailment")},
        lambda folder: glue("rte", "dev", folder),
        2,
    ),
    "qqp": Sample(
        {
            "glue/QQP/train.tsv": table(
                "id|qid1|qid2|question1|question2|is_duplicate", "0|1|2|a|b|1", "1|3|4|cut short", "2|5|6|c|d|0"
            )
        },
        lambda folder: glue("qqp", "train", folder),
        2,
    ),
    "mnli": Sample(
        {
            "glue/MNLI/dev_mismatched.tsv": table(
                "index|genre|sentence1|sentence2|label1|gold_label", "0|x|a|b|neutral|contradiction"
            )
        },
        lambda folder: glue("mnli", "dev_mismatched", folder),
        1,
    ),
    "sts-b": Sample(
        {"glue/STS-B/dev.tsv": table("index|genre|sentence1|sentence2|score", "0|x|a|b|4.25", "1|x|c|d|0.000")},
        lambda folder: glue("sts-b", "dev", folder),
        2,
    ),
    "mrpc": Sample(
        {
            "glue/MRPC/msr_paraphrase_test.txt": b"\xef\xbb\xbf"
            + table("Quality|#1 ID|#2 ID|#1 String|#2 String", "1|7|8|a|b", "0|9|10|c|d").replace(b"\n", b"\r\n")
        },
        lambda folder: glue("mrpc", "test", folder),
        2,
    ),
    "sst": Sample(
        {"sst/trees/dev.txt": b"(3 (2 It) (4 (2 just) (4 works)))\n(0 (1 Bad) (2 -LRB-))\n"},
        lambda folder: sst("dev", folder),
        2,
    ),
    "imdb": Sample(
        {
            "imdb/aclImdb/test/neg/10_2.txt": b"Bad.<br /><br />Very bad.",
            "imdb/aclImdb/test/neg/9_1.txt": "Schlecht \u2013 bad.".encode(),
            "imdb/aclImdb/test/pos/0_10.txt": b"Good.",
            "imdb/aclImdb/test/urls_pos.txt": b"http://somewhere\n",
        },
        lambda folder: imdb("test", folder),
        3,
    ),
    "electronics": Sample(
        {
            f"elec/electronics/{kind}.review": ("<reviews>\n" + 2 * REVIEW.format(kind) + "</reviews>\n").encode()
            for kind in ("negative", "positive")
        },
        electronics,
        4,
    ),
    "newsgroups": Sample(
        {
            f"{GROUPS}/rec.sport.baseball/100": b"From: a\nSubject: bat\n\nBat \xe9.\n",
            f"{GROUPS}/rec.sport.hockey/7": b"From: b\nSubject: puck\n\nX wrote:\n> what\nPuck.\n\n--\nb\n",
        },
        lambda folder: newsgroups("train", folder),
        2,
    ),
    "ag_news": Sample(
        {
            "ag_news/ag_news_csv/test.csv": b'"3","Oil ""up"", again","At  #36;50\\a barrel"\n'
            b'"1","Line\nbreak","A, ""b"" and c"\n'
        },
        lambda folder: ag_news("test", folder),
        2,
    ),
    "babi": Sample(
        {"babi/tasks_1-20_v1-2/en-10k/qa2_two-supporting-facts_test.txt": format_stories(generate(2, 10)).encode()},
        lambda folder: babi(2, "test", folder),
        10,
    ),
    "cnn": Sample(
        {f"cnn/cnn/questions/test/{i}.question": QUESTION.encode() for i in range(2)},
        lambda folder: list(cnn("test", folder)),
        2,
    ),
    "snli": Sample({"nli/snli_1.0/snli_1.0_dev.jsonl": NLI_LINES}, lambda folder: snli("dev", folder), 2),
    "multinli": Sample(
        {"nli/multinli_1.0/multinli_1.0_dev_matched.jsonl": NLI_LINES}, lambda folder: multinli("matched", folder), 2
    ),
    "anli": Sample(
        {"nli/anli_v1.0/R2/dev.jsonl": jsonl({"uid": "1", "context": "A", "hypothesis": "B", "label": "c"})},
        lambda folder: anli(2, "dev", folder),
        1,
    ),
    "snli_plain": Sample({"nli/snli/dev.txt": table("a|b|0", "c|d|2")}, lambda folder: snli_plain("dev", folder), 2),
    "ptb": Sample({"ptb/ptb.valid.txt": b" a <unk> N \n b \n"}, lambda folder: ptb("valid", folder), 6),
    "wikitext-2": Sample({"wikitext-2/test.txt": b" \n = A = \n"}, lambda folder: wikitext2("test", folder), 5),
    "multi30k": Sample(
        {"multi30k/val.de": "Ein Mädchen.\nZwei.\n".encode(), "multi30k/val.en": b"A girl.\nTwo.\n"},
        lambda folder: parallel("multi30k", "val", folder),
        2,
    ),
    "glove": Sample(
        {"glove/tiny.txt": b"the 0.5 -1 2e-3\n. . . 1 2 3\n"},
        lambda folder: vectors("glove/tiny.txt", folder).words,
        2,
    ),
    "fasttext": Sample(
        {"fasttext/tiny.vec": b"2 3\nthe 0.5 -1 2 \nof 1 2 3 \n"},
        lambda folder: vectors("fasttext/tiny.vec", folder).words,
        2,
    ),
    "camvid": Sample(
        {
            "camvid/CamVid/val.txt": b"/SegNet/CamVid/val/a.png /SegNet/CamVid/valannot/a.png\n",
            "camvid/CamVid/val/a.png": png(np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)),
            "camvid/CamVid/valannot/a.png": png((np.arange(24) % 12).astype(np.uint8).reshape(4, 6)),
        },
        lambda folder: camvid("val", folder),
        1,
    ),
}


def write(root: Path, files: dict[str, bytes], suffix: str = "") -> Folder:
    """The files on disk, each under a wrapper."""
    for name, raw in files.items():
        path = root / (name + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PACK[suffix](raw))
    return Folder(root)


def tar_of(files: dict[str, bytes], suffix: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, raw in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return PACK[suffix](out.getvalue())


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            archive.writestr(zipfile.ZipInfo(name), raw, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def archive(sample: Sample, kind: str) -> tuple[str, bytes]:
    """`(path below the data folder, bytes)` of one archive that holds the whole sample."""
    inside = {name.split("/", 1)[1]: raw for name, raw in sample.files.items()}
    raw = zip_of(inside) if kind == ".zip" else tar_of(inside, kind.removeprefix(".tar"))
    return f"{sample.top}/everything{kind}", raw
