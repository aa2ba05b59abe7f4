"""What Hugging Face's models and Trainer mean by their loss, said per example."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ...losses import binary_cross_entropy, cross_entropy, squared_loss


def framework_loss(model: nn.Module, smoothing: float = 0.0) -> Callable[..., Tensor]:
    """The per-example form of the loss that a Hugging Face model computes itself.

    Args:
        model: its configuration tells classification, several labels at once and regression apart.
        smoothing: `label_smoothing_factor` of the training arguments.
    """
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    one = kind is None and _classifies(model) and getattr(model.config, "num_labels", 2) == 1
    loss = binary_cross_entropy if kind == "multi_label_classification" else cross_entropy
    loss = squared_loss if kind == "regression" or one else loss
    if not smoothing:
        return loss
    if loss is not cross_entropy:
        raise ValueError(f"label_smoothing_factor={smoothing} smooths classes, and this model has none: set it to 0")
    return partial(cross_entropy, label_smoothing=smoothing)


def _classifies(model: nn.Module) -> bool:
    return type(model).__name__.endswith("ForSequenceClassification")


def shifts(model: nn.Module) -> bool:
    """Whether the model predicts the next token: its labels are shifted by one."""
    adapted = getattr(model, "get_base_model", None)
    inner = adapted() if callable(adapted) else model
    return type(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def shifted_logits(outputs: Any) -> Tensor:
    return outputs.logits[:, :-1]


def split(model: nn.Module, inputs: dict[str, Any]) -> tuple[dict[str, Any], Tensor, Any]:
    """Inputs without labels, the labels, and the mask of the outputs where labels are shifted."""
    inputs = dict(inputs)
    if "labels" not in inputs:
        raise ValueError(
            f"the batch has no labels (only {', '.join(inputs)}): a Trainer takes them under the name `labels`; for data without "
            "labels call the objective with unlabelled= in a loop of your own"
        )
    labels = inputs.pop("labels")
    config: Any = model.config
    unsaid = _classifies(model) and config.problem_type is None and config.num_labels > 1
    if unsaid and labels.is_floating_point():
        raise ValueError(
            'the labels are numbers, not classes: set model.config.problem_type to "multi_label_classification" or "regression"'
        )
    ready = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if callable(ready) and "decoder_input_ids" not in inputs and "decoder_inputs_embeds" not in inputs:
        inputs["decoder_input_ids"] = ready(labels=labels)
    if not shifts(model):
        return inputs, labels, None
    mask = inputs.get("attention_mask")
    if not isinstance(mask, Tensor):
        return inputs, labels[:, 1:], None
    return inputs, labels[:, 1:], {"**": mask, "outputs": mask[:, 1:]}


def counted(items: Any, labels: Tensor, loss: Callable[..., Tensor]) -> Any:
    """The Trainer counts labels; what has several of them at once, or several numbers to predict, is still one example."""
    if items is None or loss not in (binary_cross_entropy, squared_loss) or labels.dim() < 2:
        return items
    return items / labels[0].numel()


def check_trainer(trainer: Any, recipe: Any, mixin: type) -> None:
    """Refuse what a Trainer could be told that an objective would not heed."""
    if not callable(recipe):
        raise TypeError(
            f"SparringTrainer(recipe={recipe!r}): a function of model and loss is needed, such as "
            'partial(sp.recipes.vat, at="...", ball=sp.L2(1.0))'
        )
    kinds = [kind for kind in type(trainer).__mro__ if issubclass(kind, Trainer) and kind is not Trainer]
    own = [f"{kind.__name__}.compute_loss" for kind in kinds if "compute_loss" in vars(kind)]
    own += [f"{k.__name__}.training_step" for k in kinds if "training_step" in vars(k) and not issubclass(k, mixin)]
    own += ["compute_loss_func"] if trainer.compute_loss_func is not None else []
    if own:
        raise TypeError(
            f"{own[0]} would not be used: it gives one number for a batch, and a recipe needs one per example. Give the recipe a loss "
            "of its own, recipe=lambda model, loss, **options: sp.recipes.vat(model, your_loss, **options)"
        )
    if trainer.args.torch_compile:
        raise ValueError(
            "torch_compile=True compiles the model as a whole, and no perturbation can enter it: leave it out and compile the parts "
            "without a site yourself, such as model.bert.encoder.compile()"
        )
    if trainer.args.n_gpu > 1:
        raise ValueError(
            f"one process with {trainer.args.n_gpu} GPUs would use nn.DataParallel, which copies the model without its sites: start "
            "one process per GPU with torchrun, or show it one with CUDA_VISIBLE_DEVICES=0"
        )
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            "FSDP and DeepSpeed shard the model behind the Trainer's back, which recipes were never tried with: leave them out, or "
            "shard the model with fully_shard in a loop of your own"
        )
    if trainer.model_init is not None:
        raise ValueError("model_init= makes a new model behind the objective's back: give model= instead")
