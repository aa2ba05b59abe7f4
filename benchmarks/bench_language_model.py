"""Training steps of the language model against the plain step: CPU time, one thread, interleaved; and their peak memory.

OMP_NUM_THREADS=1 python benchmarks/bench_language_model.py [--scales small,paper] [--what step,penalty,memory] [--rounds 5]
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import sparring as sp
from harness import interleave, memory
from sparring.lab.models.language import AWDLSTM, VocabularyHead
from sparring.lab.registry import task
from sparring.lab.task import Data, Split
from sparring.lab.text import Text
from sparring.lab.training.memory import keep_memory

WORDS = 10_000
METHODS = {
    "plain": None, "variational_dropout": None, "expectation_linear": None, "fraternal_dropout": None,
    "adversarial_dropout": 2.45, "adversarial_dropout_k2": 3.1, "adversarial_dropout_states": 2.45, "r_drop": None,
}  # fmt: skip


def step_named(name: str, scale: str) -> Callable[[], object]:
    """One update's loss and gradients, on one window of random words."""
    torch.manual_seed(0)
    setting = task("ptb").setting(name, scale)
    rows, window = setting["batch"], setting["window"]
    words = torch.randint(WORDS, (rows * (window + 1),))
    data = Data(Split(words), Split(words), text=Text(words, window))
    drops = {key: value for key, value in setting.values.items() if key.startswith("drop_")}
    model = AWDLSTM(WORDS, setting["size"], setting["hidden"], setting["layers"], **drops)
    objective = task("ptb").method(name).objective(model, setting, data)
    inputs, targets = data.text.batch(slice(0, window), rows, slice(None), None)

    def run() -> None:
        model.zero_grad()
        objective(inputs, targets).backward()

    return run


def penalty_named(name: str, scale: str) -> Callable[[], object]:
    """Values and gradients of the mean squared difference of the logits of two passes, three ways."""
    torch.manual_seed(0)
    setting = task("ptb").setting("plain", scale)
    model = AWDLSTM(WORDS, setting["size"], 8, 2)
    head, shape = VocabularyHead(model), (setting["batch"], setting["window"], 2 * setting["size"])
    one, other = (torch.randn(shape, requires_grad=True) for _ in range(2))

    def logits(outputs: Tensor) -> Tensor:
        return torch.nn.functional.linear(head.split(outputs)[0], model.table, model.bias)

    ways: dict[str, Callable[[], Tensor]] = {
        "no logits at all (the lab's)": lambda: head.squared_error(one, other),
        "sp.squared_error on logits, in pieces": lambda: sp.squared_error(logits(one), logits(other), reduction="mean"),
        "(a - b).pow(2).mean() on logits": lambda: (logits(one) - logits(other)).pow(2).mean((1, 2)),
    }
    return lambda: ways[name]().mean().backward()


PENALTIES = [
    "(a - b).pow(2).mean() on logits", "sp.squared_error on logits, in pieces", "no logits at all (the lab's)",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", default="small,paper")
    parser.add_argument("--what", default="step,penalty,memory")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    names = options.methods.split(",")
    for scale in options.scales.split(","):
        setting = task("ptb").setting("plain", scale)
        print(
            f"\n{scale}: T = {setting['window']}, B = {setting['batch']}, {setting['layers']} layers of {setting['hidden']}, "
            f"word vectors of {setting['size']}, {WORDS:,} words"
        )
        if "step" in options.what:
            reference, *others = ((name, step_named(name, scale)) for name in names)
            for name, ratio in interleave(reference, dict(others), options.rounds, 1).items():
                print(ratio.row(METHODS[name]), flush=True)
        if "penalty" in options.what:
            reference, *others = ((name, penalty_named(name, scale)) for name in PENALTIES)
            for ratio in interleave(reference, dict(others), options.rounds, 1).values():
                print(ratio.row(), flush=True)
        if "memory" in options.what:
            memory(penalty_named, PENALTIES, scale)
            memory(step_named, ["plain", "fraternal_dropout", "adversarial_dropout", "r_drop"], scale)


if __name__ == "__main__":
    main()
