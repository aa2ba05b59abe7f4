"""Lightning with any recipe: a mixin for your module.

>>> import sparring as sp
>>> # class Digits(Sparring, lightning.LightningModule):
>>> #     def __init__(self, model):
>>> #         super().__init__()
>>> #         self.objective = sp.recipes.vat(model, sp.cross_entropy, ball=sp.L2(1.0))
>>> #     def configure_optimizers(self): ...

Nothing of Lightning is imported here, so it serves `lightning` and `pytorch_lightning` alike.
"""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..objective import Objective
from .agreement import check_ranks, of_this_rank

__all__ = ["Sparring"]

CARRIED = "sparring"


class Sparring:
    """Put before `LightningModule`: `training_step` is the objective's; everything else stays yours.

    Accumulation, mixed precision, clipping, schedulers and strategies are Lightning's own. Diagnostics are logged under `sparring/`,
    and the objective's state (averaged weights, carried perturbations) is in Lightning's checkpoints. FreeAT, which updates the
    parameters after every loss, runs in manual optimisation, where Lightning refuses accumulation and clipping by the Trainer.

    Attributes:
        objective: set it in your `__init__`; any recipe.
    """

    objective: Objective
    _agreed: int = 0

    def split_batch(self, batch: Any) -> tuple[Any, ...]:
        """What the objective is called with: inputs, targets and, where there is one, the padding mask. Yours to override."""
        if isinstance(batch, Mapping) and "labels" in batch:
            return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
        if isinstance(batch, tuple | list) and len(batch) in (2, 3):
            return tuple(batch)
        seen = f"a mapping of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        raise TypeError(
            f"the batch has no labels that Sparring would know ({seen}): let it be (inputs, targets) or a mapping with `labels`, or "
            "write split_batch(self, batch) in your module, which returns (inputs, targets)"
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """The loss of one batch; in manual optimisation all its losses, back-propagated, and the updates."""
        self._check()
        given = self.split_batch(batch)
        module: Any = self
        loss = self.objective(*given) if module.automatic_optimization else self._by_hand(given)
        if getattr(getattr(module.trainer, "_logger_connector", None), "should_update_logs", True):
            found = {f"sparring/{key}": value for key, value in self.objective.diagnostics.items()}
            module.log_dict(found, logger=bool(module.trainer.loggers))
        return loss if module.automatic_optimization else None

    def on_train_batch_end(self, *args: Any) -> None:
        """A training step of your own that forgets the objective would train without it, and nothing would say so."""
        super().on_train_batch_end(*args)  # type: ignore[misc]
        if isinstance(getattr(self, "objective", None), Objective) and self.objective.number == 0:
            raise RuntimeError(
                f"{type(self).__name__}.training_step never asks the objective: leave it out, or let it call super().training_step(...)"
            )

    def _check(self) -> None:
        module: Any = self
        if not isinstance(getattr(self, "objective", None), Objective):
            raise TypeError(
                f"{type(self).__name__} has no objective: write self.objective = sp.recipes.vat(model, sp.cross_entropy, ...) in its "
                "__init__"
            )
        if getattr(module, "_compiler_ctx", None) is not None:
            raise RuntimeError(
                "torch.compile(module) compiles training_step as a whole, and no perturbation can enter it: leave it out and compile "
                "the parts of the model without a site, such as model.encoder.compile()"
            )
        self._agree()

    def setup(self, stage: str) -> None:
        """Before Lightning wraps the module: wrappers of processes that differ wait for each other forever."""
        super().setup(stage)  # type: ignore[misc]
        if stage == "fit" and isinstance(getattr(self, "objective", None), Objective):
            self._agree()

    def _agree(self) -> None:
        if self._agreed != id(self.objective):
            check_ranks(self.objective)
            self._agreed = id(self.objective)

    @property
    def automatic_optimization(self) -> bool:
        """Lightning's switch; off for methods that update the parameters between the losses of a batch."""
        objective = getattr(self, "objective", None)
        return super().automatic_optimization and not (objective is not None and objective.update_each_loss)  # type: ignore[misc]

    @automatic_optimization.setter
    def automatic_optimization(self, value: bool) -> None:
        self._automatic_optimization = value

    def _by_hand(self, given: tuple[Any, ...]) -> Tensor:
        module: Any = self
        optimizer = module.optimizers()
        if isinstance(optimizer, list):
            raise ValueError(f"{len(optimizer)} optimisers: a recipe that updates by itself needs exactly one")
        each = self.objective.update_each_loss
        total: Any = 0.0
        optimizer.zero_grad()
        for loss in self.objective.steps(*given):
            module.manual_backward(loss)
            total = total + loss.detach()
            if each:
                optimizer.step()
                optimizer.zero_grad()
        if not each:
            optimizer.step()
            optimizer.zero_grad()
        self._step_schedulers()
        return total

    def _step_schedulers(self) -> None:
        """Lightning leaves schedulers alone in manual optimisation; a batch counts as one step of theirs."""
        module: Any = self
        trainer = module.trainer
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                raise ValueError(
                    "a scheduler that waits for a plateau cannot be used with a recipe that updates by itself"
                )
            steps = config.interval == "step"
            count = trainer.fit_loop.total_batch_idx if steps else trainer.current_epoch
            if (steps or trainer.is_last_batch) and (count + 1) % config.frequency == 0:
                module.lr_scheduler_step(config.scheduler, None)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What every process carries from batch to batch; the rest is in the state dict."""
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]
        own = of_this_rank(self.objective)
        if dist.is_available() and dist.is_initialized():
            found: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
            dist.all_gather_object(found, own)
            if any(found):
                checkpoint[CARRIED] = found

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        found = checkpoint.get(CARRIED)
        if found and dist.is_initialized() and dist.get_rank() < len(found):
            checkpoint["state_dict"] |= {f"objective.{key}": value for key, value in found[dist.get_rank()].items()}
