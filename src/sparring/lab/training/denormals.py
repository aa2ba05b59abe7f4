"""Numbers too small to be worth their time.

Gradients that fade over a long sequence end below 1e-38, where a processor needs a hundred cycles for every product: the
backward pass of an LSTM of 256 units over 200 steps, asked for its last state only, takes 18 times as long.

>>> import torch
>>> with flushed():
...     float(torch.tensor([1e-20]) * 1e-20)
0.0
>>> 0 < float(torch.tensor([1e-20]) * 1e-20)
True
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed() -> Iterator[None]:
    """Results below the smallest normal number are zero inside; as it was before, afterwards."""
    before = float(torch.tensor([1e-20]) * 1e-20) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
