"""Break the code on purpose and see whether a test notices: `python tests/mutate.py --count 100 --seed 0`.

The tests of the core are collected once. A first run, in a process of its own, writes down which functions each test enters and how long
it takes. Then every mutant, one small change of the core, gets a forked process in which the changed code takes the place of the
old one, and the tests that enter its function run, quick ones and different files first, until one fails. A survivor is one
that all of them let pass: a test is missing there, or the change changes nothing.
"""

import argparse
import importlib
import os
import pickle
import random
import signal
import sys
import time
from collections import defaultdict
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "sparring"
ROOMS = ("objective.py", "passes", "players", "terms", "balls", "penalties.py", "losses.py", "sites")
TESTS = [
    *(f"tests/{room}" for room in ("balls", "passes", "players", "recipes", "sites", "terms", "integrations", "ensembles/test_terms.py")),
    *(f"tests/{name}" for name in ("attacks/test_gradient_attacks.py", "ensembles/test_ensemble.py", "nn/test_dropout_kl.py")),
    *(f"tests/test_{name}.py" for name in ("contract", "estimators", "objective", "penalties", "predict", "replay", "unlabelled")),
    *(f"src/sparring/{room}" for room in ROOMS),
]  # fmt: skip

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

Seen = dict[str, tuple[float, set[tuple[str, int]]]]  # test -> its seconds, and the functions it entered


def sample(count: int, seed: int, rooms: list[str]) -> list[tuple[Path, Any]]:
    from mutants import mutants

    found = []
    for room in rooms:
        place = PACKAGE / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if path.name != "__init__.py":
                found += [(path, mutant) for mutant in mutants(path.read_text())]
    random.Random(seed).shuffle(found)
    return found[:count]


class Runner:
    """A pytest plugin that takes the place of the usual loop over tests."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.failed = False

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Of a test with very many variants, some, evenly spread."""
        variants = defaultdict(list)
        for item in items:
            variants[item.nodeid.partition("[")[0]].append(item)
        most = self.given.variants
        items[:] = [item for group in variants.values() for item in group[:: max(1, -(-len(group) // most))]]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        given = self.given
        seen = Path(given.map)
        if not seen.exists():
            self._apart(partial(self._watch, session, seen), 36_000)
        self.seen: Seen = pickle.loads(seen.read_bytes())
        self.items = {item.nodeid: item for item in session.items}
        tally: dict[str, int] = defaultdict(int)
        for number, (path, mutant) in enumerate(sample(given.count, given.seed, given.rooms)):
            where = f"{path.relative_to(PACKAGE)}:{mutant.line}"
            if number < given.skip or (given.only and where not in given.only):
                continue
            tests = self._tests(path, mutant.functions)
            code = self._apart(partial(self._survives, path, mutant.source, tests), given.limit)
            fate = {0: "survived", 1: "killed"}.get(code, "timeout" if code == -signal.SIGALRM else "killed")
            tally[fate] += 1
            print(f"{number:4d} {fate:9s} {where} {mutant.what} [{len(tests)} tests]", flush=True)
        print(dict(tally), flush=True)
        return True

    def _apart(self, what: Any, limit: float) -> int:
        """The exit code of a forked process: minus a signal's number where one ended it."""
        child = os.fork()
        if child == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.alarm(int(limit))
            try:
                os._exit(what())
            except BaseException:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _run(self, item: Any) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def _watch(self, session: pytest.Session, where: Path) -> int:
        entered: set[tuple[str, int]] = set()
        inside = str(PACKAGE)

        def trace(frame: Any, event: str, argument: Any) -> None:
            code = frame.f_code
            if code.co_filename.startswith(inside):
                entered.add((code.co_filename, code.co_firstlineno))

        found: Seen = {}
        for item in session.items:
            entered.clear()
            self.failed, begun = False, time.process_time()
            sys.settrace(trace)
            self._run(item)
            sys.settrace(None)
            if not self.failed:
                found[item.nodeid] = (time.process_time() - begun, set(entered))
        where.write_bytes(pickle.dumps(found))
        return 0

    def _tests(self, path: Path, functions: tuple[int, ...]) -> list[Any]:
        """The tests that enter the function (or anything in the file), one of each test file in turn, quick ones first."""
        keys = [(str(path), line) for line in functions]
        groups: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for name, (seconds, entered) in self.seen.items():
            near = any(key in entered for key in keys) if keys else any(file == str(path) for file, _ in entered)
            if near and name in self.items:
                groups[name.partition("::")[0]].append((seconds, name))
        turns = zip_longest(*map(sorted, groups.values()))
        chosen, budget = [], self.given.budget
        for seconds, name in (test for turn in turns for test in turn if test is not None):
            if budget > 0:
                chosen.append(self.items[name])
                budget -= seconds
        return chosen

    def _survives(self, path: Path, source: str, tests: list[Any]) -> int:
        from mutants import graft

        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        graft(importlib.import_module(name), source)
        self.failed = False
        for item in tests:
            self._run(item)
            if self.failed:
                return 1
        return 0


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--count", type=int, default=100)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--rooms", nargs="*", default=list(ROOMS))
    ask.add_argument(
        "--only", nargs="*", help="places such as balls/l2.py:80; with --count 100000, all mutants of these lines"
    )
    ask.add_argument("--skip", type=int, default=0, help="go on behind so many mutants of an earlier run")
    ask.add_argument("--variants", type=int, default=1000, help="at most so many variants of one parametrised test")
    ask.add_argument("--budget", type=float, default=60.0, help="seconds of tests for one mutant")
    ask.add_argument("--limit", type=float, default=600.0, help="seconds until a mutant counts as hanging")
    ask.add_argument(
        "--map",
        default="/tmp/sparring-tests-by-function.pickle",
        help="made in the first run; delete it to make it again",
    )
    given = ask.parse_args()
    os.chdir(ROOT)
    words = ["-q", "-s", "-p", "no:cacheprovider", "-m", "not long"]
    raise SystemExit(
        pytest.main([*words, "--deselect", "tests/passes/test_wrapped.py", *TESTS], plugins=[Runner(given)])
    )


if __name__ == "__main__":
    main()
