"""Questions whose answers lie on an accelerator, asked without making the host wait for it.

A check such as "is any clean value outside the box?" needs one bit from the device, and fetching it there and then would stop the
host until the device has caught up. In its first step an objective asks at once. In later steps the bit is copied in the background
and looked at when the next step begins, or when somebody reads the diagnostics: an error or a warning comes late, and nothing waits.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PINNED = ("cuda", "xpu")  # a copy in the background needs page-locked memory there


@dataclass
class _Question:
    found: Tensor
    answer: Callable[[], None]
    arrived: Any

    @classmethod
    def sent(cls, found: Tensor, answer: Callable[[], None]) -> "_Question":
        events = getattr(torch.get_device_module(found.device), "Event", None)
        if events is None:  # no way to know when a copy has ended: ask when somebody waits anyway
            return cls(found, answer, None)
        here = torch.empty_like(found, device="cpu", pin_memory=found.device.type in PINNED)
        here.copy_(found, non_blocking=True)
        arrived = events()
        arrived.record()
        return cls(here, answer, arrived)


@dataclass
class Questions:
    """The open questions of one objective."""

    waiting: list[_Question] = field(default_factory=list)

    def settle(self, wait: bool = False) -> None:
        """Answer what has arrived; with `wait`, everything."""
        while self.waiting:
            first = self.waiting[0]
            if first.arrived is not None and wait:
                first.arrived.synchronize()
            elif not wait and (first.arrived is None or not first.arrived.query()):
                return
            del self.waiting[0]
            if bool(first.found):
                self._answer(first)

    def _answer(self, question: _Question) -> None:
        try:
            question.answer()
        except Exception:
            self.waiting.clear()  # the same step may have asked the same thing twice: it is refused once
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {"waiting": []}  # a copy of an objective has asked nothing yet


_listener: ContextVar[Questions | None] = ContextVar("questions", default=None)


class listening:
    """Inside, questions about an accelerator's tensors are left with `questions`; None answers them at once."""

    def __init__(self, questions: Questions | None) -> None:
        self.questions = questions

    def __enter__(self) -> None:
        self.token = _listener.set(self.questions)

    def __exit__(self, *_: object) -> None:
        _listener.reset(self.token)


def ask(found: Tensor, answer: Callable[[], None]) -> None:
    """Call `answer`, which warns or raises, if the scalar `found` is true: now, or later where asking would make the host wait.

    >>> ask(torch.tensor(1) > 0, lambda: print("more than none"))
    more than none
    """
    questions = _listener.get()
    if questions is not None and found.device.type != "cpu":
        questions.waiting.append(_Question.sent(found.detach(), answer))
    elif bool(found):
        answer()
