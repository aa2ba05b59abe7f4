"""Code of the user's own: a Python file, or a module that can be imported, and whose fault an error is."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from .data.errors import DataError
from .errors import LabError, first_line


def fault(error: BaseException, file: str) -> LabError | None:
    """The sentence about an exception that passed through `file`, with the line; None where it did not."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        return LabError(f"{Path(file).name}, line {error.lineno}: SyntaxError: {error.msg}")
    if not frames:
        return None
    return LabError(f"{Path(file).name}, line {frames[-1].lineno}: {type(error).__name__}: {first_line(error)}")


@contextmanager
def blamed_on(file: str) -> Iterator[None]:
    """An exception out of the user's file is the user's to put right: one sentence with the line."""
    try:
        yield
    except (LabError, DataError):
        raise
    except Exception as error:
        mine = fault(error, file) if file else None
        if mine is None:
            raise
        raise mine from error


def load_file(path: str | Path) -> ModuleType:
    """The module in a Python file, run once per content; its folder can be imported from."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise LabError(f"there is no file {path}")
    return _load_file(str(file), file.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _load_file(file: str, modified: int) -> ModuleType:
    path = Path(file)
    name = f"sparring_user_{path.stem}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LabError(f"{path.name} is not a Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look for it there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    with blamed_on(file):
        try:
            spec.loader.exec_module(module)
        except SystemExit as error:
            raise LabError(f"{path.name} ends the program (SystemExit: {error}) when it is read") from error
    return module


def load_name(name: str) -> Any:
    """What `module:function` or `./file.py:function` stands for.

    >>> load_name("math:sqrt")(9.0)
    3.0
    >>> load_name("math:root")
    Traceback (most recent call last):
    ...
    sparring.lab.errors.LabError: math has no 'root'
    """
    where, _, what = name.rpartition(":")
    if where.endswith(".py"):
        module = load_file(where)
    else:
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        try:
            module = import_module(where)
        except ModuleNotFoundError as error:
            raise LabError(f"{name}: there is no module {error.name!r}; a file is written ./file.py:{what}") from error
        except Exception as error:
            raise LabError(f"{name} cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    if not hasattr(module, what):
        raise LabError(f"{where} has no {what!r}")
    return getattr(module, what)
