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
    Study(
        name="add-language-model",
        claim="adversarial dropout lowers the perplexity of an AWD-LSTM below fraternal dropout's and plain's",
        source="Park et al. 2019, table 3: Penn Treebank 58.3 plain, 56.8 fraternal, 56.4 adversarial",
        task="ptb",
        scale="small",
        metric="perplexity",
        better="lower",
        arms=(
            Arm("plain", over("drop_weights", 0.3, 0.4, 0.5)),
            Arm("fraternal_dropout", over("weight", 0.05, 0.15, 0.5)),
            Arm("adversarial_dropout", over("delta", 0.03, 0.06, 0.12), control="expectation_linear"),
            Arm("expectation_linear", over("weight", 0.1, 0.25, 0.5)),
            # Where a penalty is charged, the activation regularisers are off, as in the released codes. Is it that?
            Arm("plain_no_ar", method="plain", settings={"alpha": 0.0, "beta": 0.0, "drop_weights": 0.5}),
            # They also drop fewer of the recurrent weights, as the scale does: is it that?
            Arm("plain_as_they", method="plain", settings={"alpha": 0.0, "beta": 0.0, "drop_weights": 0.3}),
            Arm("variational_dropout"),
            Arm("r_drop"),
        ),
        expects=(
            Expect("adversarial_dropout", "fraternal_dropout", 0.4),
            Expect("adversarial_dropout", "plain", 1.9),
            Expect("adversarial_dropout", "plain_no_ar"),
            Expect("adversarial_dropout", "plain_as_they"),
        ),
        settings={"words": 100_000, "vocabulary": 2_000, "size": 100, "hidden": 200, "epochs": 12},
        hours=2.5,
        shrunk="the first 100,000 words of the training text, the 2,000 most frequent words (so perplexities are lower), two layers "
        "of 200 and 100 units, 12 epochs instead of several hundred, not fine-tuned",
    ),
    Study(
        name="add-sentiment",
        claim="adversarial dropout with VAT < VAT, adversarial dropout < plain in error",
        source="Park et al. 2019, table 2: IMDB 7.164 plain, 5.914 VAT, 6.155 adversarial dropout (K = 1), 5.715 both",
        task="imdb",
        scale="small",
        metric="error",
        better="lower",
        arms=(
            Arm("plain"),
            Arm("from_scratch"),
            Arm("vat", over("radius", 1.0, 5.0, 15.0)),
            Arm("adversarial_dropout", over("delta", 0.02, 0.04, 0.1), control="expectation_linear"),
            Arm("expectation_linear", over("keep", 0.97, 0.9, 0.8)),
            Arm("adversarial_dropout_vat", over("delta", 0.02, 0.04, 0.1), control="expectation_linear"),
        ),
        expects=(
            Expect("vat", "plain", 1.25),
            Expect("adversarial_dropout", "plain", 1.009),
            Expect("adversarial_dropout_vat", "vat", 0.199),
        ),
        settings={"longest": 100, "truncate": 100, "epochs": 6},
        tuning={"epochs": 4},
        hours=4,
        shrunk="2,500 labelled and 20,000 unlabelled reviews, their last 100 words, 600 updates (tuning: 400), 256 "
        "units, GloVe of 100 dimensions, one language model of two epochs as the start of all but `from_scratch`",
    ),
)
