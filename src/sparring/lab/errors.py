"""What the lab says when something is wrong: one sentence, and an exit code that means something.

>>> raise RunError("another process is writing runs/demo; wait for it or choose another --out")
Traceback (most recent call last):
...
sparring.lab.errors.RunError: another process is writing runs/demo; wait for it or choose another --out

Exit codes: 0 done, 1 a fault of ours, 2 a wrong name or value, 3 data (`sparring.lab.data.DataError`), 4 a run folder,
5 diverged, 130 interrupted.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class LabError(Exception):
    """Something the user can put right; the command line prints the sentence and leaves with `exit_code`."""

    exit_code = 2


class RunError(LabError):
    """A run folder that cannot be read or written: locked by another process, full disk, damaged checkpoint."""

    exit_code = 4


class Diverged(LabError):
    """Training left the numbers: the loss is not finite."""

    exit_code = 5


class Interrupted(LabError):
    """Ctrl-C or SIGTERM; the state is on disk and the same command goes on from there."""

    exit_code = 130


def first_line(error: BaseException) -> str:
    """What an error says, without the lines that only its author can use.

    >>> first_line(RuntimeError("no room\\nframe #0: ..."))
    'no room'
    """
    return next(iter(str(error).splitlines()), "")


def unknown(kind: str, name: str, known: Iterable[str]) -> LabError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown("method", "satl", ["salt", "free_lb"]))
    unknown method 'satl'; did you mean salt? (known: free_lb, salt)
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ";"
    return LabError(f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})")
