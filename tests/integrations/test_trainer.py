"""Hugging Face's Trainer with recipes: nothing lost of the framework's own, several processes equal one, resumed equals whole."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

import sparring as sp  # noqa: E402
from sparring.integrations.transformers import SparringTrainer  # noqa: E402

WORDS = "bert.embeddings.word_embeddings"
RECIPES = {
    "zero": partial(sp.recipes.vat, at=WORDS, weight=0.0),
    "vat": partial(sp.recipes.vat, at=WORDS, ball=sp.L2(0.5)),
    "smart": partial(sp.recipes.smart, at=WORDS, ball=sp.L2(0.5), step_size=None, start=0.1),
    "salt": partial(sp.recipes.salt, at=WORDS, ball=sp.L2(0.5), start=0.1),
    "free_lb": partial(sp.recipes.free_lb, at=WORDS, ball=sp.L2(0.5), start=0.0, steps=2),
    "free_at": partial(sp.recipes.free_at, at=WORDS, ball=sp.L2(0.5), steps=2, update="normalised"),
}


def model(labels: int = 3) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, num_labels=labels,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


class Sentences(torch.utils.data.Dataset):
    """Sentences of one length each, so that batches of any cut look the same."""

    def __init__(self, count: int = 16, labelled: bool = True) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(1, 30, (count, 7), generator=generator)
        self.labels = torch.randint(3, (count,), generator=generator) if labelled else None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = {"input_ids": self.ids[index], "attention_mask": torch.ones(7, dtype=torch.long)}
        return item if self.labels is None else item | {"labels": self.labels[index]}


def arguments(folder: Path, **changes: Any) -> Any:
    usual = {
        "output_dir": str(folder), "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.01, "use_cpu": True,
        "report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "lr_scheduler_type": "constant",
        "optim": "sgd", "max_grad_norm": 0.5, "seed": 3,
    }  # fmt: skip
    return transformers.TrainingArguments(**(usual | changes))


def weights(trained: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trained.parameters()])


@pytest.mark.parametrize(
    "changes", [{}, {"gradient_accumulation_steps": 2}, {"label_smoothing_factor": 0.1}, {"bf16": True}], ids=str
)
def test_weight_zero_is_the_framework_itself(changes: dict[str, Any], tmp_path: Path) -> None:
    # Some models ignore the number of items that the Trainer hands them, and accumulated gradients come out too long; what is
    # meant is the mean over the whole batch.
    meant = {"per_device_train_batch_size": 8} if "gradient_accumulation_steps" in changes else changes
    plain = transformers.Trainer(model=model(), args=arguments(tmp_path, **meant), train_dataset=Sentences())
    plain.train()
    ours = SparringTrainer(
        model=model(), args=arguments(tmp_path, **changes), train_dataset=Sentences(), recipe=RECIPES["zero"]
    )
    ours.train()
    tolerance = 2e-3 if "bf16" in changes else 1e-6
    torch.testing.assert_close(weights(ours.model), weights(plain.model), rtol=0, atol=tolerance)
    mine, theirs = ([h["loss"] for h in t.state.log_history if "loss" in h] for t in (ours, plain))
    assert mine == pytest.approx(theirs, abs=2e-2 if "bf16" in changes else 1e-4)


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "zero"])
def test_every_kind_of_recipe_trains_and_is_logged(name: str, tmp_path: Path) -> None:
    trainer = SparringTrainer(model=model(), args=arguments(tmp_path), train_dataset=Sentences(), recipe=RECIPES[name])
    before = weights(trainer.model).clone()
    trainer.train()
    assert not torch.equal(weights(trainer.model), before)
    keys = {key for entry in trainer.state.log_history for key in entry}
    assert f"sparring/{name}/penalty" in keys
    trainer.evaluate(Sentences())


def test_a_resumed_run_has_the_averages_of_a_whole_one(tmp_path: Path) -> None:
    def run(folder: Path, **words: Any) -> Any:
        args = arguments(folder, save_strategy="steps", save_steps=2)
        trainer = SparringTrainer(model=model(), args=args, train_dataset=Sentences(), recipe=RECIPES["smart"])
        trainer.train(**words)
        return trainer

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    torch.testing.assert_close(weights(resumed.model), weights(whole.model))
    for mine, theirs in zip(resumed.objective.terms[1].buffers(), whole.objective.terms[1].buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    (tmp_path / "whole" / "checkpoint-2" / "sparring.pt").unlink()
    with pytest.raises(FileNotFoundError, match="another Trainer"):
        run(tmp_path / "again", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))


def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the batch has no labels"):
        SparringTrainer(
            model=model(),
            args=arguments(tmp_path, remove_unused_columns=False),
            train_dataset=Sentences(labelled=False),
            recipe=RECIPES["vat"],
        ).train()
    with pytest.raises(ValueError, match="gradient_accumulation_steps=1"):
        SparringTrainer(
            model=model(),
            args=arguments(tmp_path, gradient_accumulation_steps=2),
            train_dataset=Sentences(),
            recipe=RECIPES["free_at"],
        )
    with pytest.raises(TypeError, match="SparringTrainer"):
        sp.recipes.vat(model(), sp.cross_entropy, at=WORDS)(
            input_ids=torch.ones(1, 3, dtype=torch.long), labels=torch.tensor([0])
        )


