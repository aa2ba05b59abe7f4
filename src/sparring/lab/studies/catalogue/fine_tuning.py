"""Fine-tuning and translation: is seeing through the opponent worth its price?"""

from collections.abc import Mapping
from dataclasses import replace

from ...task import Value
from ...tasks.encoders import MINILM
from ..study import Arm, Expect, Study, over

Trials = tuple[dict[str, Value], ...]
ZUO = "Zuo et al. 2021"
AFTER_SNLI: dict[str, Value] = {"first": "snli", "first_examples": 20_000, "first_epochs": 1, "first_length": 64}
# The study of SST-2 tunes SALT's follower, the others its radius, as they tune everybody's.
FOLLOWERS: Trials = (
    {"radius": 1.0, "update": "normalised", "start": 1e-4},
    {"radius": 1.0, "update": "normalised", "start": 1.0},
    {"radius": 1.0, "update": "raw", "start": 0.1, "step_size": 1.0},
)
# On CoLA a worst case changes MiniLM's answers more at a radius of .03 than noise does at 1, and at .3 makes it forget what it learnt.
NEAR, MIDDLE, FAR = (over("radius", *radii) for radii in ((0.01, 0.03, 0.1), (0.03, 0.1, 0.3), (0.3, 1.0, 3.0)))


def followers(radii: Trials, share: float = 1e-3) -> Trials:
    """SALT's: a thousandth of the radius a number is a tenth of it over the 7,000 numbers of a short sentence."""
    return tuple({**trial, "start": round(share * float(trial["radius"] or 0), 7)} for trial in radii)


def arms(radii: Trials, salt: Trials, noise: Trials) -> tuple[Arm, ...]:
    """Plain, the controls and the adversaries, each with three values to choose from."""
    return (
        Arm("plain"),
        Arm("noise", noise),
        Arm("smart", radii, control="noise"),
        Arm("salt", salt, control="noise"),
        Arm("vat", radii, control="noise"),
        Arm("r_drop", over("weight", 0.3, 1.0, 3.0)),
    )


def fine_tuning(
    task: str,
    metric: str,
    published: tuple[float, float, float],
    settings: Mapping[str, Value],
    shrunk: str,
    hours: float,
    tuning: Mapping[str, Value] | None = None,
    radii: Trials = NEAR,
    salt_trials: Trials = (),
    version: int = 1,
) -> Study:
    """The claim on one data set of GLUE; `published` are table 4's figures of plain, SMART and SALT."""
    plain, smart, salt = published
    return Study(
        name=f"salt-{task}",
        claim=f"SALT > SMART > plain in fine-tuning on {task.upper()}",
        source=f"{ZUO}, table 4: {plain} plain, {smart} SMART, {salt} SALT",
        task=task,
        scale="small",
        metric=metric,
        better="higher",
        arms=arms(radii, salt_trials or followers(radii), FAR),
        expects=(
            Expect("salt", "smart", salt - smart),
            Expect("smart", "plain", smart - plain),
            Expect("salt", "noise"),
        ),
        settings={"steps": 1, "start": 1e-4, **settings},
        tuning=tuning or {},
        hours=hours,
        needs=("transformers", MINILM),
        version=version,
        shrunk=f"MiniLM (6 layers of 384) instead of BERT, {shrunk}, K = 1, the public development set for testing",
    )


SST2 = fine_tuning(
    "sst-2",
    "accuracy",
    (92.9, 93.0, 93.6),
    {"examples": 2000, "epochs": 3},
    "2,000 sentences, 3 epochs",
    2.5,
    radii=FAR,
    salt_trials=FOLLOWERS,
)
COLA = fine_tuning(
    "cola",
    "matthews",
    (54.7, 59.1, 61.0),
    # In its first epoch MiniLM learns that most sentences are acceptable and no more, and its scores say nothing of a method. So
    # everybody begins where two plain epochs of all sentences end.
    {"first": "cola", "first_epochs": 2, "examples": 3000, "freeze_words": True, "epochs": 1},
    "its table of words frozen, one epoch of 3,000 sentences (tuning: 1,000) after two plain ones of all sentences that all share, the "
    "derivative through SALT's ascent below a thousandth of the gradient at the radius that validation chose",
    2.5,
    tuning={"examples": 1000},
    version=2,  # before, the start was kept where it was better on validation
)
RTE = fine_tuning(
    "rte",
    "accuracy",
    (63.5, 71.2, 72.9),
    {"examples": 512, "freeze_words": True, "length": 96, "batch": 16, "lr": 1e-4, "epochs": 2, **AFTER_SNLI},
    "its table of words frozen, fine-tuned on 18,000 pairs of SNLI before, 512 pairs of up to 96 pieces, 2 epochs at 1e-4 (tuning: 1)",
    3,
    tuning={"epochs": 1},
)
STSB = fine_tuning(
    "sts-b",
    "pearson",
    (89.2, 90.0, 90.4),
    {"examples": 1000, "freeze_words": True, "batch": 16, "lr": 1e-4, "epochs": 2, **AFTER_SNLI},
    "its table of words frozen, fine-tuned on 18,000 pairs of SNLI before, 1,000 pairs, 2 epochs at 1e-4 (tuning: 1)",
    2.5,
    tuning={"epochs": 1},
    radii=MIDDLE,
)


def calibration(name: str, study: Study) -> Study:
    """The paper's claim on calibration, on the runs of a study of fine-tuning."""
    return replace(
        study,
        name=name,
        claim=f"SALT is better calibrated than SMART and than plain fine-tuning on {study.task.upper()}",
        source=f"{ZUO}, figure 2",
        metric="ece",
        better="lower",
        tuned_on=study.metric,
        tuned_better=study.better,
        expects=(Expect("salt", "smart"), Expect("salt", "plain")),
        records=study.name,
    )


TRANSLATION = Study(
    name="salt-translation",
    claim="SALT > SMART > plain in BLEU, within 128 updates after eight plain epochs",
    source=f"{ZUO}, table 2: IWSLT'14 De-En 34.7 plain, 35.5 SMART, 36.8 SALT",
    task="multi30k",
    scale="small",
    metric="bleu",
    better="higher",
    arms=arms(MIDDLE, followers(MIDDLE, 2e-3), FAR),  # a side of a sentence is 2,000 numbers
    expects=(Expect("salt", "smart", 1.3), Expect("smart", "plain", 0.8), Expect("salt", "noise")),
    # A network that still learns its words gains more from any update than from what a method adds: everybody begins where eight
    # plain epochs end.
    settings={"first_epochs": 8, "epochs": 1, "epoch_batches": 128, "lr": 5e-4, "schedule": "linear"},
    tuning={"epoch_batches": 64},
    hours=4,
    shrunk="Multi30k De-En (29,000 pairs), two layers each way of width 128, 4,000 pieces, 128 updates (tuning: 64) after eight plain "
    "epochs that all share",
)
STUDIES = (
    SST2,
    calibration("salt-calibration", SST2),
    COLA,
    calibration("salt-calibration-cola", COLA),
    RTE,
    calibration("salt-calibration-rte", RTE),
    STSB,
    TRANSLATION,
)
