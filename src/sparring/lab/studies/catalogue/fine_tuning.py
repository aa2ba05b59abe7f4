"""Fine-tuning and translation: is seeing through the opponent worth its price?"""

from dataclasses import replace
from typing import Any

from ...task import Value
from ..study import Arm, Expect, Study, over

ZUO = "Zuo et al. 2021"
RADII = over("radius", 0.3, 1.0, 3.0)
# SALT's main knob is its follower: what the unrolled gradient does hangs on it far more than on the radius.
FOLLOWERS: tuple[dict[str, Value], ...] = (
    {"radius": 1.0, "update": "normalised", "start": 1e-4},
    {"radius": 1.0, "update": "normalised", "start": 1.0},
    {"radius": 1.0, "update": "raw", "start": 0.1, "step_size": 1.0},
)
ARMS = (
    Arm("plain"),
    Arm("noise", RADII),
    Arm("smart", RADII, control="noise"),
    Arm("salt", FOLLOWERS, control="noise"),
    Arm("vat", RADII, control="noise"),
    Arm("r_drop", over("weight", 0.3, 1.0, 3.0)),
)


def fine_tuning(task: str, metric: str, plain: float, smart: float, salt: float, **settings: Any) -> Study:
    """The claim on one data set of GLUE, with the figures of table 4."""
    return Study(
        name=f"salt-{task}",
        claim=f"SALT > SMART > plain in fine-tuning on {task.upper()}",
        source=f"{ZUO}, table 4: {plain} plain, {smart} SMART, {salt} SALT",
        task=task,
        scale="small",
        metric=metric,
        better="higher",
        arms=ARMS,
        expects=(
            Expect("salt", "smart", salt - smart),
            Expect("smart", "plain", smart - plain),
            Expect("salt", "noise"),
        ),
        settings={"epochs": 3, "steps": 1, **settings},
        hours=7,
        shrunk="MiniLM (6 layers of 384) instead of BERT, 3 epochs, K = 1, the public development set for testing",
    )


SST2 = fine_tuning("sst-2", "accuracy", 92.9, 93.0, 93.6, examples=2000)
CALIBRATION = replace(
    SST2,
    name="salt-calibration",
    claim="SALT is better calibrated than SMART and than plain fine-tuning",
    source=f"{ZUO}, figure 2",
    metric="ece",
    better="lower",
    tuned_on="accuracy",
    tuned_better="higher",
    expects=(Expect("salt", "smart"), Expect("salt", "plain")),
    records=SST2.name,
)
TRANSLATION = Study(
    name="salt-translation",
    claim="SALT > SMART > plain in BLEU",
    source=f"{ZUO}, table 2: IWSLT'14 De-En 34.7 plain, 35.5 SMART, 36.8 SALT",
    task="multi30k",
    scale="small",
    metric="bleu",
    better="higher",
    arms=tuple(arm if arm.trials != RADII else replace(arm, trials=over("radius", 0.1, 0.3, 1.0)) for arm in ARMS),
    expects=(Expect("salt", "smart", 1.3), Expect("smart", "plain", 0.8), Expect("salt", "noise")),
    hours=10,
    shrunk="Multi30k De-En (29,000 pairs), two layers each way of width 128, 4,000 pieces",
)
STUDIES = (
    SST2,
    CALIBRATION,
    fine_tuning("cola", "matthews", 54.7, 59.1, 61.0, examples=0),
    fine_tuning("rte", "accuracy", 63.5, 71.2, 72.9, examples=0),
    fine_tuning("sts-b", "pearson", 89.2, 90.0, 90.4, examples=0),
    TRANSLATION,
)
