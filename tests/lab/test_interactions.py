"""Rating logs and the strong-generalisation split: small files in the native formats, MovieLens where it is present."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from sparring.lab.data.interactions import implicit_feedback, read_interactions, strong_split
from sparring.lab.data.ratings.formats import Ratings
from sparring.lab.data.ratings.ratings import read_ratings

LOG = [(1, 10, 5.0), (1, 20, 3.0), (2, 10, 4.0), (3, 30, 1.0)]
NATIVE = {
    "u.data": "".join(f"{u}\t{i}\t{r:.0f}\t881250949\n" for u, i, r in LOG),
    "ratings.dat": "".join(f"{u}::{i}::{r:.0f}::978300760\n" for u, i, r in LOG),
    "ratings.csv": "userId,movieId,rating,timestamp\n" + "".join(f"{u},{i},{r},1112486027\n" for u, i, r in LOG),
}


def triples(ratings: Ratings) -> list[tuple[int, int, float]]:
    return sorted(zip(ratings.users.tolist(), ratings.items.tolist(), ratings.values.tolist()))


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("kind", ["file", "folder", "gz", "tar", "zip"])
def test_every_format_under_every_wrapper(tmp_path: Path, name: str, kind: str) -> None:
    body = NATIVE[name].encode()
    if kind in ("file", "folder"):
        (tmp_path / name).write_bytes(body)
        (tmp_path / "README").write_text("not a log")
        path = tmp_path / name if kind == "file" else tmp_path
    elif kind == "gz":
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(body))
    elif kind == "zip":
        path = tmp_path / "ml.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"ml/{name}", body)
    else:
        path = tmp_path / "ml.tar.xz"
        with tarfile.open(path, "w:xz") as archive:
            entry = tarfile.TarInfo(f"ml/{name}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    assert triples(read_ratings(path)) == sorted(LOG)


def test_netflix_and_million_song_and_adjacency(tmp_path: Path) -> None:
    netflix, songs, lists = tmp_path / "n", tmp_path / "s", tmp_path / "a"
    for folder in (netflix, songs, lists):
        folder.mkdir()
    (netflix / "mv_0000007.txt").write_text("7:\n1488844,3,2005-09-06\n822109,5,2005-05-13\n")
    (netflix / "mv_0000008.txt").write_text("8:\n822109,1,2005-05-13\n")
    assert triples(read_ratings(netflix)) == [(822109, 7, 5.0), (822109, 8, 1.0), (1488844, 7, 3.0)]
    (songs / "train_triplets.txt").write_text("b80344\tSOAKIM\t2\nb80344\tSOAPDE\t1\nc00001\tSOOTHER\t0\n")
    plays = implicit_feedback(read_ratings(songs), min_rating=1, min_user_items=1)
    assert (plays.users.tolist(), plays.items.tolist()) == (["b80344"], ["SOAKIM", "SOAPDE"])
    (lists / "train.txt").write_text("0 5 6\n1 5\n")
    (lists / "test.txt").write_text("0 7\n")
    likes = implicit_feedback(read_ratings(lists), min_user_items=1)
    assert likes.matrix.toarray().tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("u.data", "1\t2\t3\t0\n1\tx\t3\t0\n", r"u\.data, line 2: .* is not"),
        ("ratings.dat", "1::2\n", r"ratings\.dat, line 1"),
        ("train.txt", "1 2\n3 four\n", r"train\.txt, line 2"),
        ("mv_1.txt", "1:\nnobody\n", r"mv_1\.txt, line 2"),
        ("train_triplets.txt", "a\tb\tmany\n", r"train_triplets\.txt, line 1"),
        ("u.data", "", "holds no rating"),
        ("other.txt", "1 2 3", "no rating log found"),
    ],
)
def test_damaged_logs_are_named(tmp_path: Path, name: str, body: str, message: str) -> None:
    (tmp_path / name).write_text(body)
    with pytest.raises(ValueError, match=message):
        read_ratings(tmp_path)


def test_missing_and_empty_results_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        read_ratings(tmp_path / "nowhere")
    (tmp_path / "u.data").write_text(NATIVE["u.data"])
    with pytest.raises(ValueError, match="no interaction is left with min_rating=9"):
        read_interactions(tmp_path, min_rating=9)


def test_filters_and_duplicates() -> None:
    log = Ratings(np.array([1, 1, 1, 2, 2, 3]), np.array([1, 1, 2, 1, 3, 1]), np.array([5, 4, 4, 5, 3, 4.0]))
    likes = implicit_feedback(log, min_user_items=1)
    assert likes.matrix.toarray().tolist() == [[1, 1], [1, 0], [1, 0]]  # item 3 was rated 3 only; a repeat is one like
    assert implicit_feedback(log, min_user_items=2).users.tolist() == [1]
    assert implicit_feedback(log, min_user_items=1, min_item_users=2).items.tolist() == [1]


@given(seed=st.integers(0, 2**31), rows=st.integers(6, 30), share=st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_the_split_loses_nothing_and_leaks_nothing(seed: int, rows: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = csr_array(random_array((rows, 15), density=0.4, rng=rng, format="csr") != 0).astype(np.float32)
    if not matrix.nnz:
        return
    split = strong_split(matrix, validation=2, test=2, seed=seed, held_out=share)
    assert split.train.shape[0] == rows - 4
    assert (split.train.count_nonzero(axis=0) > 0).all()
    known = matrix[:, split.columns]
    together = [split.train]
    for part in (split.validation, split.test):
        assert part.fold_in.multiply(part.held_out).nnz == 0
        whole = part.fold_in + part.held_out
        counts = np.diff(csr_array(whole).indptr)
        assert np.diff(part.held_out.indptr).tolist() == [int(np.floor(share * n + 1e-9)) for n in counts]
        together.append(whole)
    rows_after = sorted(tuple(row) for m in together for row in m.toarray().tolist())
    assert rows_after == sorted(tuple(row) for row in known.toarray().tolist())
    again = strong_split(matrix, validation=2, test=2, seed=seed, held_out=share)
    assert (again.test.held_out != split.test.held_out).nnz == 0


def test_held_out_items_are_uniform() -> None:
    matrix = csr_array(np.ones((2002, 10), np.float32))
    held = strong_split(matrix, validation=1000, test=1000, seed=0).test.held_out
    counts = held.count_nonzero(axis=0)
    assert counts.sum() == 2000
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # chi-square, 9 degrees of freedom: p = 0.001


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"validation": 5, "test": 5}, "validation=5 and test=5"),
        ({"validation": 1, "test": 1, "held_out": 1.0}, "held_out=1.0"),
    ],
)
def test_impossible_splits_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strong_split(csr_array(np.ones((10, 3))), seed=0, **arguments)


def test_movielens_100k_has_the_published_counts(data_folder: Path) -> None:
    path = data_folder / "movielens" / "ml-100k.tar.xz"
    if not path.exists():
        pytest.skip(f"MovieLens 100K is not at {path}; set SPARRING_DATA")
    log = read_ratings(path)
    assert (len(log), len(np.unique(log.users)), len(np.unique(log.items))) == (100_000, 943, 1682)
    likes = implicit_feedback(log)
    assert likes.matrix.nnz == sum(np.diff(likes.matrix.indptr))
    assert 55_000 < likes.matrix.nnz <= 55_375  # 55,375 ratings of 4 and more, less a few users with under five


def test_movielens_1m_implicit_has_the_stated_counts(data_folder: Path) -> None:
    path = data_folder / "movielens" / "ml-1m-lightgcn.tar.xz"
    if not path.exists():
        pytest.skip(f"MovieLens 1M (implicit) is not at {path}; set SPARRING_DATA")
    log = read_ratings(path)
    assert len(np.unique(log.users)) == 6039
