"""Parsers of the published rating formats, line by line into compact arrays."""

import math
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

import numpy as np

from ..errors import DataError
from ..streams import wrapper


@dataclass(frozen=True)
class Ratings:
    """Who (`users`) gave which item (`items`) what (`values`), one entry a rating.

    Ids are numbers as published. Where the publisher uses words, ids count from 0 and `names` holds the users' and the
    items' words in that order.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    names: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.users)


def format_of(name: str) -> str | None:
    """The key of `FORMATS` that a file name falls under, folders and wrapper aside.

    >>> format_of("ml-100k/u.data.xz"), format_of("README")
    ('u.data', None)
    """
    bare = PurePosixPath(name).name.removesuffix(wrapper(name))
    return next((key for key in FORMATS if any(fnmatch(bare, pattern) for pattern in key.split())), None)


def table(lines: Iterable[str], name: str, separator: str, header: bool = False) -> Ratings:
    """MovieLens: user, item, rating and more, one rating a line.

    >>> table(["1::1193::5::978300760"], "ratings.dat", "::").items.tolist()
    [1193]
    """
    users, items, values = array("q"), array("q"), array("d")
    for number, line in enumerate(lines, 1):
        if (header and number == 1) or not line.strip():
            continue
        fields = line.split(separator)
        try:
            user, item, value = int(fields[0]), int(fields[1]), float(fields[2])
        except (ValueError, IndexError):
            wanted = f"user{separator}item{separator}rating"
            raise DataError(f"{line.strip()[:40]!r} is not {wanted!r}", name, number) from None
        users.append(user)
        items.append(item)
        values.append(value)
    return Ratings(_numbers(users), _numbers(items), _numbers(values))


def netflix(lines: Iterable[str], name: str) -> Ratings:
    """Netflix Prize: a film's number and a colon, then customer, rating and date, one rating a line; then the next film.

    A file of the prize (`mv_0000007.txt`) has one film, the joined ones (`combined_data_1.txt`) have thousands.

    >>> netflix(["7:", "1488844,3,2005-09-06", "8:", "822109,5,2005-05-13"], "combined_data_1.txt").items.tolist()
    [7, 8]
    """
    users, items, values = array("i"), array("i"), array("f")  # a hundred million of them: 1.2 GB
    film: int | None = None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            if text.endswith(":"):
                film = int(text[:-1])
                continue
            customer, rating, _ = text.split(",")
            users.append(int(customer))
            values.append(float(rating))
        except (ValueError, OverflowError):
            wanted = "'film:'" if film is None else "'customer,rating,date' or 'film:'"
            raise DataError(f"{text[:40]!r} is not {wanted}", name, number) from None
        if film is None:
            raise DataError(f"{text[:40]!r} comes before the first 'film:'", name, number)
        items.append(film)
    return Ratings(_numbers(users), _numbers(items), _numbers(values))


def triplets(lines: Iterable[str], name: str) -> Ratings:
    """Million Song: user, song and play count, the first two as words.

    >>> triplets(["b80344\\tSOAKIM\\t2"], "train_triplets.txt").names
    (array(['b80344'], dtype='<U6'), array(['SOAKIM'], dtype='<U6'))
    """
    users, songs, counts = array("q"), array("q"), array("d")
    known: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\n").split("\t")
        if len(fields) != 3 or not fields[2].isdecimal():
            raise DataError(f"{line.strip()[:40]!r} is not user TAB song TAB count", name, number)
        users.append(known[0].setdefault(fields[0], len(known[0])))
        songs.append(known[1].setdefault(fields[1], len(known[1])))
        counts.append(int(fields[2]))
    return Ratings(_numbers(users), _numbers(songs), _numbers(counts), (np.array([*known[0]]), np.array([*known[1]])))


def adjacency(lines: Iterable[str], name: str) -> Ratings:
    """Lists of likes: a user, then the items. They carry no value: every pair is a positive (inf).

    >>> adjacency(["3 10 20"], "train.txt").users.tolist()
    [3, 3]
    """
    users, items = array("q"), array("q")
    for number, line in enumerate(lines, 1):
        try:
            user, *liked = map(int, line.split()) if line.strip() else (0,)
        except ValueError:
            raise DataError(f"{line.strip()[:40]!r} is not a user and its items", name, number) from None
        users.extend([user] * len(liked))
        items.extend(liked)
    return Ratings(_numbers(users), _numbers(items), np.full(len(users), np.inf))


def log(lines: Iterable[str], name: str, separator: str) -> Ratings:
    """Anybody's log: a header, then user, item and (if there is a third column) rating; ids may be words.

    >>> found = log(["who,what,stars", "ann,tea,5", "bob,tea,2"], "mine.csv", ",")
    >>> found.items.tolist(), found.values.tolist(), found.names[0].tolist()
    ([0, 0], [5.0, 2.0], ['ann', 'bob'])
    """
    users, items, values = array("q"), array("q"), array("d")
    known: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for number, line in enumerate(lines, 1):
        fields = line.rstrip("\r\n").split(separator)
        if number == 1 or not line.strip():
            continue
        try:
            values.append(float(fields[2]) if len(fields) > 2 else math.inf)
            if not (fields[0] and fields[1]) or math.isnan(values[-1]):
                raise ValueError
        except (ValueError, IndexError):
            wanted = f"user{separator}item or user{separator}item{separator}rating"
            raise DataError(f"{line.strip()[:40]!r} is not {wanted!r}", name, number) from None
        users.append(known[0].setdefault(fields[0], len(known[0])))
        items.append(known[1].setdefault(fields[1], len(known[1])))
    names = np.array([*known[0]]), np.array([*known[1]])
    return Ratings(_numbers(users), _numbers(items), _numbers(values), names)


def _numbers(values: array) -> np.ndarray:
    """The array's own memory as numpy sees it."""
    return np.frombuffer(values, dtype=values.typecode) if values else np.zeros(0, dtype=values.typecode)


# File names -> parser, the most telling name first.
FORMATS: dict[str, Callable[[Iterable[str], str], Ratings]] = {
    "u.data": lambda lines, name: table(lines, name, "\t"),
    "ratings.dat": lambda lines, name: table(lines, name, "::"),
    "ratings.csv": lambda lines, name: table(lines, name, ",", header=True),
    "train_triplets.txt": triplets,
    "mv_*.txt combined_data_*.txt": netflix,
    "train.txt valid.txt test.txt": adjacency,
    "*.csv": lambda lines, name: log(lines, name, ","),
    "*.tsv": lambda lines, name: log(lines, name, "\t"),
}
