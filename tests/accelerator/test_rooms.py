"""The examples in the docstrings of every room, with all tensors and modules made on the pretended accelerator.

They print what they print on the CPU: attacks, audit, certificates, metrics, `predict`, layers, ensembles and the parts of objectives.
"""

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest
import torch

import sparring
from accelerator.device import Device, one_generator

ROOMS = ("attacks", "metrics", "nn", "ensembles", "predict", "estimators", "players", "terms", "sites", "balls", "penalties", "losses",
         "recipes", "objective", "passes", "late")  # fmt: skip
LONG = ("sparring.metrics.audit.audit", "sparring.metrics.audit.report", "sparring.metrics.robustness")
HOST = {  # whose examples are about the host, and why
    "sparring.attacks.toolbox": "the toolbox's attacks run on NumPy arrays",
    "sparring.nn.recurrent.gates": "needs Triton",
}


def _modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(sparring.__path__, "sparring."):
        if found.name.split(".")[1] in ROOMS and found.name not in HOST:
            yield found.name


def _examples() -> list[object]:
    finder, cases = doctest.DocTestFinder(exclude_empty=True), []
    for name in _modules():
        for test in finder.find(importlib.import_module(name), name):
            if test.examples:
                cases.append(pytest.param(test, id=test.name, marks=[pytest.mark.long] if name in LONG else []))
    return cases


class Checker(doctest.OutputChecker):
    """Says nothing about where a printed tensor lies, which is also what makes its line too long."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        got = re.sub(r",\s*device='pretend:0'(,\s*)?", lambda found: ", " if found[1] else "", got)
        got = re.sub(r"device\(type='pretend', index=0\)", "device(type='cpu')", got)
        return super().check_output(want, got, optionflags)


@pytest.mark.parametrize("example", _examples())
def test_an_example_prints_the_same(example: doctest.DocTest, pretend: Device) -> None:
    said: list[str] = []
    runner = doctest.DocTestRunner(Checker(), verbose=False, optionflags=doctest.ELLIPSIS)
    before = torch.get_default_device()
    torch.set_default_device("pretend")
    try:
        with one_generator():
            runner.run(example, out=said.append, clear_globs=False)
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)
    assert runner.failures == 0, "".join(said)
