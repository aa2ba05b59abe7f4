"""What the defaults of `salt` and `vat` do on text: test accuracy, three seeds (SPARRING_DATA names the folder of data).

python examples/default_followers.py lstm     # 2,000 sentences of SST, BiLSTM with attention: SALT at the word vectors, 0.5 away
python examples/default_followers.py scores   # the same network: VAT's first look and SALT, at the attention scores, 5 away
python examples/default_followers.py minilm   # MiniLM fine-tuned on 320 sentences of SST-2: SALT at its word vectors, 1 away

SALT is to be compared with the same ascent as a constant (`interaction=0`).
"""

import argparse
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import sparring as sp
from sparring.lab import registry
from sparring.lab.training.updates import make_optimiser
from sparring.passes import call, logits_of

Make = Callable[[nn.Module], sp.Objective]


def salt(site: Any, radius: float, **words: Any) -> Make:
    return lambda model: sp.recipes.salt(model, sp.cross_entropy, site(model), ball=sp.L2(radius), **words)


def vat(site: Any, radius: float, **words: Any) -> Make:
    return lambda model: sp.recipes.vat(model, sp.cross_entropy, site(model), ball=sp.L2(radius), **words)


def words_of(model: Any) -> sp.Output:
    table = model.get_input_embeddings()
    return sp.Output(next(name for name, module in model.named_modules() if module is table))


def plain(model: nn.Module) -> sp.Objective:
    return sp.Objective(model, sp.cross_entropy)


def followers(site: Any, radius: float) -> dict[str, Make]:
    return {
        "plain": plain,
        "random noise": lambda model: sp.recipes.salt(model, sp.cross_entropy, site(model), by=sp.Noise(sp.L2(radius))),
        "salt(interaction=0)": salt(site, radius, interaction=0.0),
        "salt()": salt(site, radius),
    }


def looks(site: Any, radius: float) -> dict[str, Make]:
    found = {f"vat(start={share:g} radii)": vat(site, radius, start=share * radius) for share in (0.02, 0.2, 1, 5)}
    return {**found, **followers(site, radius)}


PARTS: dict[str, tuple[str, dict[str, Any], dict[str, Make]]] = {
    "lstm": ("sst", {"examples": 2000}, followers(lambda model: sp.Words("embedding"), 0.5)),
    "scores": ("sst", {"examples": 2000}, looks(lambda model: sp.Scores("attention"), 5.0)),
    "minilm": ("sst-2", {"examples": 320, "epochs": 3, "batch": 16, "length": 32}, followers(words_of, 1.0)),
}


def accuracy(task: Any, setting: Any, data: Any, make: Make, seed: int) -> float:
    """Per cent right on the test sentences after training."""
    torch.manual_seed(seed)
    model = task.build(setting, data)
    objective = make(model)
    optimiser = make_optimiser(model, setting)
    for _ in range(setting["epochs"]):
        for index in torch.randperm(len(data.train)).split(setting["batch"]):
            inputs, targets = data.train.batch(index)
            optimiser.zero_grad()
            objective(inputs, targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, targets in data.test.batches(64):
            right += int((logits_of(call(model, inputs)).argmax(-1) == targets).sum())
    return 100 * right / len(data.test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default="", help="only those whose name begins so")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, overrides, table = PARTS[given.part]
    task = registry.task(name)
    setting = task.setting("plain", "small", overrides=overrides)
    run = partial(accuracy, task, setting, task.load(setting))
    for what, make in table.items():
        if not what.startswith(given.rows):
            continue
        found = [run(make, seed) for seed in range(given.seeds)]
        print(f"{what:<24} {statistics.mean(found):5.1f}  {' '.join(f'{f:.1f}' for f in found)}", flush=True)


if __name__ == "__main__":
    main()
