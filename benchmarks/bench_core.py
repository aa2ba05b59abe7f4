"""Additive methods against a plain training step of the same model, time and peak memory, and against public peers.

python benchmarks/bench_core.py            # goals beside the figures
pip install --no-deps smart-pytorch vat-pytorch    # optional: adds the peers' rows
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sparring as sp
from harness import interleave, memory
from sparring import recipes
from sparring.lab.training.memory import keep_memory

D, T, B, CLASSES = 128, 64, 32, 10
VARIANTS = (
    "plain",
    "VAT",
    "SALT K=1 exact",
    "SALT K=1 finite difference",
    "adversarial training",
    "SMART",
    "FreeLB K=3",
    "R-Drop",
)
GOALS = {"VAT": 2.8, "SALT K=1 exact": 4.7, "SALT K=1 finite difference": 4.1}


class Encoder(nn.Module):
    """A 4-layer transformer encoder with a classifier on the mean state."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, D)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 4 * D, dropout=0.1, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(D, CLASSES)

    def encode(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encode(self.embedding(tokens))


class Deep(nn.Sequential):
    """Twelve wide layers and a classifier: the place to perturb is the last one."""

    def __init__(self) -> None:
        super().__init__(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(12)], nn.Linear(512, CLASSES))


def step_of(objective: Callable[..., Tensor], model: nn.Module, *batch: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        steps = objective.steps(*batch) if isinstance(objective, sp.Objective) else [objective(*batch)]
        for loss in steps:
            loss.backward()
        optimizer.step()

    return step


def objective_of(name: str, model: nn.Module) -> Any:
    loss, at, ball = sp.cross_entropy, "embedding", sp.L2(1.0)
    return {
        "plain": lambda: lambda x, y: nn.functional.cross_entropy(model(x), y),
        "VAT": lambda: recipes.vat(model, loss, at, ball=ball),
        "SALT K=1 exact": lambda: recipes.salt(model, loss, at, ball=ball),
        "SALT K=1 finite difference": lambda: recipes.salt(model, loss, at, ball=ball, unroll="finite_difference"),
        "adversarial training": lambda: recipes.adversarial_training(model, loss, at, ball=ball),
        "SMART": lambda: recipes.smart(model, loss, at, ball=ball, step_size=None),
        "SMART without proximal term": lambda: recipes.smart(
            model, loss, at, ball=ball, step_size=None, proximal_weight=0.0
        ),
        "FreeLB K=3": lambda: recipes.free_lb(model, loss, at, ball=ball),
        "R-Drop": lambda: recipes.r_drop(model, loss),
    }[name]()


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(1000, (B, T)), torch.randint(CLASSES, (B,))


def step_named(name: str) -> Callable[[], None]:
    model = Encoder()
    return step_of(objective_of(name, model), model, *batch())


def peers(model: Encoder, x: Tensor, y: Tensor) -> dict[str, Callable[[], None]]:
    """Public implementations of SMART's smoothness term, where they are installed."""
    rows: dict[str, Callable[[], None]] = {}
    for package, argument in (("smart_pytorch", "eval_fn"), ("vat_pytorch", "model")):
        try:
            peer = importlib.import_module(package)
        except ImportError:
            print(f"{package} is not installed: its row is left out")
            continue
        regulariser = peer.SMARTLoss(**{argument: model.encode}, loss_fn=peer.kl_loss, loss_last_fn=peer.sym_kl_loss)

        def loss(x: Tensor, y: Tensor, regulariser: Any = regulariser) -> Tensor:
            hidden = model.embedding(x)
            state = model.encode(hidden)
            return nn.functional.cross_entropy(state, y) + regulariser(hidden, state)

        rows[f"peer: {package}, no proximal term"] = step_of(loss, model, x, y)
    return rows


def main() -> None:
    keep_memory()
    torch.manual_seed(0)
    model = Encoder()
    x, y = batch()
    variants = {
        name: step_of(objective_of(name, model), model, x, y) for name in (*VARIANTS[1:], "SMART without proximal term")
    }
    print(f"4-layer transformer encoder, d {D}, T {T}, B {B}; ratio to a plain step")
    ratios = interleave(
        ("plain", step_of(objective_of("plain", model), model, x, y)), variants | peers(model, x, y), repeats=1
    )
    for name, ratio in ratios.items():
        print(ratio.row(GOALS.get(name)))
    deep = Deep()
    features, labels = torch.randn(256, 512), torch.randint(CLASSES, (256,))
    late = recipes.vat(deep, sp.cross_entropy, "11", ball=sp.L2(1.0))
    whole = recipes.vat(deep, sp.cross_entropy, "11", ball=sp.L2(1.0), replay=False)
    print("\nVAT on the last hidden layer of a 13-layer network; ratio to a plain step")
    plain = step_of(lambda a, b: nn.functional.cross_entropy(deep(a), b), deep, features, labels)
    deep_ratios = interleave(
        ("plain", plain),
        {
            "with prefix replay": step_of(late, deep, features, labels),
            "without": step_of(whole, deep, features, labels),
        },
    )
    for name, ratio in deep_ratios.items():
        print(ratio.row({"with prefix replay": 1.1}.get(name)))
    memory(step_named, VARIANTS)


if __name__ == "__main__":
    main()
