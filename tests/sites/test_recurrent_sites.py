"""The recurrent sites on our layers, on torch's and on weight drop, alone and together."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import sparring as sp
from sparring.nn.recurrent import function as recurrent_function
from sparring.nn.recurrent import projection as recurrent_projection
from sparring.nn.recurrent.forward import masked_forward
from sparring.passes.step import Step


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, sp.nn.LSTM, sp.nn.GRU, sp.nn.RNN])
def test_a_placed_mask_is_the_layers_mask(kind: type[nn.RNNBase]) -> None:
    rnn, x = kind(3, 5, num_layers=2, bidirectional=True), torch.randn(6, 4, 3)
    masks = torch.rand(4, 4, 5)
    output, _ = sp.perturbed_call(rnn, {sp.Recurrent(): list(masks)}, x)
    torch.testing.assert_close(output, masked_forward(rnn, x, mask=masks)[0])
    assert "forward" not in rnn.__dict__


def test_slots_are_named_by_layer_and_direction() -> None:
    rnn, x, site = nn.LSTM(3, 5, num_layers=2, bidirectional=True), torch.randn(6, 4, 3), sp.Recurrent(layers=(-1,))
    _, seen = sp.perturbed_call(nn.ModuleDict({"rnn": rnn})["rnn"], {site: {}}, x, record=True)
    assert list(seen[site]) == ["recurrent.l1", "recurrent.l1_reverse"]
    assert all(torch.equal(value, torch.ones(4, 5)) for value in seen[site].values())


def test_the_clean_pass_may_draw_and_repeats_with_the_random_state() -> None:
    rnn, x, site = nn.GRU(3, 50), torch.randn(6, 4, 3), sp.Recurrent(keep=0.8)
    values = []
    for _ in range(2):
        torch.manual_seed(7)
        _, seen = sp.perturbed_call(rnn, {site: {}}, x, record=True)
        values.append(seen[site]["recurrent"])
    assert torch.equal(*values)
    assert set(values[0].unique().tolist()) == {0.0, 1.25}


def test_packed_batches_keep_the_callers_order() -> None:
    rnn, x, lengths = nn.LSTM(3, 5, batch_first=True), torch.randn(3, 6, 3), torch.tensor([2, 6, 4])
    mask = torch.rand(3, 5)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    _, (h, _) = sp.perturbed_call(rnn, {sp.Recurrent(): mask}, packed)
    for b, length in enumerate(lengths):
        _, (alone, _) = masked_forward(rnn, x[b : b + 1, :length], mask=mask[None, b : b + 1])
        torch.testing.assert_close(h[:, b : b + 1], alone)


def test_one_row_for_the_batch_runs_torchs_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, x, mask = nn.LSTM(3, 5), torch.randn(6, 4, 3), torch.rand(1, 5)
    monkeypatch.setattr("sparring.nn.recurrent.forward.recurrence", lambda *_: pytest.fail("our kernel ran"))
    output, _ = sp.perturbed_call(rnn, {sp.Recurrent(): mask}, x)
    monkeypatch.undo()
    torch.testing.assert_close(output, sp.perturbed_call(rnn, {sp.Recurrent(): mask.expand(4, 5).contiguous()}, x)[0])


def test_a_mask_that_the_model_passes_in_stands_in_the_clean_pass() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = sp.nn.LSTM(3, 5)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.rnn(x, mask=mask)[0]

    model, x, mask = Model(), torch.randn(6, 4, 3), torch.rand(1, 4, 5)
    output, seen = sp.perturbed_call(model, {sp.Recurrent(): {}}, x, mask, record=True)
    assert torch.equal(seen[sp.Recurrent()]["rnn"], mask[0])
    torch.testing.assert_close(output, model(x, mask))


def test_weight_drop_masks_and_recurrent_masks_on_one_module_in_any_order() -> None:
    rnn, x = sp.nn.WeightDrop(nn.LSTM(3, 5), 0.5), torch.randn(6, 4, 3)
    weights, mask = torch.rand(1, 20, 5), torch.rand(4, 5)
    expected = masked_forward(rnn.module, x, mask=mask[None], weights=[weights[0]])[0]
    placements = {sp.RecurrentWeights(): weights, sp.Recurrent(): mask}
    for order in (list(placements), list(placements)[::-1]):
        output, _ = sp.perturbed_call(rnn, {site: placements[site] for site in order}, x)
        torch.testing.assert_close(output, expected)
    plain = nn.LSTM(3, 5)
    plain.load_state_dict(rnn.module.state_dict())
    for order in (list(placements), list(placements)[::-1]):
        output, _ = sp.perturbed_call(plain, {site: placements[site] for site in order}, x)
        torch.testing.assert_close(output, expected)


def test_weight_masks_stand_for_the_whole_batch() -> None:
    rnn, x, site = sp.nn.WeightDrop(nn.LSTM(3, 5), 0.5), torch.randn(6, 4, 3), sp.RecurrentWeights()
    torch.manual_seed(3)
    expected, _ = rnn(x)
    torch.manual_seed(3)
    (output, _), seen = sp.perturbed_call(rnn, {site: {}}, x, record=True)
    torch.testing.assert_close(output, expected)
    value = seen[site]["weights"]
    assert value.shape == (4, 20, 5)
    assert value.stride(0) == 0
    with pytest.raises(ValueError, match=r"shared by the batch: place a mask of shape \(1, 20, 5\)"):
        sp.perturbed_call(rnn, {site: torch.rand(4, 20, 5)}, x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_passes_of_a_step_share_the_input_projection_and_nothing_changes(
    steps: list[Step], monkeypatch: pytest.MonkeyPatch, batch_first: bool, kind: type[nn.RNNBase]
) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 30)
            self.rnn = kind(30, 40, batch_first=batch_first)

        def forward(self, tokens: Tensor) -> Tensor:
            output = self.rnn(self.embedding(tokens if batch_first else tokens.T))[0]
            return output[:, -1] if batch_first else output[-1]

    model, tokens, targets = Last(), torch.randint(9, (4, 6)), torch.randint(9, (4,))
    objective = sp.recipes.adversarial_dropout(model, sp.cross_entropy, ball=sp.Flips(0.2), steps=2)
    made, project = [], recurrent_projection.project

    def counted(*args: Tensor) -> Tensor:
        made.append(1)
        return project(*args)

    gradients = []
    for few in (16, 10**6):  # shared, then not
        monkeypatch.setattr(recurrent_projection, "FEW", few)
        for module in (recurrent_projection, recurrent_function):
            monkeypatch.setattr(module, "project", counted)
        made.clear()
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(objective(tokens, targets), list(model.parameters())))
        assert len(made) == (1 if few == 16 else 4)
        assert not steps[-1].cache
    for a, b in zip(*gradients):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("site", [sp.Recurrent, sp.RecurrentWeights])
def test_mistakes_are_explained(site: type) -> None:
    with pytest.raises(ValueError, match="keep rate lies in"):
        site(keep=1.5)
    with pytest.raises(ValueError, match="matches no recurrent layer"):
        site("head").modules(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="do not support projections"):
        site().modules(nn.LSTM(3, 5, proj_size=2))
    with pytest.raises(ValueError, match="has 2 layers"):
        site(layers=(2,)).modules(nn.LSTM(3, 5, num_layers=2))
