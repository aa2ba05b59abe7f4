"""Break the code on purpose and see whether a test notices: `python tests/mutate.py --count 100 --seed 0`.

The tests of the core are collected once. Every mutant, one small change of the core, gets a forked process in which the changed code
takes the place of the old one, and the tests of its room run, one of each test file in turn, until one fails. Which functions a test
enters is remembered, and later mutants leave out the tests that do not come near them. A survivor is one that all tests let
pass: a test is missing there, or the change changes nothing.
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
ROOMS = {
    "objective.py": "test_objective passes/test_masks test_unlabelled terms recipes/test_grammar recipes/test_pickling test_replay test_contract",
    "passes": "passes test_replay test_objective test_unlabelled sites/test_time_major sites/test_sites test_contract",
    "players": "players recipes/test_salt_gradient recipes/test_additive recipes/test_cutoff recipes/test_attention_recipes test_contract",
    "terms": "terms recipes/test_trades recipes/test_additive recipes/test_learned ensembles/test_terms test_objective test_unlabelled "
    "nn/test_dropout_kl recipes/test_grammar passes/test_recomputation players/test_finite_differences test_contract",
    "balls": "balls players/test_players_in_boxes players/test_greedy_flip players/test_pgd attacks/test_gradient_attacks test_contract",
    "penalties.py": "test_penalties test_objective recipes/test_trades test_contract",
    "losses.py": "test_penalties test_objective passes/test_masks recipes/test_trades test_contract",
    "sites": "sites recipes/test_masks recipes/test_attention_recipes recipes/test_learned recipes/test_trades test_replay test_contract",
}  # fmt: skip

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]


def tests_of(room: str) -> list[str]:
    """Paths of a room's tests, its own doctests first."""
    names = [f"tests/{name}" for name in ROOMS[room].split()]
    return [f"src/sparring/{room}", *(name if (ROOT / name).is_dir() else f"{name}.py" for name in names)]


def sample(count: int, seed: int, rooms: list[str]) -> list[tuple[str, Path, Any]]:
    from mutants import mutants

    found = []
    for room in rooms:
        place = PACKAGE / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if path.name != "__init__.py":
                found += [(room, path, mutant) for mutant in mutants(path.read_text())]
    random.Random(seed).shuffle(found)
    return found[:count]


class Runner:
    """A pytest plugin that takes the place of the usual loop over tests."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.failed = ""
        self.entered: dict[str, set[tuple[str, str]]] = {}  # by test: the functions of the package, as (file, name)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Of a test with very many variants, some, evenly spread."""
        variants = defaultdict(list)
        for item in items:
            variants[item.nodeid.partition("[")[0]].append(item)
        most = self.given.variants
        items[:] = [item for group in variants.values() for item in group[:: max(1, -(-len(group) // most))]]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        given, tally = self.given, defaultdict[str, int](int)
        chosen = [] if given.sound else sample(given.count, given.seed, given.rooms)
        for room in given.rooms if given.sound else ():
            fate = self._apart(partial(self._survives, None, "", self._tests(session, room, None)))
            print(f"{room}: {fate}", flush=True)
        for number, (room, path, mutant) in enumerate(chosen):
            where = f"{path.relative_to(PACKAGE)}:{mutant.line}"
            if number < given.skip or (given.only and where not in given.only):
                continue
            near = (str(path), mutant.function) if mutant.function else None
            fate = self._apart(partial(self._survives, path, mutant.source, self._tests(session, room, near)))
            tally[fate.split()[0]] += 1
            print(f"{number:4d} {where} {mutant.what}: {fate}", flush=True)
        print(dict(tally), flush=True)
        return True

    def _tests(self, session: pytest.Session, room: str, near: tuple[str, str] | None) -> list[Any]:
        """One test of each file in turn, of those that may enter a function: the files know different things."""
        wanted, groups = tests_of(room), defaultdict(list)
        for item in session.items:
            file = item.nodeid.partition("::")[0]
            known = self.entered.get(item.nodeid)
            if any(file.startswith(name) for name in wanted) and (near is None or known is None or near in known):
                groups[file].append(item)
        return [item for turn in zip_longest(*groups.values()) for item in turn if item is not None]

    def _apart(self, what: Any) -> str:
        """What a forked process says of a mutant."""
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.setitimer(signal.ITIMER_PROF, self.given.limit)  # a busy machine makes nothing hang
            signal.alarm(int(20 * self.given.limit))
            try:
                answer = what()
            except BaseException as error:  # the changed file cannot even be run
                answer = f"killed by {type(error).__name__}"
            with os.fdopen(said, "wb") as pipe:
                pickle.dump((answer, self.entered), pipe)
            os._exit(0)
        os.close(said)
        with os.fdopen(heard, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        if not told:
            return "killed by a crash, or hanging"
        answer, entered = pickle.loads(told)
        self.entered.update(entered)
        return str(answer)

    def _run(self, item: Any) -> set[tuple[str, str]]:
        """Run a test; returns the functions of the package that it entered."""
        seen: set[tuple[str, str]] = set()
        inside = str(PACKAGE)

        def trace(frame: Any, event: str, argument: Any) -> None:
            code = frame.f_code
            if code.co_filename.startswith(inside):
                seen.add((code.co_filename, code.co_qualname.partition(".<locals>")[0]))

        sys.settrace(trace)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        sys.settrace(None)
        return seen

    def _survives(self, path: Path | None, source: str, tests: list[Any]) -> str:
        from mutants import graft

        if path is not None:
            graft(importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts)), source)
        begun, self.entered = time.process_time(), {}
        for number, item in enumerate(tests):
            seen = self._run(item)
            if self.failed:
                return f"killed by {self.failed}"
            self.entered[item.nodeid] = seen
            if time.process_time() - begun > self.given.budget:
                return f"survived {number + 1} of {len(tests)} tests"
        return f"survived all {len(tests)} tests"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--count", type=int, default=100)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--rooms", nargs="*", default=list(ROOMS), choices=list(ROOMS))
    ask.add_argument("--only", nargs="*", help="lines such as balls/l2.py:80; all their mutants with --count 100000")
    ask.add_argument("--skip", type=int, default=0, help="go on behind so many mutants of an earlier run")
    ask.add_argument("--variants", type=int, default=20, help="at most so many variants of one parametrised test")
    ask.add_argument("--budget", type=float, default=60.0, help="CPU seconds of tests for one mutant")
    ask.add_argument("--limit", type=float, default=300.0, help="CPU seconds until a mutant counts as hanging")
    ask.add_argument("--sound", action="store_true", help="break nothing: do the tests of each room pass here?")
    given = ask.parse_args()
    os.chdir(ROOT)
    paths = dict.fromkeys(path for room in given.rooms for path in tests_of(room))
    words = ["-q", "-s", "-p", "no:cacheprovider", "-m", "not long"]
    for spawning in (
        "tests/passes/test_wrapped.py",
        "tests/test_objective.py::test_distributed_data_parallel_averages_both_halves",
    ):
        words += ["--deselect", spawning]  # their processes import the package from the disk, where nothing is broken
    raise SystemExit(pytest.main([*words, *paths], plugins=[Runner(given)]))


if __name__ == "__main__":
    main()
