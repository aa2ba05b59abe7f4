"""What is proved rather than measured: statements of the papers that hold always, each with the test that shows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Theorem:
    """A statement, where it stands, and the name of the test that checks it."""

    statement: str
    source: str
    test: str


PARK, KITADA = "Park et al. 2019", "Kitada and Iyatomi 2021"
BOLUKI, WU = "Boluki et al. 2020", "Wu et al. 2023"
THEOREMS = (
    Theorem(
        "The worst mask charges at least as much as random ones: FD / 4 <= EL <= AdD",
        f"{PARK}, proposition 1",
        "test_proposition_1_by_brute_force",
    ),
    Theorem(
        "The expected penalty is the variance of both outputs, less twice their covariance, plus the squared gap of their means",
        f"{PARK}, remark 1",
        "test_remark_1_is_an_identity",
    ),
    Theorem(
        "Attention iAT, taken as its equations are printed, is Attention AT to the bit",
        f"{KITADA}, eq. 12 to 19",
        "test_the_papers_iat_is_at_bit_for_bit",
    ),
    Theorem("ARM and DisARM are unbiased", f"{BOLUKI}, eq. 6", "test_every_estimator_is_unbiased"),
    Theorem(
        "DisARM varies less than ARM, and ARM less than the score function",
        f"{BOLUKI}, section 2",
        "test_disarm_varies_less_than_arm_and_arm_less_than_reinforce",
    ),
    Theorem(
        "Equation 4 keeps the units of crowded bins less often, the opposite of the text around it",
        f"{WU}, eq. 4",
        "test_crowded_bins_are_kept_less_as_equation_four_says",
    ),
)
