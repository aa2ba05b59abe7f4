"""Break the code on purpose and see whether the tests of that room notice: `python tests/mutate.py --count 30 --seed 0`.

Each mutant is one small change (an operator, a constant, a dropped line) in a copy of the package; the tests of its room run against the copy in
a process of their own until the first failure. Survivors are printed as a diff: a test is missing there, or the line does nothing.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src") / "sparring"
ROOMS = {
    "objective.py": ["tests/test_objective.py", "tests/recipes/test_pickling.py", "tests/passes/test_masks.py"],
    "passes": ["tests/test_replay.py", "tests/passes", "tests/test_objective.py"],
    "terms": ["tests/terms", "tests/recipes", "tests/ensembles/test_terms.py", "tests/test_objective.py"],
    "players": ["tests/players", "tests/recipes/test_salt_gradient.py"],
    "balls": ["tests/balls", "tests/players/test_greedy_flip.py"],
}
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was done, the changed source) for every place where a small change is possible."""
    tree = ast.parse(source)
    skipped = {id(inner) for node in ast.walk(tree) for inner in ast.walk(node) if _is_said(node)}
    for node in ast.walk(tree):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        for what, change, undo in _changes(node):
            change()
            yield node.lineno, what, ast.unparse(tree)
            undo()


def _is_said(node: ast.AST) -> bool:
    """Docstrings, messages, types and imports: changes there are not for tests to find."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[tuple]:
    def setting(where: object, name: str, new: object) -> tuple:
        old = getattr(where, name)
        return (lambda: setattr(where, name, new)), (lambda: setattr(where, name, old))

    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new = SWAPS[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {new.__name__}", *setting(node, "ops", [new(), *node.ops[1:]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        new = SWAPS[type(node.op)]
        yield f"{type(node.op).__name__} -> {new.__name__}", *setting(node, "op", new())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", *setting(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} -> {node.value + 1}", *setting(node, "value", node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", *setting(node, "op", ast.UAdd())
    if isinstance(node, ast.FunctionDef) and len(node.body) > 1:
        for line in node.body:
            if isinstance(line, ast.Expr | ast.AugAssign | ast.If) and not _is_said(line):
                shorter = [other for other in node.body if other is not line]
                yield (
                    f"dropped line {line.lineno}: {ast.unparse(line).splitlines()[0]}",
                    *setting(node, "body", shorter),
                )


def sample(count: int, seed: int, rooms: list[str]) -> list[tuple[str, Path, int, str, str]]:
    found = []
    for room in rooms:
        place = ROOT / PACKAGE / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            if path.name != "__init__.py":
                found += [(room, path, *mutant) for mutant in mutants(path.read_text())]
    random.Random(seed).shuffle(found)
    return found[:count]


def survives(room: str, path: Path, source: str, limit: float) -> str:
    """ "killed", "survived" or "timeout", from a process that imports the changed package."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / path.relative_to(ROOT / "src")).write_text(source)
        words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not long", "--deselect", "tests/passes/test_wrapped.py"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words, *ROOMS[room]],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        return "survived" if done.returncode == 0 else "killed"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--count", type=int, default=30)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--rooms", nargs="*", default=list(ROOMS))
    ask.add_argument("--limit", type=float, default=300.0, help="seconds until a mutant counts as hanging")
    given = ask.parse_args()
    for room in given.rooms:
        whole = ROOT / PACKAGE / "objective.py"
        if survives(room, whole, whole.read_text(), given.limit) != "survived":
            raise SystemExit(f"the tests of {room} fail before anything is broken")
    tally: dict[str, int] = {}
    for room, path, line, what, source in sample(given.count, given.seed, given.rooms):
        fate = survives(room, path, source, given.limit)
        tally[fate] = tally.get(fate, 0) + 1
        print(f"{fate:9s} {path.relative_to(ROOT / PACKAGE)}:{line} {what}", flush=True)
    print(tally)


if __name__ == "__main__":
    main()
