"""Reading the user's own files: tables, images, splits, fingerprints."""

import bz2
import codecs
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sparring.lab.data.errors import DataError
from sparring.lab.data.own.pictures import in_folders, in_table, pixels
from sparring.lab.data.own.places import fingerprint, locate
from sparring.lab.data.own.splits import few, ranges, split
from sparring.lab.data.own.tables import read_table

CELL = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12).map(str.strip)


@given(st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=6), st.sampled_from(",;\t|"))
def test_what_pythons_csv_writes_is_read_back(tmp_path_factory, rows: list[list[str]], delimiter: str) -> None:
    rows = [row for row in rows if any(row)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(["first", "second", "third"])
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_text(text.getvalue(), newline="")
    if not rows:
        with pytest.raises(DataError, match="holds no row"):
            read_table(path)
        return
    table = read_table(path, delimiter=delimiter)
    assert table.columns == ("first", "second", "third")
    assert [list(row) for row in table.rows] == rows


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_are_found_by_their_marks(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\nçà,1\n".encode(encoding))
    table = read_table(tmp_path / "a.csv")
    assert table.columns == ("text", "label")
    assert table.rows == (("çà", "1"),)
    assert codecs.lookup(table.encoding) == codecs.lookup(encoding)


def test_json_lines_packed_files_and_tables_without_a_header(tmp_path: Path) -> None:
    lines = [{"text": 'good, "very" good', "label": 1}, {"label": None, "text": "bad"}]
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress("\n".join(map(json.dumps, lines)).encode()))
    table = read_table(tmp_path / "a.jsonl.bz2")
    assert table.rows == (('good, "very" good', "1"), ("bad", ""))
    (tmp_path / "b.tsv").write_text('3\tit is 5" long\n4\tfine\n')
    table = read_table(tmp_path / "b.tsv", header=False, quotes=False)
    assert table.columns == ("1", "2")
    assert table.rows[0] == ("3", 'it is 5" long')
    (tmp_path / "c.csv").write_text('a,b\n"two\nlines",1\n\nx,2\n')
    assert read_table(tmp_path / "c.csv").lines == (2, 5)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "a.csv: is empty"),
        ("a.csv", b"text,label\n", "holds no row"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", "line 2: byte 0xe9 is not utf-8 text; write --set encoding=cp1252"),
        ("a.csv", b"text,label\na,1,2\n", "line 2: has 3 cells, expected 2"),
        ("a.csv", b'text,label\n"a,1\n', "line 2: cannot be cut into cells"),
        ("a.csv", b"t\0e\0x\0t\0", "NUL"),
        ("a.xlsx", b"PK", "is not a table that can be read"),
        ("a.jsonl", b'{"text": 1}\n{"text": \n', "line 2: is not JSON"),
        ("a.jsonl", b'{"text": 1}\n{"text": ' + b"[" * 100_000 + b"\n", "line 2: is nested too deeply"),
        ("a.jsonl", b"[1]\n", "line 1: holds a list"),
        ("a.jsonl", b'{"text": [1]}\n', "'text' is a list"),
        ("a.jsonl", b'{"a": 1}\n{"b": 1}\n', "'a' stands in some objects only"),
        ("a.csv.xz", b"nonsense", "damaged"),
    ],
)
def test_files_that_are_not_tables(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"^[^\n]*$") as caught:
        read_table(tmp_path / name)
    assert words in str(caught.value)


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("review,stars,stars\nfine,3,4\n")
    table = read_table(tmp_path / "a.csv")
    with pytest.raises(
        DataError, match="has no column 'text'; it has 'review', 'stars', 'stars': write --set text=NAME"
    ):
        table.column("text", "text")
    with pytest.raises(DataError, match="has 2 columns 'stars'"):
        table.column("stars", "label")
    with pytest.raises(DataError, match="encoding='klingon' is not known"):
        read_table(tmp_path / "a.csv", encoding="klingon")
    with pytest.raises(DataError, match="delimiter='<>' does not fit"):
        read_table(tmp_path / "a.csv", delimiter="<>")


@given(
    st.lists(st.integers(0, 3), min_size=12, max_size=80),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.1, 0.2, 0.4]),
    st.integers(0, 5),
)
def test_splits_cut_every_class_and_lose_nothing(labels: list[int], validation: float, test: float, seed: int) -> None:
    counts = [labels.count(k) for k in set(labels)]
    if min(counts) < 2 + (validation > 0):
        with pytest.raises(DataError, match="splitting needs"):
            split(labels, validation, test, seed)
        return
    parts = split(labels, validation, test, seed)
    assert sorted(row for part in parts for row in part) == list(range(len(labels)))
    assert parts == split(labels, validation, test, seed)
    for kind in set(labels):
        held = [sum(labels[row] == kind for row in part) for part in parts]
        assert held[0] > 0
        assert held[2] > 0
        assert (held[1] > 0) == (validation > 0)
        assert abs(held[2] - test * labels.count(kind)) <= max(1, test * labels.count(kind))


