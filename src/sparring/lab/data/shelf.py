"""What is there and what is not: list the catalogue, locate a data set in the folder, fetch what is missing."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .catalogue import DATASETS, Dataset
from .download import Progress, fetch
from .errors import DataError, UnknownData
from .files import Place, as_folder


@dataclass(frozen=True)
class Location:
    """Where the files of one data set lie.

    Args:
        dataset: The entry of the catalogue.
        folder: The data folder that was searched.
        found: Each logical file the readers open, and its place or None.
    """

    dataset: Dataset
    folder: Path
    found: Mapping[str, Place | None]

    @property
    def complete(self) -> bool:
        """Whether every file is there."""
        return all(place is not None for place in self.found.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """The logical files that are not there."""
        return tuple(name for name, place in self.found.items() if place is None)


def listing() -> tuple[Dataset, ...]:
    """Every data set of the catalogue.

    Example:
        >>> {entry.name for entry in listing()} >= {"mnist", "sst", "babi"}
        True
    """
    return tuple(DATASETS.values())


def dataset(name: str) -> Dataset:
    """One entry of the catalogue by name.

    Example:
        >>> dataset("minst")
        Traceback (most recent call last):
        ...
        sparring.lab.data.errors.UnknownData: no data set is called 'minst'; did you mean mnist?
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(DATASETS))}"
        raise UnknownData(f"no data set is called {name!r}; {hint}")
    return DATASETS[name]


def locate(name: str, folder: str | Path | None = None) -> Location:
    """Look for the files of one data set, plain, wrapped or in archives.

    Example:
        >>> locate("sst", "no/such/place").missing
        ('sst/trees/train.txt', 'sst/trees/dev.txt', 'sst/trees/test.txt')

    Args:
        name: A name of the catalogue.
        folder: The data folder; None for SPARRING_DATA or the user's cache.
    """
    entry, view = dataset(name), as_folder(folder)
    return Location(entry, view.root, MappingProxyType({need: view.find(need) for need in entry.needs}))


def get(
    name: str, folder: str | Path | None = None, progress: Progress | None = None, unverified: bool = False
) -> tuple[Path, ...]:
    """Download a data set into the data folder, if it is not there yet; returns the files it rests on.

    Nothing is unpacked: the readers open archives in place. See `fetch` for what happens when the line drops.

    Args:
        name: A name of the catalogue.
        folder: The data folder; None for SPARRING_DATA or the user's cache. It is created if need be.
        progress: Called as `progress(file name, bytes so far, total or None)`.
        unverified: Take files whose SHA-256 nobody publishes, which cannot be told from forged ones.
    """
    entry = dataset(name)
    location = locate(name, folder)
    if location.complete:
        return tuple(sorted({place.path for place in location.found.values() if place is not None}))
    if not entry.sources:
        raise DataError(
            f"{name} cannot be downloaded by a program: {entry.manual}; the data folder is {location.folder}"
        )
    if not entry.verified and not unverified:
        raise DataError(
            f"no SHA-256 is published for {name}, so nobody can tell whether what arrives is the real data; "
            f"`sparring data get {name} --unverified` takes it all the same"
        )
    return tuple(fetch(source.urls, location.folder / source.to, source.sha256, progress) for source in entry.sources)
