"""The core needs torch and nothing else; the public names are there; rooms import one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sparring as sp

SOURCE = Path(sp.__file__).parent
FOREIGN = (
    "accelerate", "art", "captum", "implicit", "jinja2", "lightning", "matplotlib", "mlflow", "optuna", "pyautoattack", "pytorch_lightning",
    "rich", "sacrebleu", "safetensors", "scipy", "sklearn", "skorch", "tensorboard", "tokenizers", "transformers", "typer", "wandb",
)  # fmt: skip


def test_importing_the_core_needs_only_torch() -> None:
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FOREIGN!r}:
            raise ImportError("refused: " + name)
sys.meta_path.insert(0, Refuse())
import sparring, sparring.nn, sparring.recipes, sparring.ensembles, sparring.metrics, sparring.attacks, sparring.integrations
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [
    "Objective", "Term", "perturbed_call", "predict", "Input", "Output", "Scores", "Mask", "Recurrent", "Noise", "Bernoulli", "FastGradient", "PGD",
    "Interpretable", "GreedyFlip", "L2", "Linf", "Flips", "kl", "reverse_kl", "symmetric_kl", "js", "squared_error", "cross_entropy",
    "binary_cross_entropy", "squared_loss", "nn", "recipes", "ensembles", "metrics",
])  # fmt: skip
def test_public_names(name: str) -> None:
    assert hasattr(sp, name)
    assert name in sp.__all__


@pytest.mark.parametrize("name", [
    "adversarial_training", "vat", "smart", "salt", "free_at", "free_lb", "r_drop", "word_iat", "attention_noise", "attention_at", "attention_iat",
    "variational_dropout", "expectation_linear", "fraternal_dropout", "adversarial_dropout", "learnable_bernoulli",
])  # fmt: skip
def test_recipes_are_there(name: str) -> None:
    assert callable(getattr(sp.recipes, name))


# Each room may import those that come after it, and itself. Two rooms never import each other.
ORDER = (
    "lab",
    "integrations",
    "recipes",
    "metrics",
    "attacks",
    "ensembles",
    "predict",
    "objective",
    "terms",
    "passes",
    "players",
    "sites",
    "estimators",
    "nn",
    "balls",
    "losses",
    "penalties",
    "late",
)


def _targets(path: Path) -> list[str]:
    """The rooms that a file imports, at its top or inside its functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [a.name.split(".")[1] for a in node.names if a.name.startswith("sparring.")]
        if not isinstance(node, ast.ImportFrom):
            continue
        assert node.level or not (node.module or "").startswith("sparring"), f"{path}: imports are relative in here"
        if node.level:
            folder = path.parents[node.level - 1]
            parts = [*folder.relative_to(SOURCE).parts, *filter(None, (node.module or "").split("."))]
            found += [parts[0]] if parts else [a.name for a in node.names if a.name != "__version__"]
    return found


def test_every_room_has_a_rank() -> None:
    rooms = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__"} == set(ORDER)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room != "__init__":
            wrong += [
                f"{path.relative_to(SOURCE)} imports {to}"
                for to in _targets(path)
                if ORDER.index(to) < ORDER.index(room)
            ]
    assert not wrong, "\n".join(wrong)


def test_a_folder_is_made_where_files_share_a_first_word() -> None:
    """A file called `x_y.py` beside `x.py` is a folder that nobody made."""
    stems = {p.with_suffix("") for p in SOURCE.rglob("*.py")} | {p for p in SOURCE.rglob("*") if p.is_dir()}
    twins = [
        str(p.relative_to(SOURCE))
        for p in stems
        if any(p.with_name(p.name.rsplit("_", k)[0]) in stems for k in range(1, p.name.count("_")) or (1,))
        and "_" in p.name.strip("_")
    ]
    assert not twins
