"""One model, one thread at a time."""

import threading

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.passes import wrapped


class Meeting(nn.Module):
    """Lets another thread in while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.meanwhile = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        if self.meanwhile is not None:
            other, self.meanwhile = threading.Thread(target=self.meanwhile), None
            other.start()
            other.join()
        return x


def test_a_second_thread_is_refused_and_the_first_goes_on() -> None:
    model = Meeting()
    x, y = torch.randn(4, 3), torch.arange(4) % 3
    objective = sp.recipes.vat(model, sp.cross_entropy, "inner")
    torch.manual_seed(1)
    expected = objective(x, y).detach()
    caught: list[BaseException] = []

    def intrude() -> None:
        try:
            sp.Objective(model, sp.cross_entropy)(x, y)
        except RuntimeError as error:
            caught.append(error)

    torch.manual_seed(1)
    model.meanwhile = intrude
    assert torch.equal(objective(x, y).detach(), expected)
    assert "copy.deepcopy" in str(caught[0])
    assert not any(m._forward_hooks or "forward" in m.__dict__ for m in model.modules())


def test_threads_may_take_turns_and_an_error_frees_the_model() -> None:
    model = Meeting()
    objective = sp.recipes.vat(model, sp.cross_entropy, "inner")
    with pytest.raises(RuntimeError):
        objective(torch.randn(4, 5), torch.zeros(4, dtype=torch.long))
    done: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: done.append(objective(torch.randn(4, 3), torch.arange(4) % 3)))
    thread.start()
    thread.join()
    assert torch.isfinite(done[0])


@pytest.mark.parametrize("processes", [0, 1])
def test_where_there_is_one_process_nobody_searches_for_a_wrapper(
    processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search looks at every object there is."""
    monkeypatch.setattr(wrapped.dist, "is_initialized", lambda: processes > 0)
    monkeypatch.setattr(wrapped.dist, "get_world_size", lambda: processes)
    monkeypatch.setattr(wrapped.gc, "get_objects", lambda: pytest.fail("every object was looked at"))
    assert wrapped.wrapper_of(nn.Linear(1, 1)) is None
