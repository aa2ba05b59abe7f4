"""The package as it would be published: wheel and sdist, the README of an index, one version, the files around it."""

import ast
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import sparring

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.long
def test_the_wheel_holds_the_package_and_runs_alone(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (metadata,) = (opened.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
        opened.extractall(tmp_path)
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "sparring").rglob("*") if p.is_file()}
    wanted = {name for name in source if not name.endswith((".pyc", ".so"))}
    assert wanted <= names, sorted(wanted - names)[:5]
    assert not {name for name in names if name.startswith(("tests", "docs", "examples"))}
    assert f"Version: {sparring.__version__}" in metadata
    script = "import sparring, sys; assert sys.argv[1] in sparring.__file__; print(sparring.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout.strip() == sparring.__version__, done.stderr
    assert "](docs/" not in metadata, "a relative link that an index cannot follow"


@pytest.mark.long
def test_the_sdist_holds_what_is_needed_to_test_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "constraints.txt", "hatch_build.py"} <= names
    assert "src/sparring/__init__.py" in names
    assert "tests/test_package.py" in names
    assert not {name for name in names if name.startswith((".venv", "runs", "demo", ".git/"))}


def test_the_version_stands_in_one_place() -> None:
    assert "version" in SETTINGS["project"]["dynamic"]
    assert SETTINGS["tool"]["hatch"]["version"]["path"] == "src/sparring/__init__.py"
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == sparring.__version__


def test_an_index_gets_whole_addresses_or_words() -> None:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = (ROOT / "README.md").read_text()
    assert "](docs/" in text
    alone = hook.readable(text, "", "1.0")
    assert "](docs/" not in alone
    assert "![" not in alone
    whole = hook.readable(text, "someone/sparring", "1.0")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", whole)
    assert pictures
    assert all(p.startswith("https://raw.githubusercontent.com/someone/sparring/v1.0/docs/") for p in pictures)
    assert all((ROOT / p.partition("/v1.0/")[2]).exists() for p in pictures)


def test_the_first_code_of_the_readme_runs_alone() -> None:
    """Pasted into a fresh interpreter, without this test's imports."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    ast.parse(code[1])
    done = subprocess.run([sys.executable, "-W", "error", "-c", code[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/own-data.md", "docs/faq.md", "docs/lab.md", "docs/your-model.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_workflow_runs_what_the_makefile_has() -> None:
    workflow = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"make ([a-z-]+)", workflow))
    assert used <= targets
    assert {"test", "check", "docs", "dist"} <= used
    for version in ("3.11", "3.12", "3.13"):
        assert f'"{version}"' in workflow


def test_the_notebook_runs(tmp_path: Path) -> None:
    """The quick start, executed from the top; it must end with every cell done and none with an error."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(ROOT / "examples" / "quick_start.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]
