"""The site of learnable masks: it keeps the uniforms of the clean pass, which antithetic estimators ask for."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from ..nn import BernoulliDropout
from ..nn.matching import match
from ..nn.randomness import CPU, RandomState, current
from .mask import Mask
from .site import EVERYWHERE, Slot, Undo, Visit, patch_forward


@dataclass(frozen=True)
class Draw:
    """How a multiplier came about: its uniforms, and the random state that drawing them left behind."""

    uniform: Tensor
    after: RandomState


def draw_of(multiplier: Tensor) -> Draw | None:
    """The draw behind a multiplier of a clean pass, if a `LearnedMask` made it."""
    return getattr(multiplier, "_draw", None)


@dataclass(frozen=True)
class LearnedMask(Mask):
    """The masks of `BernoulliDropout` layers only, whatever other dropout the model has.

    Later passes that place masks of their own need not draw the clean ones again: inside `repeating` a layer gets its
    clean multiplier back and the random state moves on as if it had been drawn.

    >>> import torch, sparring as sp
    >>> model = nn.Sequential(sp.nn.BernoulliDropout(2))
    >>> outputs, seen = sp.perturbed_call(model, {LearnedMask(): {}}, torch.ones(3, 2), record=True)
    >>> mask = seen[LearnedMask()]["0"]
    >>> torch.equal(mask, (draw_of(mask).uniform < 0.5).float())
    True
    """

    _past: dict[str, deque[Tensor]] = field(default_factory=dict, repr=False, compare=False)

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        return match(model, self.glob, lambda m: isinstance(m, BernoulliDropout), "BernoulliDropout")

    def install(self, name: str, module: nn.Module, visit: Visit) -> Undo:
        assert isinstance(module, BernoulliDropout)
        if not module.guided:
            module.guided = True

        def forward(input: Tensor) -> Tensor:
            value = self._multiplier(name or "mask", module, input)
            valid = EVERYWHERE if module.units.axis(input) == 1 else None
            return input * visit(name or "mask", value, valid).to(input.dtype)

        return patch_forward(module, forward)

    @contextmanager
    def repeating(self, slots: Iterable[Slot]) -> Iterator[None]:
        """Within the block the layers repeat these clean slots, in order, instead of drawing."""
        for slot in slots:
            self._past.setdefault(slot.module, deque()).append(slot.value)
        try:
            yield
        finally:
            self._past.clear()

    def _multiplier(self, name: str, layer: BernoulliDropout, input: Tensor) -> Tensor:
        if not layer.training:
            return layer.draw(input)
        if self._past.get(name):
            value = self._past[name].popleft()
            draw = draw_of(value)
            if draw is not None:
                draw.after.restore()
                return value
        uniform = layer.uniform(input)
        value = layer.multiplier(uniform, input)
        devices = (CPU,) if input.device == CPU else (CPU, input.device)
        value._draw = Draw(uniform, current(devices))  # type: ignore[attr-defined]
        return value
