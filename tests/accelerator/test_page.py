"""The table of docs/accelerators.md lists every method, with the waits that `test_methods` finds."""

import re

from accelerator.make_page import PAGE
from accelerator.waiting import BUDGET, CASES


def test_the_page_has_a_row_for_every_method() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| [^|]+ \| (\d+) \|$", PAGE.read_text(), re.MULTILINE))
    assert {name: int(count) for name, count in rows.items()} == {m.name: BUDGET.get(m.name, 0) for m, _ in CASES}
