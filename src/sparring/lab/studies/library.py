"""Where studies are found: by name among ours, or in a file of the user's own.

>>> "few-labels" in studies()
True
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ..errors import LabError, first_line, unknown
from .study import Study

# Of `catalogue`, in the order to run them.
MODULES = (
    "few_labels",
    "recurrent",
    "attention",
    "ensembles",
    "recommending",
    "fine_tuning",
    "learned_dropout",
)


@cache
def studies() -> Mapping[str, Study]:
    """Every study of ours by name."""
    found: dict[str, Study] = {}
    for module in MODULES:
        for study in import_module(f"{__package__}.catalogue.{module}").STUDIES:
            if study.name in found:
                raise ValueError(f"two studies are called {study.name!r}; the second is in catalogue/{module}.py")
            found[study.name] = study
    return found


def study(name: str) -> list[Study]:
    """The study called `name`, or those of a file `./mine.py`."""
    if name.endswith(".py"):
        return from_file(Path(name))
    if name not in studies():
        raise unknown("study", name, studies())
    return [studies()[name]]


def from_file(path: Path) -> list[Study]:
    """The `STUDY` or the `STUDIES` of a Python file."""
    if not path.is_file():
        raise LabError(f"{path} is not a file; a study of your own is a file with STUDY = Study(...)")
    spec = spec_from_file_location(f"sparring_study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except LabError:
        raise
    except Exception as error:
        raise LabError(f"{path} cannot be read: {type(error).__name__}: {first_line(error)}") from error
    found = list(getattr(module, "STUDIES", ())) or [getattr(module, "STUDY", None)]
    if not all(isinstance(entry, Study) for entry in found):
        raise LabError(f"{path} defines no study; end it with STUDY = Study(...)")
    return found
