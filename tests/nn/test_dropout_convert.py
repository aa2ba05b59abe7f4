"""Swapping dropout layers in a finished model."""

import pytest
import torch
from torch import Tensor, nn

from sparring.nn import BernoulliDropout, ConcreteDropout, GaussianDropout, convert


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Dropout2d(0.1))
        self.drop = nn.Dropout(0.25)
        self.classifier = nn.Sequential(nn.Linear(24, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.features(x).flatten(1)))


def test_units_and_rates_are_read_off() -> None:
    model = Net().eval()
    made = convert(model, "*.*")
    assert list(made) == ["features.2", "classifier.2"]
    assert isinstance(model.drop, nn.Dropout)
    for name, units, keep in (("features.2", 6, 0.9), ("classifier.2", 5, 0.5)):
        layer = model.get_submodule(name)
        assert isinstance(layer, BernoulliDropout)
        assert layer.logits.shape == (units,)
        assert float(layer.keep.detach().mean()) == pytest.approx(keep)
        assert not layer.training


def test_an_example_tells_the_units() -> None:
    model = Net()
    model.features.eval()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    convert(model, example=torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(state, torch.get_rng_state())
    assert isinstance(model.drop, BernoulliDropout)
    assert model.drop.logits.shape == (24,)
    assert model.training
    assert not model.features.training
    assert not model.drop._forward_pre_hooks


def test_an_example_may_be_a_mapping_of_arguments() -> None:
    model = Net()
    convert(model, "drop", example={"x": torch.randn(2, 1, 4, 4)})
    assert isinstance(model.drop, BernoulliDropout)
    assert model.drop.logits.shape == (24,)


@pytest.mark.parametrize("to", [BernoulliDropout, ConcreteDropout, GaussianDropout])
def test_the_rates_live_where_the_model_does(to: type[nn.Module]) -> None:
    model = Net().to("meta")
    convert(model, "classifier.*", to=to)
    assert {t.device.type for t in model.classifier[2].state_dict().values()} == {"meta"}


def test_to_the_rivals_with_options() -> None:
    model = Net()
    convert(model, "classifier.*", to=ConcreteDropout, features=1, temperature=0.2)
    convert(model, "features.*", to=GaussianDropout, learn=True)
    concrete, gaussian = model.classifier[2], model.features[2]
    assert isinstance(concrete, ConcreteDropout)
    assert concrete.p == pytest.approx(0.5)
    assert isinstance(gaussian, GaussianDropout)
    assert gaussian.p == pytest.approx(0.1)
    assert isinstance(gaussian.log_variance, nn.Parameter)


def test_tied_layers_share_one_logit() -> None:
    model = Net()
    layers = list(convert(model, tie=True, keep=0.7).values())
    assert len(layers) == 3
    assert len({id(layer.logits) for layer in layers}) == 1
    assert sum(p.numel() for n, p in model.named_parameters() if "logits" in n) == 1


def test_a_layer_used_in_two_places_stays_one_layer() -> None:
    shared = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(3, 3), shared, nn.Linear(3, 3), shared)
    convert(model)
    assert model[1] is model[3]
    assert isinstance(model[1], BernoulliDropout)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="how many units reach drop"):
        convert(Net())
    with pytest.raises(ValueError, match="near names"):
        convert(Net(), "classifer.2")
    with pytest.raises(ValueError, match=r"1: every dropout layer that '\*\*' names is at p=0\.0"):
        convert(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))
    with pytest.raises(ValueError, match="tie=True"):
        convert(Net(), to=ConcreteDropout, tie=True)
    with pytest.raises(ValueError, match="itself"):
        convert(nn.Dropout())


def test_layers_that_are_off_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.0), nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
    assert list(convert(model)) == ["3"]
    assert type(model[1]) is nn.Dropout


def test_layers_that_never_run_are_named_and_stay_as_they_are() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.never = nn.Linear(2, 3), nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.first(x))

    model = Half()
    with pytest.warns(UserWarning, match="does not pass through them: never"):
        made = convert(model, example=torch.zeros(1, 2))
    assert list(made) == ["drop"]
    assert type(model.never) is nn.Dropout
    with pytest.raises(ValueError, match="through none of never"):
        convert(Half(), "never", example=torch.zeros(1, 2))