def test_few_rows_keep_the_shares_and_ranges_name_them() -> None:
    labels = [0] * 90 + [1] * 10
    chosen = few(labels, 20, seed=3)
    assert len(set(chosen)) == 20
    assert sum(labels[row] for row in chosen) == 2
    assert few(labels, 0, 0) == few(labels, 1000, 0) == list(range(100))
    text = ranges(chosen)
    read = [n - 1 for run in text.split(",") for n in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)]
    assert read == chosen


def draw(path: Path, shade: int, size: tuple[int, int] = (6, 4), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 0)).save(path)


def test_images_come_as_they_are_stored(tmp_path: Path) -> None:
    draw(tmp_path / "cats" / "a.png", 10)
    draw(tmp_path / "dogs" / "deep" / "b.bmp", 200)
    (tmp_path / "dogs" / "notes.txt").write_text("not an image")
    found = in_folders(tmp_path)
    assert found.labels == ["cats", "dogs"]
    values = pixels(found.paths)
    assert values.shape == (2, 1, 4, 6)
    assert values[:, 0, 0, 0].tolist() == [10, 200]
    draw(tmp_path / "dogs" / "c.png", 50, mode="RGB")
    mixed = pixels(in_folders(tmp_path).paths)
    assert mixed.shape == (3, 3, 4, 6)
    assert mixed[:, :, 0, 0].tolist() == [[10] * 3, [50, 0, 0], [200] * 3]
    assert pixels(found.paths, size=8).shape == (2, 1, 8, 8)
    assert np.array_equal(pixels(found.paths, colour="rgb")[:, 1:2], values)


def test_images_in_a_table(tmp_path: Path) -> None:
    draw(tmp_path / "pictures" / "a.png", 10)
    (tmp_path / "list.csv").write_text("image,label\npictures/a.png,cat\n")
    found = in_table(read_table(tmp_path / "list.csv"), "image", "label")
    assert found.labels == ["cat"]
    assert pixels(found.paths).shape == (1, 1, 4, 6)
    (tmp_path / "list.csv").write_text("image,label\nelsewhere.png,cat\n")
    with pytest.raises(DataError, match=r"line 2: names the image 'elsewhere.png', which is not there"):
        in_table(read_table(tmp_path / "list.csv"), "image", "label")


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no folder"):
        in_folders(tmp_path)
    draw(tmp_path / "train" / "cats" / "a.png", 1)
    draw(tmp_path / "test" / "cats" / "a.png", 1)
    with pytest.raises(DataError, match="holds splits, not classes; write --set train="):
        in_folders(tmp_path)
    (tmp_path / "train" / "dogs").mkdir()
    with pytest.raises(DataError, match=r"dogs: the class folder holds no image"):
        in_folders(tmp_path / "train")
    draw(tmp_path / "b.png", 1, (5, 5))
    with pytest.raises(DataError, match=r"b.png: has 5 x 5 pixels, .*a.png 6 x 4; write --set size=4"):
        pixels([tmp_path / "train" / "cats" / "a.png", tmp_path / "b.png"])
    (tmp_path / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n nonsense")
    with pytest.raises(DataError, match="cannot be read as an image"):
        pixels([tmp_path / "c.png"])
    with pytest.raises(DataError, match="colour='blue' does not fit"):
        pixels([tmp_path / "b.png"], colour="blue")


def test_a_fingerprint_follows_content_and_names_not_places(tmp_path: Path) -> None:
    for home in ("one", "two"):
        draw(tmp_path / home / "cats" / "a.png", 10)
    first = fingerprint([tmp_path / "one"])
    assert first == fingerprint([tmp_path / "two"])
    (tmp_path / "two" / "cats" / "a.png").rename(tmp_path / "two" / "cats" / "b.png")
    assert fingerprint([tmp_path / "two"]) != first
    draw(tmp_path / "one" / "cats" / "a.png", 11)
    assert fingerprint([tmp_path / "one"]) != first
    assert locate("one", tmp_path) == tmp_path / "one"
    with pytest.raises(DataError, match="looked in"):
        locate("three", tmp_path)
