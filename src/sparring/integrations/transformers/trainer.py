"""The Trainer that trains its model on a recipe's objective.

>>> from functools import partial
>>> import sparring as sp
>>> recipe = partial(sp.recipes.vat, at="bert.embeddings.word_embeddings", ball=sp.L2(1.0))
>>> # trainer = SparringTrainer(model=model, args=args, train_dataset=data, recipe=recipe)
>>> # trainer.train()
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ...objective import Objective
from ..agreement import check_ranks, of_this_rank
from .framework import check_trainer, counted, framework_loss, shifted_logits, shifts, split

Recipe = Callable[..., Objective]


class Sparring:
    """Mixin of `with_sparring`: trains the Trainer's model on a recipe's objective; everything else stays the Trainer's.

    Label smoothing, gradient accumulation (`num_items_in_batch`), mixed precision, gradient checkpointing, clipping, schedulers and
    evaluation work as before. Losses go through the wrapper that the Trainer puts around the model, which averages the gradients of
    several processes as ever. Diagnostics go to the Trainer's logs, the objective's own state (averaged weights, carried
    perturbations) into its checkpoints.

    Args:
        args: of the Trainer, as `kwargs`.
        recipe: `recipe(model, loss, **options) -> Objective`; the loss is the framework's own, per example.
    """

    def __init__(self, *args: Any, recipe: Recipe, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        check_trainer(trainer, recipe, Sparring)
        model = trainer.accelerator.unwrap_model(trainer.model)
        options: dict[str, Any] = {"reduction": "tokens"}
        if shifts(model):
            options["outputs"] = shifted_logits
        self.objective = recipe(model, framework_loss(model, trainer.args.label_smoothing_factor), **options)
        if self.objective.update_each_loss and trainer.args.gradient_accumulation_steps > 1:
            raise ValueError(
                "this recipe updates the parameters after every replay of a batch: set gradient_accumulation_steps=1"
            )
        check_ranks(self.objective)
        if trainer.place_model_on_device:
            self.objective.to(trainer.args.device)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """All losses of one batch, each back-propagated; returns their sum as the Trainer reports it."""
        trainer: Any = self
        model.train()
        self.objective.train()
        if callable(getattr(trainer.optimizer, "train", None)):
            trainer.optimizer.train()
        inputs = trainer._prepare_inputs(inputs)
        raw = trainer.accelerator.unwrap_model(model)
        if self.objective.model is not raw:
            raise RuntimeError("the Trainer's model is not the one that SparringTrainer was built with")
        batch, targets, valid = split(raw, inputs)
        parts = self.objective.parts(targets)
        each = self.objective.update_each_loss
        total: Tensor | None = None

        items = counted(num_items_in_batch, targets, self.objective.loss)

        def ask() -> Tensor:
            return self.objective(batch, targets, valid, items=items, part=None if parts == 1 else part)

        with bare(raw):
            for part in range(parts):
                last = each or part == parts - 1
                with nullcontext() if last else trainer.accelerator.no_sync(model):
                    with trainer.compute_loss_context_manager(), trainer.accelerator.autocast():
                        loss = self._scaled(through(model, raw, ask), num_items_in_batch)
                    trainer.accelerator.backward(loss)
                total = loss.detach() if total is None else total + loss.detach()
                if each and part < parts - 1:
                    self._update(model)
        assert total is not None
        return total / parts if each else total

    def _scaled(self, loss: Tensor, items: Any) -> Tensor:
        """As the Trainer does: sums over all items are not divided by the batches they are accumulated from, means are."""
        trainer: Any = self
        if items is None:
            return loss / trainer.current_gradient_accumulation_steps
        shared = trainer.args.average_tokens_across_devices  # then the number of items is that of all processes
        return loss * trainer.accelerator.num_processes if shared else loss

    def _update(self, model: nn.Module) -> None:
        """One of the updates that free methods make between the losses of a batch."""
        trainer: Any = self
        if trainer.args.max_grad_norm:
            trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs = logs | {f"sparring/{key}": value for key, value in self.objective.diagnostics.items()}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, model: nn.Module, trial: Any, *args: Any, **kwargs: Any) -> None:
        trainer: Any = self
        folder = Path(trainer._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        own = of_this_rank(self.objective)
        if trainer.args.should_save:
            own = {k: v for k, v in self.objective.state_dict().items() if not k.startswith("model.")}
        if own:  # written first: a checkpoint that the Trainer takes for whole has it
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(own, folder / self._state_file(trainer.args.process_index))
        super()._save_checkpoint(model, trial, *args, **kwargs)  # type: ignore[misc]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        trainer: Any = self
        folder = Path(resume_from_checkpoint)
        if not (folder / self._state_file(0)).is_file():
            raise FileNotFoundError(
                f"{folder} holds no {self._state_file(0)}: it was saved by another Trainer, and the objective's own state is missing"
            )
        state = {k: v for k, v in self.objective.state_dict().items() if k.startswith("model.")}
        for rank in {0: None, trainer.args.process_index: None}:
            path = folder / self._state_file(rank)
            if path.is_file():
                own: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
                state |= own
        self.objective.load_state_dict(state)

    @staticmethod
    def _state_file(rank: int) -> str:
        return f"sparring_{rank}.pt" if rank else "sparring.pt"


def through(wrapper: nn.Module, module: nn.Module, ask: Callable[[], Tensor]) -> Tensor:
    """`ask()` as the forward pass of a wrapped module: DistributedDataParallel only serves what goes through its own call."""
    if wrapper is module:
        return ask()
    worn = vars(module).get("forward")

    def undo() -> None:
        if worn is not None:
            module.forward = worn
        else:
            vars(module).pop("forward", None)

    def once(*_: Any, **__: Any) -> Tensor:
        undo()
        return ask()

    module.forward = once
    try:
        return wrapper()
    finally:
        undo()


@contextmanager
def bare(model: nn.Module) -> Iterator[None]:
    """The model without accelerate's autocast around every call: finite differences and players choose their own precision."""
    own = vars(model).get("_original_forward")
    if own is None:
        yield
        return
    worn, model.forward = model.forward, own
    try:
        yield
    finally:
        model.forward = worn


def with_sparring(trainer: type[Trainer]) -> type[Trainer]:
    """Your own Trainer class with `recipe=`.

    >>> with_sparring(Trainer).__name__
    'SparringTrainer'
    """
    return type(f"Sparring{trainer.__name__}", (Sparring, trainer), {"__doc__": Sparring.__doc__})


SparringTrainer = with_sparring(Trainer)
