"""Learned against fixed dropout: accuracy, and whether the network knows when it is wrong."""

from dataclasses import replace

from ..study import Arm, Expect, Study, over

DROP = over("drop", 0.2, 0.35, 0.5)
ACCURACY = Study(
    name="lbd-accuracy",
    claim="learnable Bernoulli dropout > Concrete > Gaussian and MC dropout in accuracy",
    source="Boluki et al. 2020, table 1: CIFAR-10 93.47 LBD, 92.72 Concrete, 91.16 Gaussian, 91.57 MC",
    task="dropout-images",
    scale="small",
    metric="accuracy",
    better="higher",
    arms=(
        Arm("mc", DROP),
        Arm("lbd", DROP, control="mc"),
        Arm("concrete", DROP, control="mc"),
        Arm("gaussian", DROP, control="mc"),
    ),
    expects=(
        Expect("lbd", "concrete", 0.75),
        Expect("lbd", "gaussian", 2.31),
        Expect("lbd", "mc", 1.90),
    ),
    settings={"epochs": 30, "schedule": "cosine"},
    hours=8,
    shrunk="10,000 images, a VGG of three blocks with batch norm, 30 epochs; a rate for every unit in all methods",
    records="lbd",
)
UNCERTAINTY = replace(
    ACCURACY,
    name="lbd-uncertainty",
    claim="learnable Bernoulli dropout > Concrete > Gaussian and MC dropout in PAvgPU",
    source="Boluki et al. 2020, table 1: CIFAR-10 64.52 LBD, 59.97 Concrete, 52.71 Gaussian, 52.08 MC",
    metric="pavgpu",
    tuned_on="accuracy",
    expects=(
        Expect("lbd", "concrete", 4.55),
        Expect("lbd", "gaussian", 11.81),
        Expect("lbd", "mc", 12.44),
    ),
)
DIGITS = replace(
    ACCURACY,
    name="lbd-accuracy-digits",
    claim="on 8 x 8 digits learnable Bernoulli dropout > Concrete > Gaussian and MC dropout in accuracy",
    scale="tiny",
    settings={"epochs": 60, "schedule": "cosine"},
    tuning_seeds=(100, 101),
    shrunk="8 x 8 digits and a small network instead of CIFAR-10 and VGG-19, 60 epochs; a rate for every unit in all methods",
    records="lbd-digits",
)
UNCERTAINTY_DIGITS = replace(
    UNCERTAINTY,
    name="lbd-uncertainty-digits",
    claim="on 8 x 8 digits learnable Bernoulli dropout > Concrete > Gaussian and MC dropout in PAvgPU",
    scale=DIGITS.scale,
    settings=DIGITS.settings,
    tuning_seeds=DIGITS.tuning_seeds,
    shrunk=DIGITS.shrunk,
    records=DIGITS.records,
)
STUDIES = (DIGITS, UNCERTAINTY_DIGITS, ACCURACY, UNCERTAINTY)
