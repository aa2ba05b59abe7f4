"""Hugging Face's Trainer with recipes: nothing lost of the framework's own, several processes equal one, resumed equals whole."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))

from accelerate.state import AcceleratorState  # noqa: E402
from even import EvenStart  # noqa: E402

import sparring as sp  # noqa: E402
from sparring.integrations.transformers import SparringTrainer, with_sparring  # noqa: E402

WORDS = "bert.embeddings.word_embeddings"


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    """What a Trainer asked accelerate for holds for the whole process: the next test starts without."""
    yield
    AcceleratorState._reset_state()


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


TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 30}


def kinds() -> dict[str, tuple[Any, Any]]:
    """Models by what they predict, with labels of their own kind."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = transformers.BertConfig(**TINY, **still)

    def sentence(labels: int, kind: str | None = None) -> Any:
        config = transformers.BertConfig(**TINY, **still, num_labels=labels, problem_type=kind)
        return transformers.BertForSequenceClassification(config)

    def causal() -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, num_key_value_heads=2))

    def adapted() -> Any:
        peft = pytest.importorskip("peft")
        return peft.get_peft_model(causal(), peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))

    def translator() -> Any:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 30}
        return transformers.T5ForConditionalGeneration(
            transformers.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
        )

    words = torch.randint(1, 30, (16, 7), generator=torch.Generator().manual_seed(4))
    words[::2, 5:] = -100
    return {
        "regression": (lambda: sentence(1), torch.randn(16)),
        "several labels": (lambda: sentence(3, "multi_label_classification"), torch.randint(2, (16, 3)).float()),
        "tokens": (lambda: transformers.BertForMaskedLM(bert), words),
        "next token": (causal, words),
        "adapter": (adapted, words),
        "translation": (translator, words),
    }


@pytest.mark.parametrize("kind", list(kinds()))
def test_every_kind_of_loss_is_the_framework_s_own(kind: str, tmp_path: Path) -> None:
    build, labels = kinds()[kind]
    found = []
    for which in (SparringTrainer, transformers.Trainer):
        torch.manual_seed(0)
        data = Sentences()
        data.labels = labels
        words = (
            {}
            if which is transformers.Trainer
            else {"recipe": lambda net, loss, **options: sp.Objective(net, loss, **options)}
        )
        trainer = which(model=build(), args=arguments(tmp_path, max_grad_norm=0), train_dataset=data, **words)
        start = weights(trainer.model)
        trainer.train()
        found.append((weights(trainer.model), [h["loss"] for h in trainer.state.log_history if "loss" in h]))
        assert (start - found[-1][0]).abs().max() > 1e-6
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-6)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-4)


def test_tokens_are_counted_over_all_accumulated_batches(tmp_path: Path) -> None:
    """Rows of different length: the mean over the tokens of both halves is not the mean of their means, in the penalty neither."""
    start = EvenStart(sp.L2(0.5), start=0.1)
    recipe = partial(sp.recipes.vat, at="model.embed_tokens", by=start)
    build, labels = kinds()["next token"]
    data = Sentences()
    data.labels = labels
    found = []
    for size, steps in ((8, 1), (4, 2)):
        torch.manual_seed(0)
        args = arguments(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=steps, max_grad_norm=0)
        trainer = SparringTrainer(model=build(), args=args, train_dataset=data, recipe=recipe)
        trainer.train()
        found.append(weights(trainer.model))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["vat", "smart", "free_lb"])
def test_gradient_checkpointing_changes_nothing(name: str, tmp_path: Path) -> None:
    found = []
    for on in (False, True):
        words = {"gradient_checkpointing_kwargs": {"use_reentrant": False}} if on else {}
        args = arguments(tmp_path, gradient_checkpointing=on, max_steps=2, **words)
        trainer = SparringTrainer(model=model(), args=args, train_dataset=Sentences(), recipe=RECIPES[name])
        trainer.train()
        found.append(weights(trainer.model))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


FINITE = EvenStart(sp.L2(0.5), start=0.1, unroll="finite_difference")


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [(RECIPES["free_at"], {}), (partial(sp.recipes.salt, at=WORDS, by=FINITE), {"bf16": True})],
    ids=["two updates a batch", "finite differences choose their own precision"],
)
def test_a_batch_is_that_of_a_loop_of_your_own(recipe: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=2, **changes)
    trainer = SparringTrainer(model=model(), args=args, train_dataset=Sentences(), recipe=recipe)
    seen: list[Any] = []
    training_step = trainer.training_step
    trainer.training_step = lambda net, batch, items: (seen.append(batch), training_step(net, batch, items))[1]
    trainer.train()
    mine = model()
    objective = recipe(mine, sp.cross_entropy)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.01)
    torch.manual_seed(3)  # the Trainer's own seed; the start is drawn after its shuffle
    torch.empty((), dtype=torch.int64).random_()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(mine.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    for batch in seen:
        batch = dict(batch)
        targets = batch.pop("labels")
        for part in range(objective.parts(targets)):
            with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in changes):
                loss = objective(batch, targets, part=part if objective.update_each_loss else None)
            loss.backward()
            if objective.update_each_loss:
                update()
        if not objective.update_each_loss:
            update()
    torch.testing.assert_close(weights(trainer.model), weights(mine), rtol=0, atol=1e-6)


