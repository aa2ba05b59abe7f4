"""The core needs torch and nothing else; the public names are there; rooms import one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sparring as sp

SOURCE = Path(sp.__file__).parent
FOREIGN = (
    "accelerate", "art", "captum", "implicit", "jinja2", "lightning", "matplotlib", "optuna", "pyautoattack", "rich", "sacrebleu",
    "safetensors", "scipy", "sklearn", "tensorboard", "tokenizers", "transformers", "typer",
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


# each room may import those to its right: lab -> integrations -> recipes -> ... -> nn
ORDER = (
    "lab",
    "integrations",
    "metrics",
    "attacks",
    "recipes",
    "ensembles",
    "estimators",
    "objective",
    "players",
    "sites",
    "nn",
)


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_imports_point_one_way() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = _room(path)
        if room not in ORDER:
            continue
        for node in ast.parse(
            path.read_text()
        ).body:  # top level: an import inside a function waits until it is asked for
            if not isinstance(node, ast.ImportFrom) or not (node.level or (node.module or "").startswith("sparring")):
                continue
            folder = path.parent
            for _ in range(node.level - 1):
                folder = folder.parent
            parts = folder.relative_to(SOURCE).parts if node.level else ()
            module = [p for p in (node.module or "").split(".") if p and p != "sparring"]
            names = [*parts, *module] or [alias.name for alias in node.names]
            target = names[0]
            if target in ORDER and ORDER.index(target) < ORDER.index(room):
                wrong.append(f"{path.relative_to(SOURCE)} imports {target}")
    assert not wrong
