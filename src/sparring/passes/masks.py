"""Which positions count: padding at the sites, padding and ignored labels at the outputs, source and target kept apart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.matching import pattern

ValidMask = Tensor | Mapping[str, Tensor | None] | None
SIDES = ("source", "target")


def sides_of(model: nn.Module) -> dict[nn.Module, str]:
    """The encoder and the decoder of a model that has both: what fires inside them belongs to the source or the target."""
    if isinstance(model, nn.Transformer):
        return {model.encoder: "source", model.decoder: "target"}
    encoder, decoder = getattr(model, "get_encoder", None), getattr(model, "get_decoder", None)
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or not callable(encoder) or not callable(decoder):
        return {}
    found = {encoder(): "source", decoder(): "target"}
    return {module: side for module, side in found.items() if isinstance(module, nn.Module) and module is not model}


def ignored_label(loss: Callable[..., Any]) -> int:
    """The label that marks positions to leave out, as the loss knows it; -100 everywhere else."""
    while isinstance(loss, partial):
        if "ignore_index" in loss.keywords:
            return int(loss.keywords["ignore_index"])
        loss = loss.func
    found = getattr(loss, "ignore_index", -100)
    return found if isinstance(found, int) else -100


@dataclass
class Masks:
    """The masks of one batch.

    Attributes:
        given: as the user gave them: one for everything, or by slot-name pattern, "source", "target" and "outputs".
        found: by side, from `attention_mask` and `decoder_attention_mask` among keyword inputs.
        two_sided: the model has an encoder and a decoder.
        targets: token labels may leave out positions of their own.
        ignore: the label that does so.
        joint: examples without labels follow the labelled ones; what is charged for the latter alone takes the first rows.
    """

    given: ValidMask
    found: dict[str, Tensor]
    two_sided: bool
    targets: Any = None
    ignore: int = -100
    joint: bool = False

    @cached_property
    def all_count(self) -> bool:
        """Nothing was given or found, and the targets are one per example: every output counts."""
        return (
            self.given is None and not self.found and not (isinstance(self.targets, Tensor) and self.targets.dim() > 1)
        )

    @classmethod
    def of(
        cls, given: ValidMask, inputs: Any, targets: Any, two_sided: bool, ignore: int, joint: bool = False
    ) -> "Masks":
        """Look for masks by name among keyword inputs; what the user gave counts before them."""
        found: dict[str, Tensor] = {}
        if given is None and not isinstance(inputs, Tensor) and isinstance(inputs, Mapping):
            for side, key in zip(SIDES, ("attention_mask", "decoder_attention_mask")):
                mask = inputs.get(key)
                if isinstance(mask, Tensor) and mask.dim() == 2:
                    found[side] = mask.bool()
        if isinstance(given, Tensor) and two_sided:
            raise ValueError(
                'valid= is one mask, but the model has an encoder and a decoder: give valid={"source": ..., "target": ...}'
            )
        return cls(given, found, two_sided, targets, ignore, joint)

    def at_slot(self, name: str, value: Tensor, own: Tensor | None, side: str) -> Tensor | None:
        """The padding mask of a slot, shaped to broadcast against it.

        One given by name counts before the one a site knows itself, and that before one given for everything.
        """
        if self.given is None and not self.found:
            return own
        if isinstance(self.given, Mapping):
            mask = self._named(name.partition("#")[0], side)
            if mask is None:
                return own
        else:
            mask = self.given if self.given is not None else self.found.get(side)
            if own is not None:
                return own
            if mask is None or value.dim() < 2 or value.shape[: mask.dim()] != mask.shape:
                return None
            if value.dim() == mask.dim() and name != "input":
                return None  # (B, units) in the mask's shape by chance: only the model's own input is (B, T) by itself
        mask = mask.bool()
        if value.shape[: mask.dim()] != mask.shape:
            raise ValueError(
                f"valid mask of shape {tuple(mask.shape)} does not fit {name} of shape {tuple(value.shape)}"
            )
        return mask.view(*mask.shape, *(1,) * (value.dim() - mask.dim()))

    def at_outputs(self, outputs: Tensor) -> Tensor | None:
        """The positions of the outputs that count (B, T, ...): neither padding nor without a label. None if all do."""
        mask = self._padding(outputs)
        targets = self.targets
        if (
            isinstance(targets, Tensor)
            and outputs.dim() > 2
            and targets.shape[1:] == outputs.shape[1:-1]
            and len(targets) <= len(outputs)
            and not targets.is_floating_point()
        ):
            labelled = targets != self.ignore
            if len(labelled) < len(outputs):  # examples without labels follow the labelled ones
                rest = labelled.new_ones(len(outputs) - len(labelled), *labelled.shape[1:])
                labelled = torch.cat([labelled, rest])
            mask = labelled if mask is None else mask & labelled
        return mask

    def _padding(self, outputs: Tensor) -> Tensor | None:
        if isinstance(self.given, Mapping):
            if "outputs" in self.given:
                mask = self.given["outputs"]
                return None if mask is None else mask[: len(outputs)].bool() if self.joint else mask.bool()
            mask = self.given.get("target") if self.two_sided else None
        else:
            mask = self.given if self.given is not None else self.found.get("target" if self.two_sided else "source")
        if mask is not None and self.joint:
            mask = mask[: len(outputs)]
        if mask is None or outputs.dim() <= mask.dim() or outputs.shape[0] != mask.shape[0]:
            return None
        if outputs.shape[: mask.dim()] != mask.shape:
            raise ValueError(
                f"the outputs have shape {tuple(outputs.shape)} but the padding mask {tuple(mask.shape)}: say which positions of "
                'the outputs count, valid={"outputs": mask} (mask[:, 1:] for logits[:, :-1]), or valid={"outputs": None} for all'
            )
        return mask.bool()

    def _named(self, name: str, side: str) -> Tensor | None:
        assert isinstance(self.given, Mapping)
        for glob, mask in self.given.items():
            if glob != "outputs" and pattern(glob).fullmatch(name):
                return mask
        return self.given.get(side) if self.two_sided else None
