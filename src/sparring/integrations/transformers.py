"""Hugging Face's Trainer, with any recipe: `SparringTrainer(recipe=...)`, or `with_sparring(YourTrainer)`.

>>> from functools import partial
>>> import sparring as sp
>>> recipe = partial(sp.recipes.vat, at="bert.embeddings.word_embeddings", ball=sp.L2(1.0))
>>> # trainer = SparringTrainer(model=model, args=args, train_dataset=data, recipe=recipe)
>>> # trainer.train()
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..losses import binary_cross_entropy, cross_entropy, squared_loss
from ..objective import Objective

try:
    from transformers import Trainer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError("the Trainer needs transformers>=4.56: pip install 'sparring[hf]'") from error

Recipe = Callable[..., Objective]
STATE = "sparring.pt"


def framework_loss(model: nn.Module, smoothing: float = 0.0) -> Callable[..., Tensor]:
    """The per-example form of the loss that a Hugging Face model computes itself.

    Args:
        model: its configuration tells classification, several labels at once and regression apart.
        smoothing: `label_smoothing_factor` of the training arguments.
    """
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    if kind == "multi_label_classification":
        return binary_cross_entropy
    classified = type(model).__name__.endswith("ForSequenceClassification")
    if kind == "regression" or (kind is None and classified and getattr(model.config, "num_labels", 2) == 1):
        return squared_loss
    return partial(cross_entropy, label_smoothing=smoothing) if smoothing else cross_entropy


def shifts(model: nn.Module) -> bool:
    """Whether the model predicts the next token: its labels are shifted by one."""
    return type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _shifted_logits(outputs: Any) -> Tensor:
    return outputs.logits[:, :-1]


class Sparring:
    """Mixin of `with_sparring`: trains the Trainer's model on a recipe's objective; everything else stays the Trainer's.

    Label smoothing, gradient accumulation (`num_items_in_batch`), mixed precision, clipping, schedulers and evaluation work as
    before. Diagnostics go to the Trainer's logs, the objective's own state (averaged weights, carried perturbations) into its
    checkpoints. With several processes gradients are averaged after backward.
    """

    def __init__(self, *args: Any, recipe: Recipe, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not callable(recipe):
            raise TypeError(
                f"SparringTrainer(recipe={recipe!r}): a function of model and loss is needed, such as "
                'partial(sp.recipes.vat, at="...", ball=sp.L2(1.0))'
            )
        trainer: Any = self
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        options: dict[str, Any] = {"reduction": "tokens"}
        if shifts(model):
            options["outputs"] = _shifted_logits
        self.objective = recipe(model, framework_loss(model, trainer.args.label_smoothing_factor), **options)
        if self.objective.update_each_loss and trainer.args.gradient_accumulation_steps > 1:
            raise ValueError(
                "this recipe updates the parameters after every replay of a batch: set gradient_accumulation_steps=1"
            )
        self.objective.to(trainer.args.device)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """All losses of one batch, each back-propagated; returns their sum as the Trainer reports it."""
        trainer: Any = self
        model.train()
        self.objective.train()
        if callable(getattr(trainer.optimizer, "train", None)):
            trainer.optimizer.train()
        inputs = trainer._prepare_inputs(inputs)
        raw = trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        if self.objective.model is not raw:
            raise RuntimeError("the Trainer's model is not the one that SparringTrainer was built with")
        batch, targets, valid = self._batch(inputs)
        total: Tensor | None = None
        parts = self.objective.parts(targets)
        for part in range(parts):
            with trainer.compute_loss_context_manager(), trainer.accelerator.autocast():
                loss = self.objective(
                    batch, targets, valid, items=self._items(num_items_in_batch), part=None if parts == 1 else part
                )
            if num_items_in_batch is None:
                loss = loss / trainer.current_gradient_accumulation_steps
            elif trainer.args.average_tokens_across_devices:
                loss = loss * trainer.accelerator.num_processes  # the number of items is that of all processes
            trainer.accelerator.backward(loss)
            self._average_gradients()
            total = loss.detach() if total is None else total + loss.detach()
            if self.objective.update_each_loss and part < parts - 1:
                self._update(model)
        assert total is not None
        return total / parts if self.objective.update_each_loss else total

    def _batch(self, inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Inputs without labels, the labels, and the mask of the outputs where labels are shifted."""
        inputs = dict(inputs)
        if "labels" not in inputs:
            seen = ", ".join(inputs)
            raise ValueError(
                f"the batch has no labels (only {seen}): a Trainer takes them under the name `labels`; for data without labels "
                "call the objective with unlabelled= in a loop of your own"
            )
        labels = inputs.pop("labels")
        if not shifts(self.objective.model):
            return inputs, labels, None
        mask = inputs.get("attention_mask")
        if not isinstance(mask, Tensor):
            return inputs, labels[:, 1:], None
        return inputs, labels[:, 1:], {"**": mask, "outputs": mask[:, 1:]}

    def _items(self, given: Any) -> Any:
        return given if given is None or isinstance(given, Tensor) else float(given)

    def _average_gradients(self) -> None:
        """What DistributedDataParallel would do: its own hooks only serve passes that go through its forward."""
        trainer: Any = self
        if trainer.accelerator.num_processes == 1 or not trainer.accelerator.sync_gradients:
            return
        for parameter in self.objective.model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # another process may have one
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= trainer.accelerator.num_processes

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

    def _own_state(self) -> dict[str, Any]:
        return {k: v for k, v in self.objective.state_dict().items() if not k.startswith("model.")}

    def _save_checkpoint(self, model: nn.Module, trial: Any, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(model, trial, *args, **kwargs)  # type: ignore[misc]
        trainer: Any = self
        folder = Path(trainer._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        if trainer.args.should_save and folder.is_dir():
            torch.save(self._own_state(), folder / STATE)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        path = Path(resume_from_checkpoint) / STATE
        if not path.is_file():
            raise FileNotFoundError(
                f"{resume_from_checkpoint} holds no {STATE}: it was saved by another Trainer, and the objective's own state is missing"
            )
        own: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        model_state = {k: v for k, v in self.objective.state_dict().items() if k.startswith("model.")}
        self.objective.load_state_dict(model_state | dict(own))


def with_sparring(trainer: type[Trainer]) -> type[Trainer]:
    """Your own Trainer class with `recipe=`.

    >>> with_sparring(Trainer).__name__
    'SparringTrainer'
    """
    return type(f"Sparring{trainer.__name__}", (Sparring, trainer), {"__doc__": Sparring.__doc__})


SparringTrainer = with_sparring(Trainer)
