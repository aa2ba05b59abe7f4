"""Data that stream: every pass in order, shared among processes, found again by a resumed run; and files mapped into memory."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from sparring.lab.errors import Interrupted, LabError
from sparring.lab.registry import task
from sparring.lab.runs import checkpoint
from sparring.lab.runs.run import execute, prepare
from sparring.lab.streamed import Streamed
from sparring.lab.task import Setting
from sparring.lab.training.train import Session, train

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "streaming_task.py")


def setting_of(method: str = "plain", **changes: object) -> Setting:
    return task(EXAMPLE).setting(method, overrides=changes)


class Numbers(IterableDataset):
    """Ten numbers, another ten in every pass."""

    epoch = -1

    def set_epoch(self, number: int) -> None:
        self.epoch = number

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return ((torch.tensor([100.0 * self.epoch + n]), n) for n in range(10))


def read(split: Streamed, places: Any) -> list[float]:
    return split.batch(places)[0].flatten().tolist()


def test_places_count_on_over_the_passes() -> None:
    split = Streamed(Numbers(), count=10)
    assert read(split, torch.arange(8, 13)) == [8, 9, 100, 101, 102]
    assert read(split, torch.tensor([15, 17])) == [105, 107]
    assert read(split, torch.arange(3)) == [0, 1, 2]  # behind: read again from the start
    assert [len(x) for x, _ in split.batches(4)] == [4, 4, 2]
    assert read(replace(split, collate=lambda x, y: (x + 0.5, y)), torch.arange(2)) == [0.5, 1.5]


def test_a_source_that_is_too_short_and_one_without_a_number_are_refused() -> None:
    with pytest.raises(LabError, match=r"ended after 10 examples of pass 0, and count=11"):
        Streamed(Numbers(), count=11).batch(torch.tensor([10]))
    with pytest.raises(LabError, match=r"Streamed\(count=0\): say how many"):
        Streamed(Numbers())
    with pytest.raises(LabError, match="neither targets= nor lengths="):
        Streamed(Numbers(), torch.zeros(3), count=3)


def seen(rank: int = 0, processes: int = 1, **changes: object) -> list[torch.Tensor]:
    """The batches that one of several processes trains on."""
    session = prepare(setting_of(epochs=2, **changes))

    class Ranked:
        process_index, num_processes = rank, processes

        def __getattr__(self, name: str) -> Any:
            return getattr(session_accelerator, name)

    session_accelerator = session.accelerator
    session.accelerator = Ranked()  # type: ignore[assignment]
    found = []
    for epoch in range(2):
        session.progress.epoch = epoch
        found += [session.data.train.batch(index)[0] for index in session.batches()]
    return found


@pytest.mark.parametrize("changes", [{"examples": 70}, {"examples": 70, "epoch_batches": 5}], ids=str)
def test_two_processes_share_what_one_reads(changes: dict[str, object]) -> None:
    alone = seen(batch=32, **changes)
    shares = [seen(rank, 2, batch=16, **changes) for rank in (0, 1)]
    assert all(torch.equal(a, torch.cat([b, c])) for a, b, c in zip(alone, *shares, strict=True))
    assert [len(x) for x in alone] == ([32, 32, 6] * 2 if "epoch_batches" not in changes else [32] * 10)


@pytest.mark.parametrize("method", ["plain", "vat"])
def test_a_run_stopped_between_two_batches_goes_on_to_the_same_weights(tmp_path: Path, method: str) -> None:
    setting = setting_of(method)
    whole = execute(setting, tmp_path / "whole")

    def stop(session: Session) -> None:
        if session.progress.step == 14:  # the fourth batch of the second epoch
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        execute(setting, tmp_path / "cut", watch=stop)
    assert execute(setting, tmp_path / "cut")["test"] == whole["test"]
    first, second = (checkpoint.load(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(first["best"][name], second["best"][name]) for name in first["best"])


def test_the_loop_reads_each_pass_once_and_holds_one_batch() -> None:
    session = prepare(setting_of(epochs=2, examples=64))
    source, drawn = session.data.train.inputs, []

    def counted(number: int) -> Iterator[Any]:
        for example in source(number):
            drawn.append(number)
            yield example

    session.data = replace(session.data, train=Streamed(counted, count=64))
    train(session)
    assert drawn == [0] * 64 + [1] * 64
