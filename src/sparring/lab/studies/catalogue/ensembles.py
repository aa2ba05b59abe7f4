"""Ensembles under attack: is priority dropout robust, and is what it shows more than flat gradients?"""

from dataclasses import replace

from ..study import Arm, Expect, Study, over

WU = "Wu et al. 2023"
GAMMA = over("gamma", 3.0, 10.0, 30.0)
ARMS = (
    Arm("plain"),
    Arm("dropout", over("keep", 0.3, 0.5, 0.8)),
    Arm("lpd", GAMMA, control="dropout"),
    Arm("lpd-rescaled", GAMMA, control="dropout"),
    Arm("pdd", over("intervals", 5, 10, 20), control="dropout"),
    Arm("adp", over("entropy", 0.5, 2.0, 8.0)),
    Arm("deg", over("deg", 0.01, 0.1, 1.0)),
)
MNIST = Study(
    name="lpd-robustness",
    claim="LPD keeps more accuracy under attack than plain training, dropout, ADP, PDD and DEG, and not by masking gradients",
    source=f"{WU}, table 4: CIFAR-10 under PGD .02 7.49 plain, 38.97 ADP, 33.92 PDD, 45.90 LPD",
    task="mnist-ensemble",
    scale="small",
    metric="worst-case accuracy",
    better="higher",
    arms=ARMS,
    expects=(
        Expect("lpd", "plain", 38.41),
        Expect("lpd", "adp", 6.93),
        Expect("lpd", "pdd", 11.98),
        Expect("lpd", "dropout"),
        Expect("lpd", "deg"),
    ),
    settings={"watched": 100, "attacked": 1000, "audited": 200, "autoattack": 0, "swept": 0},
    tuned_on="margin",
    tuning={"attacked": 0, "audited": 0},
    hours=6,
    shrunk="MNIST (10,000 images) and small networks; accuracy under the strongest attack of the audit over 200 images, radius .1",
)
DIGITS = replace(
    MNIST,
    name="lpd-robustness-digits",
    claim="on 8 x 8 digits LPD keeps more accuracy under attack than plain training, dropout, ADP, PDD and DEG",
    task="digits-ensemble",
    settings={
        "watched": 100,
        "attacked": 300,
        "audited": 100,
        "autoattack": 0,
        "saliency": 0,
        "swept": 0,
        "certified": 0,
    },
    shrunk="8 x 8 digits and small networks; accuracy under the strongest attack of the audit over 100 images, radius .1",
)
ONE_LOSS = replace(
    DIGITS,
    name="lpd-pgd-digits",
    claim="on 8 x 8 digits LPD keeps more accuracy under PGD on the cross-entropy, the attack of the paper, than the others",
    metric="pgd",
    records=DIGITS.name,
    shrunk="8 x 8 digits and small networks; PGD over 300 images, radius .1",
)
DIVERSITY = replace(
    DIGITS,
    name="lpd-diversity-digits",
    claim="on 8 x 8 digits LPD raises the ambiguity of the ensemble above plain training, ADP and PDD",
    source=f"{WU}, table 1: CIFAR-100 .1905 plain, .2155 ADP, .2277 PDD, .2631 LPD",
    metric="ambiguity",
    tuned_better="higher",
    expects=(Expect("lpd", "plain", 0.0726), Expect("lpd", "adp", 0.0476), Expect("lpd", "pdd", 0.0354)),
    records=DIGITS.name,
    shrunk="8 x 8 digits and small networks",
)
STUDIES = (DIGITS, ONE_LOSS, DIVERSITY, MNIST)
