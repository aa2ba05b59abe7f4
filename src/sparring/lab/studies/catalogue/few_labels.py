"""Few labels: does an adversary turn unlabelled images into accuracy, and does seeing through it help?"""

from dataclasses import replace

from ...task import Value
from ..study import Arm, Expect, Study, over

MIYATO = "Miyato et al. 2018, table 2: MNIST with 100 labels"
SEEN_AT: tuple[dict[str, Value], ...] = (
    {"radius": 2.0, "start": 10.0},
    {"radius": 2.0, "start": 1.0},
    {"radius": 1.0, "start": 10.0},
)
HALF: tuple[dict[str, Value], ...] = (
    {"radius": 1.0, "start": 10.0},
    {"radius": 1.0, "start": 1.0},
    {"radius": 0.5, "start": 10.0},
)
# SALT and the same ascent without unrolling are offered the same three followers.
FOLLOWERS: tuple[dict[str, Value], ...] = (
    {"update": "normalised", "start": 1.0},
    {"update": "normalised", "start": 0.1},
    {"update": "raw", "start": 0.1, "step_size": 1.0},
)

# Zuo et al. 2021, appendix: a step and a start of 1e-4 with Adam, K = 2; the follower hardly leaves the clean point.
PUBLISHED = Arm(
    "salt_published",
    method="salt",
    control="noise",
    settings={"radius": 1.0, "update": "adam", "step_size": 1e-4, "start": 1e-4, "steps": 2},
)


def arms(vat: tuple[dict[str, Value], ...], scale: float) -> tuple[Arm, ...]:
    """The competitors; `scale` is the radius that suits the images."""
    followers = tuple({"radius": scale, **trial} for trial in FOLLOWERS)
    keep, flips = over("keep", 0.9, 0.7, 0.5), over("flips", 0.02, 0.05, 0.15)
    return (
        Arm("plain"),
        Arm("noise", over("radius", scale, 2 * scale, 4 * scale)),
        Arm("vat", vat, control="noise"),
        Arm("pgd", followers, control="noise"),
        Arm("salt", followers, control="noise"),
        Arm("r_drop", keep, control="dropout"),
        Arm("dropout", keep),
        Arm("random_dropout", flips),
        Arm("adversarial_dropout", flips, control="random_dropout"),
        Arm("vat_entropy", vat, control="noise"),
    )


MNIST = Study(
    name="few-labels",
    claim="VAT turns 100 labels into about 2 % error on MNIST, where supervised training has about 22 %; noise does not",
    source=MIYATO,
    task="few-labels-mnist",
    scale="small",
    metric="error",
    better="lower",
    arms=arms(SEEN_AT, 2.0),
    expects=(Expect("vat", "plain", 20.0), Expect("vat", "noise")),
    settings={"epochs": 10},
    shrunk="2,000 updates instead of 100,000, two hidden layers of 600 instead of four of 1,200 to 600",
)
DIGITS = replace(
    MNIST,
    name="few-labels-digits",
    claim="with 50 labels on 8 x 8 digits VAT is better than supervised training and than noise",
    task="few-labels-digits",
    scale="tiny",
    arms=arms(HALF, 1.0),
    expects=(Expect("vat", "plain"), Expect("vat", "noise")),
    settings={},
    tuning_seeds=(100, 101),
    seeds=tuple(range(10)),
    shrunk="8 x 8 digits instead of MNIST, 1,000 updates",
)
FOLLOWER = replace(
    DIGITS,
    name="salt-follower",
    claim="the unrolled gradient matters: SALT is better than the same ascent without unrolling",
    source="Zuo et al. 2021, section 4",
    expects=(Expect("salt", "pgd"), Expect("salt", "noise")),
    arms=(*DIGITS.arms, PUBLISHED),
    records="few-labels-digits",
    shrunk="8 x 8 digits with 50 labels instead of fine-tuning a language model",
)
# Ten seeds leave it open whether VAT beats its control; at their spread fifty settle it.
CONTROL = replace(
    DIGITS,
    name="vat-or-noise",
    claim="with 50 labels on 8 x 8 digits VAT is better than random noise of a tuned radius",
    arms=tuple(arm for arm in DIGITS.arms if arm.name in ("noise", "vat")),
    expects=(Expect("vat", "noise"),),
    seeds=tuple(range(50)),
    records="few-labels-digits",
)
# What a user gets who tunes nothing.
DEFAULTS = replace(
    MNIST,
    name="few-labels-defaults",
    claim="VAT with its defaults turns 100 labels into about 2 % error on MNIST, where supervised training has about 22 %",
    arms=(Arm("plain"), Arm("vat")),
    expects=(Expect("vat", "plain", 20.0),),
    records=MNIST.name,
)
STUDIES = (DIGITS, MNIST, DEFAULTS, FOLLOWER, CONTROL)
