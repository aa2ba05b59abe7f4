"""Write docs/zoo.md from what the models of the zoo really do: `python tests/zoo/make_page.py [NAME ...]`."""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from specimens import SPECIMENS
from table import METHODS, PAGE, page, read_page, verdict

import sparring as sp


def main(names: list[str]) -> None:
    """All rows, or the named ones alone beside those that stand there already."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seen: list = []
    finish = sp.Objective._finish

    def spy(self, step, total):
        seen.append(step)
        finish(self, step, total)

    sp.Objective._finish = spy  # type: ignore[method-assign]
    known = read_page() if PAGE.exists() else {}
    verdicts, broken = {}, []
    for specimen in SPECIMENS:
        if names and specimen.name not in names and specimen.name in known:
            verdicts[specimen.name] = known[specimen.name]
            continue
        cells = verdicts[specimen.name] = {}
        for method in METHODS:
            del seen[:]
            try:
                cells[method] = verdict(specimen, method, lambda: seen)
            except Exception as error:
                cells[method] = "BROKEN"
                broken.append(f"{specimen.name} x {method}: {type(error).__name__}: {str(error)[:300]}")
    if broken:
        raise SystemExit("\n".join(broken))
    PAGE.write_text(page(verdicts))


if __name__ == "__main__":
    main(sys.argv[1:])
