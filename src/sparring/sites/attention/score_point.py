"""Our own attention layers, and those of users that send their scores through a `ScorePoint`."""

from torch import Tensor, nn

from ...nn.attention import ScorePoint
from ..site import Undo
from .registry import ScoreVisit, register_attention


def has_score_point(module: nn.Module) -> bool:
    return isinstance(getattr(module, "scores", None), ScorePoint)


@register_attention(has_score_point)
def at_score_point(module: nn.Module, visit: ScoreVisit) -> Undo:
    """A hook behind the point."""

    def after(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], scores: Tensor) -> Tensor:
        return visit(scores, kwargs.get("valid", args[1] if len(args) > 1 else None))

    point = module.scores
    assert isinstance(point, ScorePoint)
    return point.register_forward_hook(after, with_kwargs=True).remove