def test_evaluation_is_the_framework_s_own(tmp_path: Path) -> None:
    """Also under bf16: what the Trainer wraps around the model's call is back after a training step."""
    args = arguments(tmp_path, bf16=True, max_steps=1)
    ours = SparringTrainer(model=model(), args=args, train_dataset=Sentences(), recipe=RECIPES["vat"])
    ours.train()
    plain = transformers.Trainer(model=model(), args=args, train_dataset=Sentences())
    plain.train()
    plain.model.load_state_dict(ours.model.state_dict())
    assert ours.evaluate(Sentences())["eval_loss"] == plain.evaluate(Sentences())["eval_loss"]


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
    away = SparringTrainer(model=model(), args=arguments(tmp_path), train_dataset=Sentences(), recipe=RECIPES["vat"])
    away.objective.to("meta")
    away.create_optimizer()
    with pytest.raises(ValueError, match="the batch is on cpu and the objective's model on meta"):
        away.training_step(away.model, {k: v[None] for k, v in Sentences()[0].items()}, 1)


def refused(match: str, error: type[Exception], kind: type = SparringTrainer, **words: Any) -> None:
    usual = {"model": model(), "train_dataset": Sentences(), "recipe": RECIPES["vat"]}
    with pytest.raises(error, match=match):
        kind(**{k: v for k, v in (usual | words).items() if v is not None})


def test_what_an_objective_would_not_heed_is_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)

    class Own(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, **words: Any) -> Any:
            return model(**inputs).loss

    class Sharded(transformers.Trainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.is_fsdp_enabled = True

    refused(r"Own\.compute_loss would not be used", TypeError, with_sparring(Own), args=args)
    stepping = type("Stepping", (transformers.Trainer,), {"training_step": transformers.Trainer.training_step})
    refused(r"Stepping\.training_step would not be used", TypeError, with_sparring(stepping), args=args)
    type("Above", (SparringTrainer,), {"training_step": SparringTrainer.training_step})(
        model=model(), args=args, recipe=RECIPES["vat"]
    )
    refused("compute_loss_func would not be used", TypeError, args=args, compute_loss_func=lambda *_, **__: 0.0)
    refused("a function of model and loss", TypeError, args=args, recipe=sp.L2(1.0))
    refused(r"model\.bert\.encoder\.compile\(\)", ValueError, args=arguments(tmp_path, torch_compile=True))
    refused("fully_shard in a loop of your own", ValueError, with_sparring(Sharded), args=args)
    refused("give model= instead", ValueError, args=args, model=None, model_init=lambda: model())
    several = arguments(tmp_path)
    several._n_gpu = 2
    refused("start one process per GPU with torchrun", ValueError, args=several)
    smooth = arguments(tmp_path, label_smoothing_factor=0.1)
    refused("label_smoothing_factor=0.1 smooths classes", ValueError, args=smooth, model=model(labels=1))
    data = Sentences()
    data.labels = torch.rand(16, 3)
    trainer = SparringTrainer(model=model(), args=args, train_dataset=data, recipe=RECIPES["vat"])
    with pytest.raises(ValueError, match=r"set model\.config\.problem_type"):
        trainer.train()


def test_an_objective_as_the_model_says_what_to_write(tmp_path: Path) -> None:
    objective = sp.recipes.vat(model(), sp.cross_entropy, at=WORDS)
    with pytest.raises(TypeError, match=r"SparringTrainer\(model=model, recipe=...\)"):
        transformers.Trainer(model=objective, args=arguments(tmp_path), train_dataset=Sentences()).train()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_compiled_parts_change_nothing(tmp_path: Path) -> None:
    found = []
    for on in (False, True):
        net = model()
        if on:
            net.bert.encoder.compile(backend="aot_eager")
        trainer = SparringTrainer(
            model=net, args=arguments(tmp_path, max_steps=2), train_dataset=Sentences(), recipe=RECIPES["vat"]
        )
        trainer.train()
        found.append(weights(trainer.model))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)
