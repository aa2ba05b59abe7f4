"""Flips and the greedy adversary: budgets, gains, schedule, influence map, and how near it comes to the exact worst mask."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import sparring as sp
from sparring.metrics import perturb, worst_masks
from sparring.players import Game, Response
from sparring.sites import Slot


class Last(nn.Module):
    """An RNN and a classifier of its last state."""

    def __init__(
        self, size: int, dtype: torch.dtype = torch.float32, kind: type[nn.RNNBase] = nn.LSTM, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.rnn = kind(3, size, batch_first=True, dtype=dtype)
        self.head = nn.Linear(size, 4, dtype=dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def linear_game(base: Tensor, slopes: Tensor) -> Game:
    """Payoff = sum of slope * mask: the influence map is known."""
    clean = torch.zeros(len(base), 2)

    def payoff(values: Any, attached: bool = False, clean: Tensor | None = None) -> Tensor:
        return (values[0] * slopes).flatten(1).sum(1)

    return Game([Slot("mask", base)], payoff, clean, clean, [], len(base))


units = st.integers(4, 40)


@given(
    size=units,
    fraction=st.floats(0.05, 0.9),
    rounds=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    sampled=st.booleans(),
)
def test_never_over_budget_and_never_a_flip_without_gain(
    size: int, fraction: float, rounds: int, seed: int, sampled: bool
) -> None:
    torch.manual_seed(seed)
    base = torch.bernoulli(torch.full((6, size), 0.7)) if sampled else torch.ones(6, size)
    slopes = torch.randn(6, size)
    player = sp.GreedyFlip(sp.Flips(fraction), rounds, rescale=False)
    allowed = int(fraction * size + 1e-6)
    if allowed < rounds + 1:
        with pytest.raises(ValueError, match=r"leaves .* at H="):
            player.respond(linear_game(base, slopes))
        return
    seen: list[Tensor] = []
    game = linear_game(base, slopes)
    inner = game.payoff
    game.payoff = lambda values, attached=False, clean=None: seen.append(values[0].detach()) or inner(values)
    mask = player.respond(game).values[0]
    flipped = mask != base
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert bool((flipped.sum(1) <= allowed).all())
    start = seen[0]
    assert bool(((start != base).sum(1) == 1).all())
    gains = (1 - 2 * base) * slopes
    assert bool((gains[flipped & (start == base)] > 0).all())
    stage = [*seen[1:], mask]  # the schedule: budget after round k
    for k, now in enumerate(stage, 1):
        limit = max(int(k / rounds * fraction * size + 1e-6), 1 + k) if k < rounds else allowed
        assert bool(((now != base).sum(1) <= limit).all())
    # with constant influence nothing better exists: the largest gains within the budget (the start flip may keep one place)
    best = gains.clamp_min(0).sort(1, descending=True).values[:, : allowed - 1].sum(1)
    reached = (gains * flipped).sum(1) - (gains * (start != base) * flipped).clamp_max(0).sum(1)
    assert bool((reached >= best - 1e-5).all())


def test_the_largest_gains_go_first_and_a_flip_that_hurts_goes_back() -> None:
    ball, base = sp.Flips(0.5), torch.ones(1, 6)
    mask = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    influence = torch.tensor([[1.0, -5.0, -1.0, -4.0, -3.0, 2.0]])
    assert ball.flip(mask, base, influence, torch.tensor([[3]])).tolist() == [[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]]
    influence[0, 0] = -1.0  # now the start flip stays, and takes a place
    assert ball.flip(mask, base, influence, torch.tensor([[3]])).tolist() == [[0.0, 0.0, 1.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize(("shape", "rows"), [((3, 12), False), ((3, 4, 5), False), ((2, 4, 9), True)])
def test_flips_step_by_step(shape: tuple[int, ...], rows: bool) -> None:
    """Against a loop that takes one entry after the other, the largest gain first."""
    ball = sp.Flips(0.4, rows=rows)
    for seed in range(10):
        torch.manual_seed(seed)
        base, influence, valid = torch.bernoulli(torch.full(shape, 0.7)), torch.randn(shape), torch.rand(shape) < 0.9
        mask = ball.sample(base, 2, valid)
        budget = ball.budget(ball.entries(mask, valid))
        found = ball.flip(mask, base, influence, budget, valid)
        flat = [t.reshape(-1, shape[-1] if rows else mask[0].numel()) for t in (mask, base, influence, valid)]
        limits, expected = budget.flatten().tolist(), []
        for m, b, im, ok, limit in zip(*flat, limits, strict=True):
            now, gain = m.clone(), (1 - 2 * m) * im
            for unit in gain.argsort(descending=True).tolist():  # going back is free, and first
                if ok[unit] and gain[unit] > 0 and m[unit] != b[unit]:
                    now[unit] = b[unit]
            for unit in gain.argsort(descending=True).tolist():
                if ok[unit] and gain[unit] > 0 and m[unit] == b[unit] and (now != b).sum() < limit:
                    now[unit] = 1 - now[unit]
            expected.append(now)
        assert torch.equal(found, torch.stack(expected).view(shape))
        assert int((mask != base).sum()) == 2 * len(limits)


def test_the_published_algorithm_overshoots_by_one_and_takes_negative_gains() -> None:
    base = torch.ones(1, 10)
    rising = torch.arange(10.0).view(1, 10)  # every gain is <= 0
    assert (
        sp.GreedyFlip(sp.Flips(0.3), start="base", rescale=False)
        .ball.flip(base, base, rising, torch.tensor([[3]]))
        .sum()
        == 10
    )
    published = sp.Flips(0.3).flip_as_published(base, base, rising, torch.tensor([[3]]))
    assert published.tolist() == [[0.0] * 4 + [1.0] * 6]
    mask = (
        sp.GreedyFlip(sp.Flips(0.3), paper_algorithm=True, rescale=False).respond(linear_game(base, -rising)).values[0]
    )
    assert (mask == 0).sum() == 4


def test_the_published_algorithm_step_by_step() -> None:
    """Against a transcription of Algorithm 1 with a loop."""
    ball = sp.Flips(0.4)
    for seed in range(40):
        torch.manual_seed(seed)
        base, influence = torch.bernoulli(torch.full((1, 12), 0.7)), torch.randn(1, 12)
        mask = ball.sample(base, torch.tensor(2))
        expected = mask.clone()
        for unit in ((1 - 2 * mask) * influence)[0].argsort(descending=True, stable=True).tolist():
            if (expected != base).sum() > 4:
                break
            expected[0, unit] = 1 - expected[0, unit]
        assert torch.equal(ball.flip_as_published(mask, base, influence, torch.tensor([[4]])), expected)


@pytest.mark.parametrize(
    ("size", "fraction", "rounds", "message"),
    [
        (64, 0.01, 1, r"Flips\(0.01\) leaves no flip after the random start flip at H=64; use at least 0.032"),
        (100, 0.02, 2, r"Flips\(0.02\) leaves less than one flip in each of 2 steps .* at H=100; use at least 0.03"),
        (3, 1.0, 4, "3 entries are too few for 4 steps"),
    ],
)
def test_a_budget_that_leaves_no_flip_is_refused(size: int, fraction: float, rounds: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.GreedyFlip(sp.Flips(fraction), rounds).respond(linear_game(torch.ones(2, size), torch.randn(2, size)))


def test_the_smallest_fraction_named_in_the_error_works() -> None:
    for size, rounds in ((64, 1), (100, 2), (7, 3), (1150, 2)):
        try:
            sp.Flips(0.0).schedule(torch.tensor([[size]]), rounds, 1)
        except ValueError as error:
            least = float(str(error).rsplit(" ", 1)[1])
        sp.Flips(least).schedule(torch.tensor([[size]]), rounds, 1)
        with pytest.raises(ValueError, match="leaves"):
            sp.Flips(least - 0.001).schedule(torch.tensor([[size]]), rounds, 1)


def test_the_papers_setting_gives_a_flip_to_each_round() -> None:
    """H = 100, 3 %, K = 2: floor(k/K * delta * H) is 1 after round one, which the start flip has used."""
    assert [int(b) for b in sp.Flips(0.03).schedule(torch.tensor([[100]]), 2, spent=1)] == [2, 3]
    assert [int(b) for b in sp.Flips(0.06).schedule(torch.tensor([[1150]]), 3, spent=1)] == [23, 46, 69]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (torch.tensor([0.5, 1.0]), "zeros and ones only"),
        ("random", "choose"),
    ],
)
def test_bad_starts_are_refused(start: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.GreedyFlip(sp.Flips(0.5), start=start)


def test_start_masks_must_fit_and_keep_to_the_budget() -> None:
    game = linear_game(torch.ones(2, 10), torch.randn(2, 10))
    with pytest.raises(ValueError, match="does not fit mask"):
        sp.GreedyFlip(sp.Flips(0.5), start=torch.ones(2, 7)).respond(game)
    with pytest.raises(ValueError, match="differs from the base in 10 entries at mask, the budget is 5"):
        sp.GreedyFlip(sp.Flips(0.5), start=torch.zeros(10)).respond(game)
    first = torch.ones(10)
    first[3] = 0
    mask = sp.GreedyFlip(sp.Flips(0.5), 2, start=first, rescale=False).respond(game).values[0]
    assert bool(((mask == 0).sum(1) <= 5).all())


@pytest.mark.parametrize("bad", [{"fraction": -0.1}, {"fraction": 1.2}])
def test_bad_fractions_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=r"lies in \[0, 1\]"):
        sp.Flips(**bad)


def test_rows_have_their_own_budgets_and_padding_is_never_flipped() -> None:
    base, slopes = torch.ones(3, 4, 10), -torch.rand(3, 4, 10) - 0.1
    rows = sp.GreedyFlip(sp.Flips(0.3, rows=True), rescale=False).respond(linear_game(base, slopes)).values[0]
    assert bool(((rows == 0).sum(-1) == 3).all())
    valid = torch.rand(3, 4, 1) > 0.4
    valid[:, :2] = True
    game = linear_game(base, slopes)
    game.slots[0].valid = valid
    mask = sp.GreedyFlip(sp.Flips(0.3), rescale=False).respond(game).values[0]
    counts = (valid.expand_as(base).flatten(1).sum(1) * 0.3 + 1e-6).long()
    assert torch.equal((mask == 0).flatten(1).sum(1), counts)
    assert bool((mask[~valid.expand_as(mask)] == 1).all())


def test_an_example_of_padding_only_is_left_alone() -> None:
    game = linear_game(torch.ones(2, 3, 10), -torch.rand(2, 3, 10) - 0.1)
    game.slots[0].valid = torch.tensor([[[True], [True], [False]], [[False], [False], [False]]])
    response = sp.GreedyFlip(sp.Flips(0.3), steps=2).respond(game)
    assert response.unperturbed is not None
    assert response.unperturbed.tolist() == [False, True]
    assert (response.values[0] == 0).flatten(1).sum(1).tolist() == [6, 0]
    with pytest.raises(ValueError, match="at H=20"):
        sp.GreedyFlip(sp.Flips(0.05), steps=2).respond(game)


def test_one_mask_for_the_batch_where_the_value_is_expanded() -> None:
    base = torch.ones(8, 10).expand(5, 8, 10)
    response = sp.GreedyFlip(sp.Flips(0.3, rows=True), rescale=False).respond(linear_game(base, -torch.rand(5, 8, 10)))
    assert response.values[0].shape == (1, 8, 10)


def test_adversarial_masks_are_divided_by_their_active_share() -> None:
    value = sp.GreedyFlip(sp.Flips(0.4)).respond(linear_game(torch.ones(5, 10), -torch.rand(5, 10))).values[0]
    torch.testing.assert_close(value.mean(1), torch.ones(5))
    assert bool(((value == 0) | (value == 10 / 6)).all())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("through", [False, True])
def test_the_influence_map_is_the_finite_difference_of_the_divergence(kind: type[nn.RNNBase], through: bool) -> None:
    """Central differences over the relaxed mask (eq. 7), float64."""
    model, x = Last(7, torch.float64, kind, scale=2.0), torch.randn(4, 6, 3, dtype=torch.float64)
    player, site = sp.GreedyFlip(sp.Flips(0.5), through_scale=through), sp.Recurrent("rnn")
    clean = model(x).detach()

    def payoff(values: Any, attached: bool = False, clean_: Tensor | None = None) -> Tensor:
        return sp.js(clean, sp.perturbed_call(model, {site: values}, x))

    game = Game([], payoff, clean, clean, [], 4)
    mask = sp.Flips(0.5).sample(torch.ones(4, 7, dtype=torch.float64), torch.tensor(1))
    _, (influence,) = player.influence(game, [mask])
    share = mask.mean(1, keepdim=True)
    step = 1e-5
    for unit in range(7):
        probe = torch.zeros_like(mask)
        probe[:, unit] = step
        ends = []
        for moved in (mask + probe, mask - probe):
            ends.append(payoff([player.multiplier(moved) if through else moved / share]))
        torch.testing.assert_close(influence[:, unit], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-9)


def test_a_start_without_slope_is_detected_explained_and_left_alone() -> None:
    model, x = Last(20), torch.randn(4, 6, 3)
    for penalty in (sp.js, sp.kl):
        with pytest.warns(UserWarning, match=r"start mask equals the base mask .* use start='flip'"):
            found = perturb(model, x, sp.Recurrent("rnn"), sp.GreedyFlip(sp.Flips(0.2), start="base"), penalty)
        assert bool((found.values[0] == 1).all())


def test_other_noise_allows_the_base_as_a_start() -> None:
    class Noisy(Last):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5))

    objective = sp.recipes.adversarial_dropout(
        Noisy(20), sp.cross_entropy, ball=sp.Flips(0.2), start="base", share_noise=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        objective(torch.randn(4, 6, 3), torch.tensor([0, 1, 2, 3])).backward()
    assert objective.diagnostics["adversarial_dropout/flips"] > 0
    assert objective.diagnostics["adversarial_dropout/unperturbed"] == 0


def test_broken_gradients_leave_the_example_alone() -> None:
    slopes = -torch.rand(4, 10)
    slopes[0], slopes[1, 3] = 0.0, float("nan")
    response: Response = sp.GreedyFlip(sp.Flips(0.4)).respond(linear_game(torch.ones(4, 10), slopes))
    assert response.unperturbed is not None
    assert response.unperturbed.tolist() == [True, True, False, False]
    assert torch.equal(response.values[0][:2], torch.ones(2, 10))
    assert bool(torch.isfinite(response.values[0]).all())


@pytest.mark.parametrize("size", [6, 8, 10])
def test_greedy_beats_random_and_with_a_few_starts_comes_near_the_exact_worst_mask(size: int) -> None:
    """Means over models as torch initialises them. One start guarantees nothing (0.5 to 0.75); four reach 0.8 of the optimum."""
    flips, site = 3, sp.Recurrent("rnn")
    exact = greedy = best = random = 0.0
    for seed in range(8):
        torch.manual_seed(seed)
        model, x = Last(size), torch.randn(16, 8, 3)
        ball = sp.Flips((flips + 1e-3) / size)
        exact += float(worst_masks(model, x, site, size, flips).divergence.mean())
        greedy += float(perturb(model, x, site, sp.GreedyFlip(ball, steps=2)).divergence.mean())
        best += float(perturb(model, x, site, sp.GreedyFlip(ball, steps=2, restarts=4)).divergence.mean())
        mask = ball.sample(torch.ones(16, size), torch.tensor(flips))
        random += float(
            sp.js(model(x), sp.perturbed_call(model, {site: mask / mask.mean(1, keepdim=True)}, x)).mean().detach()
        )
    assert random < greedy < best <= exact * (1 + 1e-6)
    assert best >= 0.8 * exact, f"{best / exact:.3f}"


def test_restarts_keep_the_best_answer_of_each_example() -> None:
    model, x, site = Last(12), torch.randn(9, 6, 3), sp.Recurrent("rnn")
    torch.manual_seed(4)
    alone = torch.stack([perturb(model, x, site, sp.GreedyFlip(sp.Flips(0.3))).divergence for _ in range(3)])
    torch.manual_seed(4)
    together = perturb(model, x, site, sp.GreedyFlip(sp.Flips(0.3), restarts=3))
    torch.testing.assert_close(together.divergence, alone.amax(0))


def test_a_step_back_to_the_base_mask_does_not_flip_on_rounding_noise() -> None:
    """A hump s^2 exp(-s^2): the start flip lands beyond its top, so the first look goes back to the base mask, where the exact slope is
    zero and the computed one is rounding."""
    slopes = torch.tensor([[3.0] * 8, [0.2] * 8], dtype=torch.float64)  # the second example stands before the top

    def payoff(values: Any, attached: bool = False, clean: Tensor | None = None) -> Tensor:
        push = ((1 - values[0]) * slopes).sum(1)
        rounding = 1e-18 * (1 - values[0]).sum(1)
        return push.square() * torch.exp(-push.square()) + rounding

    base = torch.ones(2, 8, dtype=torch.float64)
    game = Game([Slot("mask", base)], payoff, torch.zeros(2, 2), torch.zeros(2, 2), [], 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = sp.GreedyFlip(sp.Flips(0.5), steps=3, rescale=False).respond(game)
    assert response.unperturbed is not None
    assert response.unperturbed.tolist() == [True, False]
    assert torch.equal(response.values[0][0], base[0])
    assert (response.values[0][1] != base[1]).any()


def test_both_ways_comes_nearer_to_the_worst_mask_and_stays_in_the_ball() -> None:
    """Against enumeration: one start with both ways beats one start of the paper's search, for as many influence maps."""
    from torch import nn

    site, size, flips = sp.Recurrent("rnn"), 10, 3
    ball = sp.Flips((flips + 1e-3) / size)
    reached = torch.zeros(3, dtype=torch.float64)
    for seed in range(3):
        torch.manual_seed(seed)

        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn, self.head = nn.LSTM(3, size, batch_first=True), nn.Linear(size, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.head(self.rnn(x)[0][:, -1])

        model, x = Last(), torch.randn(16, 8, 3)
        answers = [sp.metrics.perturb(model, x, site, sp.GreedyFlip(ball, 2, both_ways=both)) for both in (False, True)]
        worst = sp.metrics.worst_masks(model, x, site, size, flips).divergence
        assert bool((answers[1].divergence <= worst * 1.01 + 1e-7).all())
        assert int((answers[1].values[0] == 0).sum(1).max()) <= flips
        reached += torch.tensor(
            [float(d.mean()) for d in (answers[0].divergence, answers[1].divergence, worst)]
        ).double()
    assert reached[1] > 0.85 * reached[2]
    assert reached[1] > reached[0]
    with pytest.raises(ValueError, match="choose one of the two searches"):
        sp.GreedyFlip(ball, both_ways=True, paper_algorithm=True)


def test_another_greedy_search_of_recurrent_weights_has_a_budget_for_every_row_too() -> None:
    """`by=GreedyFlip(Flips(share))` means by its share what `ball=Flips(share)` means."""
    site = sp.RecurrentWeights("0", keep=1.0)
    for words in (
        {"ball": sp.Flips(0.25), "both_ways": True},
        {"by": sp.GreedyFlip(sp.Flips(0.25), both_ways=True)},
    ):
        objective = sp.recipes.adversarial_dropout(
            nn.Sequential(nn.LSTM(3, 8)), sp.cross_entropy, at=site, outputs=lambda z: z[0][:, -1], **words
        )
        assert objective.terms[0].by == sp.GreedyFlip(sp.Flips(0.25, rows=True), both_ways=True)
