"""Data sets for experiments: find or fetch the published files, read their native formats, batch text.

Example:
    >>> import sparring.lab.data as data
    >>> [entry.name for entry in data.list()][:3]
    ['mnist', 'cifar10', 'cifar100']
"""

from .catalogue import DATASETS, Dataset
from .download import fetch
from .errors import DataError, MissingData
from .files import Folder, Place, as_folder, folder_of
from .shelf import Location, dataset, get, locate
from .shelf import listing as list

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Folder",
    "Location",
    "MissingData",
    "Place",
    "as_folder",
    "dataset",
    "fetch",
    "folder_of",
    "get",
    "list",
    "locate",
]
