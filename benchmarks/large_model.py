"""SALT on a 12-layer transformer of 100 million parameters: the most memory that the process ever held (`ru_maxrss`).

python benchmarks/large_model.py [--steps 1] [--batch 4] [--length 64]
"""

import argparse
import resource
import time

import torch
from torch import nn

import sparring as sp
from bench_growth import CLASSES, WORDS, Encoder, Size


def held() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Encoder(Size(layers=12, width=832))
    count = sum(p.numel() for p in model.parameters())
    objective = sp.recipes.salt(model, sp.cross_entropy, "embedding", steps=options.steps)
    tokens = torch.randint(WORDS, (options.batch, options.length))
    before, started = held(), time.process_time()
    loss = objective(tokens, torch.randint(CLASSES, (options.batch,)))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    print(
        f"{count / 1e6:.1f} million parameters, batch ({options.batch}, {options.length}), salt K = {options.steps}: "
        f"{before:.2f} GiB before the step, at most {held():.2f} GiB, {time.process_time() - started:.1f} s CPU"
    )


if __name__ == "__main__":
    main()
