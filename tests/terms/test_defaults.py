"""Defaults and guards of terms that recipes always spell out, so that no test of a recipe meets them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import sparring as sp
from sparring.terms import ranks
from sparring.terms.checks import check_reachable
from sparring.terms.diversity import DEG, TRS
from sparring.terms.weight_perturbation import WeightPerturbation


def test_trs_moves_as_published() -> None:
    assert TRS().ball == sp.Linf(0.03, box=(0, 1))


def test_deg_has_the_published_weight() -> None:
    assert DEG().weight == 0.01


def test_who_is_here_at_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may compare notes only where all of them are: in the call of their wrapper, or where each holds a part."""
    objective, wrapper = nn.Linear(1, 1), SimpleNamespace(module=None, process_group="those of the wrapper")
    monkeypatch.setattr(ranks.dist, "group", SimpleNamespace(WORLD="all"))
    monkeypatch.setattr(ranks.DistributedDataParallel, "_get_active_ddp_module", lambda: wrapper)
    assert ranks._group(objective, sharded=False) is None, "the wrapper of another module runs"
    assert ranks._group(objective, sharded=True) == "all"
    wrapper.module = objective
    assert ranks._group(objective, sharded=False) == "those of the wrapper"


def test_weight_perturbation_repeats_the_noise_of_the_clean_pass() -> None:
    """With its own dropout the loss at radius 0 would differ from the clean one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    still = sp.FastGradient(sp.L2(1e-12))
    term = WeightPerturbation(sp.Input(), None, sp.Weights("**"), still)
    objective = sp.Objective(model, sp.cross_entropy, term)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    loss = float(objective(x, y).detach())
    assert loss == pytest.approx(objective.diagnostics["clean_loss"], rel=1e-6)


def test_what_a_term_found_is_not_in_its_name() -> None:
    assert "_found" not in repr(sp.DropoutKL(1.0, 10))


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")  # nothing is compiled before it runs


def test_the_door_of_a_compiled_part_is_reachable_and_one_inside_it_is_not() -> None:
    model = nn.Sequential(nn.Linear(4, 4), compiled(nn.Sequential(compiled(nn.Linear(4, 4)))))
    check_reachable(sp.Output("0"), model)
    check_reachable(sp.Output("1"), model)
    check_reachable(sp.Input(), compiled(model))
    with pytest.raises(ValueError, match="is compiled"):
        check_reachable(sp.Output("1._orig_mod.0"), model)
    with pytest.raises(ValueError, match="is compiled"):
        check_reachable(sp.Output("_orig_mod.1"), compiled(model))
