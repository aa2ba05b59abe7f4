"""What a model collects through hooks of its own is complete in every pass, and replay never runs more modules than no replay."""

import pytest
import torch
from torch import nn

import sparring as sp

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])
SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}


def bert() -> nn.Module:
    config = transformers.BertConfig(**SMALL, attn_implementation="eager")
    return transformers.BertForSequenceClassification(config).double().eval()


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=2, num_experts_per_tok=1)
    return transformers.MixtralForCausalLM(config).eval()  # its grouped product has no float64


@pytest.mark.parametrize(
    ("build", "late", "wanted"),
    [
        (bert, "bert.encoder.layer.2", "hidden_states"),
        (bert, "bert.encoder.layer.2", "attentions"),
        (mixtral, "model.layers.2", "router_logits"),
        (mixtral, "model.layers.2", "hidden_states"),
    ],
)
def test_collected_tensors_are_the_same_with_and_without_replay(build, late: str, wanted: str) -> None:
    model = build()
    request = {"attentions": "output_attentions", "hidden_states": "output_hidden_states"}.get(
        wanted, f"output_{wanted}"
    )
    inputs = {"input_ids": IDS, request: True}
    plain = model(**inputs)[wanted]
    site = sp.Output(late)
    found = []
    for replay in (True, False):
        term = sp.Term(site, sp.Noise(sp.L2(1.0)), sp.kl)
        objective = sp.Objective(model, sp.cross_entropy, term, outputs=lambda o: o.logits, replay=replay)
        for _ in range(2):  # the first step learns the prefix, the second watches it alone
            step = objective.begin(inputs, None, None, objective.terms)
            step.begin()
            zeros = {site: [torch.zeros_like(step.slots(site)[0].value)]}
            found.append(step.run(zeros, raw=True)[wanted])
    for collected in found:
        assert len(collected) == len(plain)
        for mine, theirs in zip(collected, plain):
            torch.testing.assert_close(mine, theirs)


def test_a_loss_on_hidden_states_is_the_same_with_and_without_replay() -> None:
    model = bert()

    def read(outputs) -> torch.Tensor:
        return outputs.hidden_states[1][:, 0, :3] + outputs.hidden_states[-1][:, 0, :3]

    losses = []
    for replay in (True, False):
        torch.manual_seed(0)
        objective = sp.recipes.vat(model, sp.cross_entropy, "bert.encoder.layer.1", outputs=read, replay=replay)
        losses.append(objective({"input_ids": IDS, "output_hidden_states": True}, torch.tensor([0, 2])))
    torch.testing.assert_close(losses[0], losses[1])


class Counting(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counting.calls += 1
        return x + 0.001


def test_many_small_layers_run_once_each() -> None:
    layers = [Counting() for _ in range(1500)]
    model = nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 3))
    objective = sp.recipes.vat(model, sp.cross_entropy, "1501", ball=sp.L2(0.5))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    for _ in range(2):
        Counting.calls = 0
        objective(x, y)
        assert Counting.calls == 1500
