"""Dropout masks of a recurrent network: random, twice random, adversarial."""

from ..study import Arm, Expect, Study, over

KEEP, FLIPS = over("keep", 0.97, 0.9, 0.8), over("flips", 0.03, 0.1, 0.3)
STUDIES = (
    Study(
        name="add-smnist",
        claim="in error, adversarial dropout with K = 2 < K = 1 < fraternal dropout < variational dropout < plain",
        source="Park et al. 2019, table 1: sequential MNIST",
        task="smnist",
        scale="small",
        metric="error",
        better="lower",
        arms=(
            Arm("plain"),
            Arm("variational_dropout", KEEP),
            Arm("fraternal_dropout", KEEP, control="variational_dropout"),
            Arm("expectation_linear", KEEP),
            Arm("adversarial_dropout", FLIPS, control="expectation_linear"),
            Arm("adversarial_dropout_k2", FLIPS, control="expectation_linear"),
            Arm("vat", over("radius", 0.25, 0.5, 1.0)),
        ),
        expects=(
            Expect("adversarial_dropout_k2", "adversarial_dropout", 0.061),
            Expect("adversarial_dropout", "fraternal_dropout", 0.015),
            Expect("fraternal_dropout", "variational_dropout", 0.001),
            Expect("variational_dropout", "plain", 0.297),
        ),
        settings={"examples": 1000, "epochs": 60, "validated": 1000},
        shrunk="1,000 images read row by row (28 steps), 60 epochs",
    ),
)
