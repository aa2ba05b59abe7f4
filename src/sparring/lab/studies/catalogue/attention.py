"""Attention under attack: does it predict better, and does it agree more with what the prediction hangs on?"""

from dataclasses import replace

from ..study import Arm, Expect, Study, over

RADII = over("radius", 0.5, 1.0, 5.0, 15.0)
SCORE = Study(
    name="attention-score",
    claim="Attention AT and Attention iAT raise F1; random noise on the attention does too",
    source="Kitada and Iyatomi 2021, table 2: SST 79.27 plain, 81.90 noise, 81.72 AT, 82.20 iAT",
    task="sst",
    scale="small",
    metric="f1",
    better="higher",
    arms=(
        Arm("plain"),
        Arm("attention_noise", RADII),
        Arm("attention_at", RADII, control="attention_noise"),
        Arm("attention_at_released", RADII, control="attention_noise"),
        Arm("attention_iat", RADII, control="attention_noise"),
    ),
    expects=(
        Expect("attention_at", "plain", 2.45),
        Expect("attention_iat", "plain", 2.93),
        Expect("attention_noise", "plain", 2.63),
    ),
    settings={"features": 128, "epochs": 20, "patience": 5},
    shrunk="GloVe of 100 dimensions and 20,000 words, BiLSTM of 2 x 128",
    records="attention",
)
AGREEMENT = replace(
    SCORE,
    name="attention-agreement",
    claim="Attention AT and Attention iAT raise the correlation of attention with gradient importance",
    source="Kitada and Iyatomi 2021, table 2: SST .652 plain, .852 AT, .876 iAT",
    metric="pearson",
    expects=(
        Expect("attention_at", "plain", 0.200),
        Expect("attention_iat", "plain", 0.224),
        Expect("attention_at_released", "plain", 0.200),
    ),
    tuned_on="f1",
    tuned_better="higher",
)
STUDIES = (SCORE, AGREEMENT)
