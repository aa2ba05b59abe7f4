"""Methods that perturb inputs, embeddings or hidden layers, and their noise-only control."""

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from ..balls import L2, Ball, Linf
from ..objective import Objective, Term, Weight
from ..penalties import Penalty, kl, symmetric_kl
from ..players import PGD, FastGradient
from ..players.pgd import Update
from ..players.player import Player
from ..sites import Input, Output, Site
from ..terms.free import FreeAT, FreeLB
from ..terms.proximal import Proximal

Loss = Callable[..., Tensor]
Place = str | Site | None


def site_of(at: Place) -> Site:
    """A glob means the output of those modules, None the model's input; a site is itself."""
    if at is None:
        return Input()
    return Output(at) if isinstance(at, str) else at


def adversarial_training(
    model: nn.Module, loss: Loss, at: Place = None, ball: Ball = L2(1.0), by: Player | None = None, weight: Weight = 1.0,
    share_noise: bool = True, **options: Any,
) -> Objective:  # fmt: skip
    """Clean loss plus the loss at the worst point of a ball (Goodfellow et al. 2015; Miyato et al. 2017 on embeddings: Word AT).

    >>> import sparring as sp, torch
    >>> model = nn.Sequential(nn.Linear(4, 3))
    >>> objective = adversarial_training(model, sp.cross_entropy, ball=sp.Linf(0.1))
    >>> objective(torch.randn(2, 4), torch.tensor([0, 2])).backward()

    Args:
        model: any classifier or regressor.
        loss: per-example loss.
        at: glob of modules, a site, or None for the input.
        ball: how far.
        by: the player; one fast-gradient step by default, `PGD(ball, steps)` for more.
        weight: of the perturbed loss.
        share_noise: same dropout in both passes.
        options: passed to `Objective`.
    """
    player = by or FastGradient(ball)
    return Objective(model, loss, Term(site_of(at), player, weight=weight, share_noise=share_noise), **options)


def vat(
    model: nn.Module, loss: Loss, at: Place = None, ball: Ball = L2(1.0), xi: float = 0.1, iterations: int = 1,
    form: Literal["power", "pgd"] = "power", penalty: Penalty = kl, weight: Weight = 1.0, detach_clean: bool = True,
    share_noise: bool = True, **options: Any,
) -> Objective:  # fmt: skip
    """Virtual adversarial training (Miyato et al. 2018): KL to the worst nearby point; needs no labels.

    Args:
        form: "power" (power iteration: gradient at distance xi along a random direction, then a full step) or "pgd" (projected
            ascent from a Gaussian start of size xi).
        xi: see `form`.
        iterations: looks at the gradient.
        detach_clean: the clean prediction is a constant target, as in the paper.
    """
    if form not in ("power", "pgd"):
        raise ValueError(f'vat(form={form!r}): choose "power" or "pgd"')
    player: Player = FastGradient(ball, xi, iterations) if form == "power" else PGD(ball, iterations, start=xi)
    term = Term(site_of(at), player, penalty, weight, share_noise=share_noise, detach_clean=detach_clean)
    return Objective(model, loss, term, **options)


def salt(
    model: nn.Module, loss: Loss, at: Place = None, ball: Ball = L2(1.0), steps: int = 1, step_size: float | None = None,
    start: float = 1e-5, update: Update = "normalised", backend: Literal["autograd", "finite_difference"] = "autograd",
    penalty: Penalty = kl, weight: Weight = 1.0, detach_clean: bool = False, share_noise: bool = True, **options: Any,
) -> Objective:  # fmt: skip
    """Stackelberg adversarial regularisation (Zuo et al. 2021): the model differentiates through its opponent's ascent.

    Args:
        ball: radius epsilon; the projection is part of every unrolled step.
        steps: K.
        step_size: eta; see `PGD`.
        start: sigma of the Gaussian start.
        update: "normalised", "raw" (the paper's SGD follower, needs `step_size`), "adam", "sign".
        backend: "autograd" (exact, double backward) or "finite_difference" (cheaper, any model).
        penalty: KL(clean || perturbed) as in the paper; `symmetric_kl`, or `squared_error` for regression.
        detach_clean: cut the clean side; the paper's equations do not.
    """
    player = PGD(ball, steps, step_size, start, update, unroll=backend)
    term = Term(site_of(at), player, penalty, weight, share_noise=share_noise, detach_clean=detach_clean)
    return Objective(model, loss, term, **options)


