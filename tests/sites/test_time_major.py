"""Time-major layers with as many steps as examples: examples are still examples."""

import pytest
import torch
from torch import Tensor, nn

import sparring as sp

SIZE = 4  # examples, and steps


class Turned(nn.Module):
    """Batch first outside, time first inside."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        attends = isinstance(self.layer, nn.MultiheadAttention)
        x = self.layer(x, x, x, need_weights=False) if attends else self.layer(x)
        x = x[0] if isinstance(x, tuple) else x
        return self.head(x.transpose(0, 1).mean(1))


LAYERS = {
    "lstm": (lambda: nn.LSTM(8, 8), sp.Output("layer")),
    "attention": (lambda: nn.MultiheadAttention(8, 2), sp.Output("layer")),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), sp.Output("layer")),
    "inside": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), sp.Output("layer.linear1")),
    "stack": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 1, enable_nested_tensor=False),
        sp.Output("layer.layers.0.norm1"),
    ),
    "mask": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3), sp.Mask("layer.dropout1", keep=1.0)),
    "shared mask": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3),
        sp.Mask("layer.dropout", 1.0, share=(1,)),
    ),
}


def pushed_alone(model: nn.Module, site: sp.Site, *args: Tensor, **kwargs: Tensor) -> None:
    """A push on the last example of the slot moves the last example's output, and no other."""

    def place(slot: sp.Slot) -> Tensor:
        assert len(slot.value) == SIZE
        push = torch.zeros_like(slot.value) if site.kind == "additive" else torch.ones_like(slot.value)
        push[-1] = torch.randn_like(push[-1])
        return push

    def logits(outputs: object) -> Tensor:
        return outputs if isinstance(outputs, Tensor) else outputs.logits  # type: ignore[attr-defined]

    plain = logits(sp.perturbed_call(model, {site: {}}, *args, **kwargs))
    moved = (logits(sp.perturbed_call(model, {site: place}, *args, **kwargs)) - plain).abs().flatten(1).sum(1)
    assert moved[:-1].max() < 1e-6
    assert moved[-1] > 1e-3


@pytest.mark.parametrize("name", LAYERS)
def test_a_push_stays_with_its_example(name: str) -> None:
    build, site = LAYERS[name]
    pushed_alone(Turned(build()).eval(), site, torch.randn(SIZE, SIZE, 8))


def test_last_states_count_examples_in_dimension_one() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(8, 8, num_layers=SIZE, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[1].sum(0))

    pushed_alone(Last(), sp.Output("rnn", index=1), torch.randn(SIZE, 6, 8))


@pytest.mark.parametrize("at", ["transformer.word_embedding", "transformer.layer.0", "transformer.layer.1.ff"])
def test_xlnet(at: str) -> None:
    transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
    config = transformers.XLNetConfig(vocab_size=20, d_model=8, n_layer=2, n_head=2, d_inner=16, num_labels=3)
    model = transformers.XLNetForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    pushed_alone(model, sp.Output(at), input_ids=torch.randint(1, 20, (SIZE, SIZE)))
