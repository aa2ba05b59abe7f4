"""Sites outside a compiled part work; sites inside one are refused."""

import pytest
import torch
from torch import Tensor, nn

import sparring as sp

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # dynamo looks at it
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (
            nn.Linear(4, 8),
            nn.Tanh(),
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="aot_eager")


def loss_and_gradients(model: nn.Module, site: sp.Site) -> list[Tensor]:
    torch.manual_seed(3)
    loss = sp.recipes.vat(model, sp.cross_entropy, site, ball=sp.L2(0.5))(X, Y)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def build() -> Parts:
    torch.manual_seed(0)
    return Parts()


def test_the_input_of_a_compiled_model() -> None:
    expected = loss_and_gradients(build(), sp.Input())
    torch.testing.assert_close(loss_and_gradients(compiled(build()), sp.Input()), expected)


@pytest.mark.parametrize(
    "at", ["middle", pytest.param("first", marks=pytest.mark.long), pytest.param("last", marks=pytest.mark.long)]
)
def test_compiled_parts_before_and_after_the_site(at: str) -> None:
    expected = loss_and_gradients(build(), sp.Output(at))
    model = build()
    model.first, model.last = compiled(model.first), compiled(model.last)  # type: ignore[assignment]
    torch.testing.assert_close(loss_and_gradients(model, sp.Output(at)), expected)


def test_inside_a_compiled_part_is_refused_with_the_fix() -> None:
    model = build()
    model.last = compiled(model.last)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="compile the parts before and after"):
        sp.recipes.vat(model, sp.cross_entropy, "last._orig_mod.0")
    with pytest.raises(ValueError, match="compile the parts before and after"):
        sp.recipes.vat(compiled(build()), sp.cross_entropy, "_orig_mod.first")
    model = build()
    model.compile(backend="aot_eager")  # in place: hooks on the model itself are compiled along
    with pytest.raises(ValueError, match="compile the parts before and after"):
        sp.recipes.vat(model, sp.cross_entropy)
