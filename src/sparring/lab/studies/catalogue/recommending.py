"""Recommending films: does an autoencoder with learned dropout rank better than one with fixed dropout or none?"""

from ..study import Arm, Expect, Study, over

BETA = over("beta", 0.2, 0.5, 1.0)
STUDIES = (
    Study(
        name="sivae",
        claim="in NDCG@100, SIVAE with learned Bernoulli dropout > VAE with dropout > VAE without",
        source="Boluki et al. 2020, table 2: MovieLens 20M 43.01, 42.63, 38.53",
        task="movielens-1m",
        scale="small",
        metric="ndcg@100",
        better="higher",
        arms=(
            Arm("vae", BETA),
            Arm("vae-drop", BETA),
            Arm("sivae-bernoulli", BETA, control="vae-drop"),
            Arm("sivae-concrete", BETA, control="vae-drop"),
            Arm("sivae-gaussian", BETA, control="vae-drop"),
        ),
        expects=(Expect("sivae-bernoulli", "vae-drop", 0.38), Expect("vae-drop", "vae", 4.10)),
        settings={"epochs": 100, "patience": 10},
        shrunk="the 6,039 users of MovieLens 1M's implicit lists instead of 136,677, networks of 200 and 64 units; a seed is a split",
    ),
)
