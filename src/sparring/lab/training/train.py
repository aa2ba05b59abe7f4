"""The training loop: the same code on one core, under `torchrun` and under `accelerate launch`.

The part to read is `train`; `Session` holds what it moves and turns it into a checkpoint and back.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor, nn

from ...nn.randomness import devices_of, put_back
from ...objective import Objective
from ..data.batches import epoch
from ..errors import LabError
from ..streamed import Streamed
from ..task import Data, Setting, Task, Trainable
from ..text import Memory
from .denormals import flushed
from .items import Count, Items
from .progress import Progress
from .randomness import random_state, restore_random_state
from .settings import check
from .sharing import shared
from .stream import Stream
from .updates import Update


@dataclass
class Session:
    """Everything one run moves: weights, optimiser, random states, position."""

    task: Task
    setting: Setting
    data: Data
    model: nn.Module
    objective: Trainable | None
    accelerator: Accelerator
    progress: Progress = field(default_factory=Progress)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    settled: bool = True  # no gradients are waiting for an update: a checkpoint can be taken
    started: bool = False  # all of the model comes from a stage, whose score the epochs have to beat

    def __post_init__(self) -> None:
        check(self.setting.values)
        self.check_use()
        self.memory = Memory(self.model) if self.data.text else None
        self.labelled = Stream(len(self.data.train), self.setting.seed * 100_003)
        self.unlabelled = Stream(len(self.data.unlabelled or ()), self.setting.seed * 100_003 + 50_021)
        self.per_epoch = len(self.plan(0))
        count, group = self.setting["epochs"], self.setting["accumulate"]
        lengths = [len(self.plan(k)) for k in range(count)] if self.data.text else [self.per_epoch] * count
        self.total = sum(lengths)
        updates = sum(-(-length // group) for length in lengths)  # the last update of an epoch may be of fewer batches
        self.update = Update(self.model, self.setting, updates, self.accelerator)
        several = group > 1 and not getattr(self.objective, "update_each_loss", False)
        self.items = Items(self.accelerator, several or self.accelerator.num_processes > 1)
        self.model.register_forward_pre_hook(self.count_pass)

    def check_use(self) -> None:
        """Refuse what the user set for the loop and this task's data have no use for."""
        of_text = "reads a text window by window; its batches are shaped by batch and window"
        useless = {
            "unlabelled_batch": self.data.unlabelled is None and "has no unlabelled data",
            "epoch_batches": self.data.text is not None and of_text,
            "tokens": self.data.text is not None and of_text,
        }
        for name, why in useless.items():
            if why and self.setting.overrides.get(name):
                raise LabError(f"{name}={self.setting[name]} means nothing here: {self.setting.task} {why}")

    def count_pass(self, module: nn.Module, arguments: Any) -> None:
        self.progress.passes += module.training

    def plan(self, number: int) -> Sequence[Any]:
        """The examples of every batch of an epoch, those of all processes together."""
        train, processes = self.data.train, self.accelerator.num_processes
        size, tokens = self.setting["batch"] * processes, self.setting["tokens"] * processes
        if self.data.text:
            return self.windows(number)
        if isinstance(train, Streamed):
            count = self.setting["epoch_batches"]
            return train.plan(number * (count * size or len(train)), count or -(-len(train) // size), size, not count)
        if count := self.setting["epoch_batches"]:
            return [self.labelled.draw((number * count + k) * size, size) for k in range(count)]
        try:
            return epoch(len(train), size, self.setting.seed * 100_003 + number, train.lengths, tokens, processes)
        except ValueError as error:
            raise LabError(str(error)) from error

    def windows(self, number: int) -> Sequence[slice]:
        """The windows of an epoch of the text."""
        assert self.data.text is not None
        try:
            return self.data.text.windows(
                self.setting["batch"] * self.accelerator.num_processes, self.setting.seed, number
            )
        except ValueError as error:
            raise LabError(str(error)) from error

    def batches(self) -> Iterator[Any]:
        """The index of each batch of this epoch that is still to come: this process's share of it.

        The order depends on the seed and the epoch alone, so methods, resumed runs and other numbers of processes see
        the same examples together.
        """
        p, rank = self.progress, self.accelerator.process_index
        plan = self.plan(p.epoch)
        self.per_epoch = len(plan)
        for index in plan[p.batch :]:
            if self.data.text:
                yield index
                continue
            share = -(-len(index) // self.accelerator.num_processes)
            yield index[rank * share : (rank + 1) * share]

    def more(self) -> dict[str, Any]:
        """The unlabelled inputs of the step to come, as the objective takes them; nothing where there are none."""
        share, split = self.setting["unlabelled_batch"], self.data.unlabelled
        if split is None or not share:
            return {}
        size, rank = share * self.accelerator.num_processes, self.accelerator.process_index
        index = self.unlabelled.draw(self.progress.step * size, size)[rank * share : (rank + 1) * share]
        return {"unlabelled": send_to_device(split.batch(index)[0], self.accelerator.device)}

    def batch(self, index: Any) -> tuple[Any, Any]:
        """The examples of an index as `(inputs, targets)`, on the device."""
        share, rank = self.setting["batch"], self.accelerator.process_index
        if self.data.text and self.memory:
            carried = self.memory.begin(first=self.progress.batch == 0)
            found = self.data.text.batch(
                index, share * self.accelerator.num_processes, slice(rank * share, (rank + 1) * share), carried
            )
        else:
            found = self.data.train.batch(index)
        inputs, targets = send_to_device(found, self.accelerator.device)
        return inputs, targets

    def losses(self, inputs: Any, targets: Any) -> Iterator[Tensor]:
        """The objective's losses, computed in the precision asked for (the backward passes happen outside of it)."""
        assert self.objective is not None
        low = self.setting["precision"] == "bf16" or self.accelerator.mixed_precision == "bf16"
        steps = self.objective.steps(inputs, targets, **self.more())
        while True:
            with torch.autocast(self.accelerator.device.type, torch.bfloat16) if low else nullcontext():
                loss = next(steps, None)
            if loss is None:
                return
            if loss.device.type == "cpu":  # an accelerator is asked now and then, with all losses at once
                self.progress.refuse(float(loss.detach()), self.progress.batch + 1)
            yield loss

    def counted(self, index: Any) -> Count:
        """What the loss just computed is a mean over; a method that does not say so means its examples (words of a text)."""
        count: Count | None = getattr(self.objective, "counted", None)
        examples = index.stop - index.start if isinstance(index, slice) else len(index)
        return examples if count is None else count

    def last_before_update(self, number: int, targets: Any) -> AbstractContextManager[None]:
        """Where loss `number` of a step is back-propagated: gradients leave for the other processes if an update follows it.

        A method that is no `sparring.Objective` does not say how many losses it has; its gradients leave at the update.
        """
        objective = self.objective
        parts = objective.parts(targets) if isinstance(objective, Objective) else 0
        if objective is not None and (objective.update_each_loss or (self.settled and number == parts - 1)):
            return self.update.gradients.leaving()
        return nullcontext()

    def state(self) -> dict[str, Any]:
        """Two trees for `checkpoint.save`. Every process must call it, the main one writes."""
        for term in getattr(self.objective, "stateful", ()):
            if hasattr(term, "follow"):
                term.follow()  # SMART's average would take in the last update at the next step: it must be in the file
        owner = self.objective if isinstance(self.objective, nn.Module) else self.model
        state = {
            "model": dict(owner.state_dict()),
            "update": self.update.state_dict(),
            "random": random_state(self.accelerator),
            "progress": self.progress.state(),
            "carried": self.of_each(self.memory.carried if self.memory else None),
            "own": self.of_each(self.own_terms()),
        }
        return {"state": state, "best": dict(self.best_weights)}

    def own_terms(self) -> dict[str, Tensor]:
        """The state of terms that carry something of this process's own examples along (FreeAT)."""
        terms = enumerate(getattr(self.objective, "stateful", ()))
        own = [(f"stateful.{place}.", term) for place, term in terms if hasattr(term, "carried")]
        return {name: tensor for prefix, term in own for name, tensor in term.state_dict(prefix=prefix).items()}

    def of_each(self, own: Any) -> list[Any]:
        """What each process holds, in the order of their ranks; every process must call it."""
        if self.accelerator.num_processes == 1:
            return [own]
        every: list[Any] = [None] * self.accelerator.num_processes
        torch.distributed.all_gather_object(every, own)
        return every

    def restore(self, parts: dict[str, Any]) -> None:
        """The inverse of `state`."""
        state = parts["state"]
        owner = self.objective if isinstance(self.objective, nn.Module) else self.model
        rank, own = self.accelerator.process_index, state.get("own", [])
        owner.load_state_dict({**state["model"], **(own[rank] if rank < len(own) else {})})
        self.update.load_state_dict(state["update"])
        self.progress, self.best_weights = Progress(**state["progress"]), parts["best"]
        if self.memory:
            carried = state["carried"][rank]
            self.memory.carried = send_to_device(carried, self.accelerator.device)
        restore_random_state(state["random"], self.accelerator)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; mode and random state as they were afterwards."""
    training = model.training
    model.eval()
    try:
        with put_back(*devices_of(model)):
            yield
    finally:
        model.train(training)


def score(session: Session, split: str) -> dict[str, float]:
    """The task's figures on a split."""
    chosen = getattr(session.data, split) or session.data.validation
    ranks = session.accelerator.num_processes, session.accelerator.process_index
    with undisturbed(session.model), torch.no_grad(), shared(session.model, *ranks):
        torch.manual_seed(session.setting.seed)  # sampled predictions are the same whenever they are scored
        return session.task.evaluate(session.model, chosen, session.setting)


def signed(task: Task, scores: dict[str, float]) -> float:
    """The deciding figure, turned so that smaller is better."""
    return scores[task.score] * (1 if task.better == "lower" else -1)


def keep_best(session: Session, scores: dict[str, float]) -> None:
    """Remember the weights of the best epoch so far."""
    p, value = session.progress, scores[session.task.score]
    sign = 1 if session.task.better == "higher" else -1
    if p.best is None or math.isnan(p.best) or sign * value > sign * p.best:  # anything is better than undefined
        p.best, p.best_epoch = value, p.epoch
        session.best_weights = {name: tensor.clone() for name, tensor in session.model.state_dict().items()}


@flushed()
def train(
    session: Session,
    after_batch: Callable[[], None] = lambda: None,
    after_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> None:
    """Train to the last epoch, or until `patience` epochs brought nothing better."""
    setting, p, accelerator, objective = session.setting, session.progress, session.accelerator, session.objective
    session.model.train()
    if isinstance(objective, nn.Module):
        objective.train()
    if session.started and p.best is None:
        keep_best(session, score(session, "validation"))
    rates: list[float] = []  # of the batches since the last update
    while objective and p.epoch < setting["epochs"] and not 0 < setting["patience"] <= p.epoch - p.best_epoch:
        for index in session.batches():
            started = time.process_time()
            inputs, targets = session.batch(index)
            rates.append(session.data.text.rate(index) if session.data.text else 1.0)
            session.settled = (p.batch + 1) % setting["accumulate"] == 0 or p.batch + 1 == session.per_epoch
            losses: list[Tensor] = []
            for loss in session.losses(inputs, targets):
                if not losses or objective.update_each_loss:
                    factor = session.items.add(session.counted(index))
                with session.last_before_update(len(losses), targets):
                    # accelerate divides every loss by the number of batches to accumulate, whatever they hold
                    accelerator.backward(loss * (factor * accelerator.gradient_accumulation_steps))
                losses.append(accelerator.reduce(loss.detach().clone(), reduction="mean"))
                if objective.update_each_loss:
                    session.update(rates[-1], session.items.taken())
            if session.settled and not objective.update_each_loss:
                session.update(sum(rates) / len(rates), session.items.taken())
            if session.settled:
                session.update.schedule.step()
                rates.clear()
            p.seconds += time.process_time() - started
            p.add(losses, dict(objective.diagnostics) if p.reads_notes(accelerator.device) else None)
            after_batch()
        record = p.close_epoch()
        session.update.average.close_epoch()
        with session.update.average.placed():
            record["validation"] = score(session, "validation")
            keep_best(session, record["validation"])
            after_epoch(record)
        session.update.average.watch(signed(session.task, record["validation"]))
