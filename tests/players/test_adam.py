"""The Adam follower against torch's own optimiser."""

import torch
from torch import Tensor

import sparring as sp
from sparring.players.walk import State
from sparring.sites import Slot


def test_adam_ascent_is_that_of_torch() -> None:
    slot = Slot("x", torch.zeros(2, 3, dtype=torch.float64))
    player = sp.PGD(sp.L2(100.0), steps=4, step_size=0.1, update="adam")
    state = State((torch.zeros(2, 3, dtype=torch.float64),))
    theirs = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([theirs], lr=0.1, betas=player.betas, eps=1e-8, maximize=True)
    gradients: list[Tensor] = list(
        torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    for number, gradient in enumerate(gradients, start=1):
        state = player.advance(state, [gradient], [slot], number)
        theirs.grad = gradient.clone()
        optimiser.step()
        torch.testing.assert_close(state.deltas[0], theirs.detach())