def slower_later(updates: int) -> float:
    """SMART's decay of the averaged weights: .99 for the first thousand updates, then .999."""
    return 0.99 if updates < 1000 else 0.999


def smart(
    model: nn.Module, loss: Loss, at: Place = None, ball: Ball = Linf(1e-5), steps: int = 1, step_size: float | None = 1e-3,
    start: float = 1e-5, update: Update = "normalised", penalty: Penalty = symmetric_kl, weight: Weight = 1.0,
    proximal_weight: float = 1.0, decay: float | Callable[[int], float] = slower_later,
    share_noise: bool = True, **options: Any,
) -> Objective:  # fmt: skip
    """SMART (Jiang et al. 2020): smoothness (ascent, symmetric KL) plus a Bregman proximal term against averaged weights.

    The published radius and step are tiny; see the SALT page for what that means and try `ball=L2(1.0), step_size=None`.

    Args:
        proximal_weight: mu, weight of the proximal term; 0 leaves it out, as public re-implementations do.
        decay: of the average, a number or a function of the number of updates.
    """
    smooth = Term(site_of(at), PGD(ball, steps, step_size, start, update), penalty, weight, share_noise=share_noise)
    return Objective(model, loss, smooth, Proximal(model, proximal_weight, penalty, decay), **options)


def free_lb(
    model: nn.Module, loss: Loss, at: Place = None, ball: Ball = L2(0.3), steps: int = 3, step_size: float | None = None,
    update: Update = "normalised", penalty: Penalty | None = None, weight: Weight = 1.0, **options: Any,
) -> Objective:  # fmt: skip
    """FreeLB (Zhu et al. 2020): the gradient is averaged over the K points of an ascent from a uniform start.

    Args:
        penalty: None for the published form (supervised loss at every point, no clean loss); a divergence for the regulariser
            CE + weight / K * sum_k penalty(delta^k).
    """
    term = Term(site_of(at), PGD(ball, steps, step_size, "uniform", update), penalty, weight, name="FreeLB")
    return FreeLB(model, loss, term, **options)


def free_at(
    model: nn.Module, loss: Loss, at: Place = None, ball: Ball = Linf(0.1), steps: int = 3, step_size: float | None = None,
    start: float | Literal["uniform"] = 0.0, update: Update = "sign", weight: Weight = 1.0, **options: Any,
) -> Objective:  # fmt: skip
    """Free adversarial training (Shafahi et al. 2019): K replays of a batch, an update after each, the perturbation carried over.

    Args:
        step_size: the radius by default, as in the paper.
    """
    size = ball.radius if step_size is None and ball.radius else step_size
    return FreeAT(
        model, loss, Term(site_of(at), PGD(ball, steps, size, start, update), weight=weight, name="FreeAT"), **options
    )


def r_drop(
    model: nn.Module, loss: Loss, penalty: Penalty = symmetric_kl, weight: Weight = 1.0, **options: Any
) -> Objective:
    """R-Drop (Liang et al. 2021): two passes that differ in dropout only; CE1 + CE2 + weight / 2 * symmetric KL.

    The noise-only control of every adversarial regulariser.
    """
    half = (lambda n: weight(n) / 2) if callable(weight) else weight / 2
    return Objective(
        model, loss, Term(None, None, penalty, half, share_noise=False, supervised=1.0, name="R-Drop"), **options
    )
