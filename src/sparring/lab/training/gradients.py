"""Average gradients over the processes while the backward pass that makes them still runs.

Not `DistributedDataParallel`: a method is anything with `steps`, may back-propagate several losses before an update, and need not be
a module.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 2**20  # numbers that travel together: large enough to be worth a message, small enough to leave early


class Bucket:
    """Gradients that travel in one message, and for each of them whether this process had any."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.waiting = len(parameters)
        self.work: Any = None
        self.flat: Tensor | None = None

    def send(self) -> None:
        """Start the sum over all processes."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flags = [float(p.grad is not None) for p in self.parameters]
        self.flat = torch.cat([part.flatten() for part in parts] + [parts[0].new_tensor(flags)])
        self.work = dist.all_reduce(self.flat, async_op=True)

    def receive(self, processes: int) -> None:
        """Wait for the sum, and put the mean into the parameters' gradients.

        A parameter that no process used keeps no gradient; one that some process used gets the mean over all of them.
        """
        assert self.flat is not None
        self.work.wait()
        count = len(self.parameters)
        means = self.flat[:-count] / processes
        unused = any(p.grad is None for p in self.parameters)
        used = self.flat[-count:].tolist() if unused else []  # an accelerator is asked only where the answer matters
        for place, (parameter, mean) in enumerate(
            zip(self.parameters, means.split([p.numel() for p in self.parameters]))
        ):
            if parameter.grad is not None:
                parameter.grad.copy_(mean.view_as(parameter))
            elif used[place] > 0:
                parameter.grad = mean.view_as(parameter).clone()
        self.waiting, self.work, self.flat = count, None, None


class Gradients:
    """The gradients of some parameters, averaged over all processes.

    Buckets leave in the same order everywhere, whatever order gradients arrive in and whether they arrive at all, so processes
    that use different parameters never mix them up.

    Args:
        parameters: of the model; the last ones are the first whose gradients are ready.
        processes: how many there are; with one, nothing is done.
    """

    def __init__(self, parameters: Sequence[Tensor], processes: int) -> None:
        self.parameters, self.processes = list(parameters), processes
        self.buckets: list[Bucket] = []
        self.known: list[int] = []
        self.next: int | None = None  # the bucket to leave next; None while nothing may leave

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """The backward pass inside is the last one before an update: what is ready may leave."""
        if self.processes == 1:
            yield
            return
        self._sort()
        self.next = 0
        try:
            yield
            self._send(everything=True)
        finally:
            self.next = None

    def settle(self) -> None:
        """Wait for all means; what has not left yet leaves now."""
        if self.processes == 1:
            return
        if not any(bucket.work for bucket in self.buckets):
            with self.leaving():
                pass
        for bucket in self.buckets:
            bucket.receive(self.processes)

    def _sort(self) -> None:
        """Make the buckets, anew where other parameters are to be trained than last time."""
        trained = [p for p in reversed(self.parameters) if p.requires_grad]
        if [id(p) for p in trained] == self.known:
            return
        self.known, self.buckets = [id(p) for p in trained], []
        own: list[Tensor] = []
        for parameter in trained:
            alike = own and own[0].dtype == parameter.dtype and own[0].device == parameter.device
            if own and not (alike and sum(p.numel() for p in own) < BUCKET):
                self.buckets.append(Bucket(own))
                own = []
            own.append(parameter)
        self.buckets += [Bucket(own)] if own else []
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                self._listen(parameter, bucket)

    def _listen(self, parameter: Tensor, bucket: Bucket) -> None:
        def arrived(_: Tensor) -> None:
            if self.next is not None and bucket in self.buckets:
                bucket.waiting -= 1
                self._send()

        parameter.register_post_accumulate_grad_hook(arrived)

    def _send(self, everything: bool = False) -> None:
        assert self.next is not None
        while self.next < len(self.buckets) and (everything or self.buckets[self.next].waiting == 0):
            self.buckets[self.next].send()
            self.next += 1
