"""What the papers' pages say about the code is there: files, functions, methods, tests."""

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sparring as sp

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "sparring"
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
FILE = re.compile(r"`([\w./-]+(?:\.py|\.c|/))`")
NAME = re.compile(r"`((?:[A-Za-z_]\w*\.)?[A-Za-z_]\w*)(?:\([^`]*\))?`")


def _defined(path: Path) -> set[str]:
    """Functions, classes, methods (with and without their class), arguments and fields of a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            for item in ast.walk(node):
                if isinstance(item, ast.FunctionDef):
                    found |= {item.name, f"{node.name}.{item.name}"}
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    found |= {item.target.id, f"{node.name}.{item.target.id}"}
        if isinstance(node, ast.FunctionDef):
            found |= {node.name, *(a.arg for a in (*node.args.args, *node.args.kwonlyargs))}
    return found


HERE = {path: _defined(path) for path in SOURCE.rglob("*.py")}
ANYWHERE = set().union(*HERE.values())
TESTS = {name for path in (ROOT / "tests").rglob("test_*.py") for name in _defined(path)}


def _file(name: str) -> Path | None:
    return next((p for p in (SOURCE / name, ROOT / name) if p.exists()), None)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.stem)
def test_every_file_that_a_paper_names_exists(page: Path) -> None:
    rooms = {path.name for folder in (SOURCE, ROOT) for path in folder.iterdir() if path.is_dir()}
    named = [
        n for n in FILE.findall(page.read_text()) if not n.endswith("/") or n.partition("/")[0] in rooms
    ]  # not of data
    assert named
    assert [name for name in named if _file(name) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_function_beside_a_file_is_defined_there(page: Path) -> None:
    """In the tables that lead from equations to code: `function` beside `file.py`."""
    missing, looked = [], 0
    for line in page.read_text().splitlines():
        for cell in line.split("|")[2:3] if line.startswith("|") else ():
            files = [path for name in FILE.findall(cell) if (path := _file(name)) is not None]
            inside = [p for path in files for p in ([path] if path.suffix == ".py" else path.rglob("*.py"))]
            names = set().union(*(HERE.get(p, set()) for p in inside)) if inside else set()
            for name in NAME.findall(cell) if inside else ():
                looked += 1
                method = "." in name and name.partition(".")[0] in names
                known = name in ANYWHERE or name.startswith("recipes.") or hasattr(torch, name) or hasattr(Tensor, name)
                if not name.endswith(".py") and (not known or (method and name not in names)):
                    missing.append(f"{name}: {cell.strip()}")
    assert looked
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_x_in_file_is_in_that_file(page: Path) -> None:
    text = page.read_text()
    for name, file in re.findall(r"`([A-Za-z_][\w.]*)` in `([\w/]+\.py)`", text):
        path = _file(file)
        assert path is not None
        assert name in HERE[path], f"{name} in {file}"
    for file, name in re.findall(r"`([\w/]+\.py)`, `([A-Za-z_][\w.]*)`", text):
        path = _file(file)
        assert path is not None
        assert name in HERE[path], f"{file}, {name}"


def test_every_test_file_that_a_command_names_exists() -> None:
    named = [
        name
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text().splitlines()
        if "pytest" in line
        for name in re.findall(r"\btests/[\w/.-]*\w", line)
    ]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_test_that_a_paper_names_exists(page: Path) -> None:
    assert [name for name in re.findall(r"`(test_\w+)", page.read_text()) if name not in TESTS] == []


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.stem)
def test_every_dotted_public_name_exists(page: Path) -> None:
    for dotted in re.findall(r"`sp\.([A-Za-z_][\w.]*\w)", page.read_text()):
        found: object = sp
        for part in dotted.split("."):
            assert hasattr(found, part), f"sp.{dotted}"
            found = getattr(found, part)
