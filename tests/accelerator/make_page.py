"""Write the table of docs/accelerators.md from what the methods do: `python tests/accelerator/make_page.py`."""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from accelerator.waiting import table

PAGE = Path(__file__).parents[2] / "docs" / "accelerators.md"
BEGIN, END = "<!-- made by tests/accelerator/make_page.py -->\n", "<!-- end -->"


def main() -> None:
    """Put the table between its marks."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
