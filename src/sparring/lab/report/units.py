"""What the figures of the tasks are measured in, for tables and axes."""

PERCENT = frozenset(
    {
        "accuracy",
        "error",
        "f1",
        "macro F1",
        "ece",
        "worst-case accuracy",
        "pavgpu",
        "mean_iou",
        "masked",
        "clean",
        "vanished",
        "fgsm",
        "bim",
        "pgd",
        "paper_pgd",
        "margin",
        "autoattack",
        "cw",
        "ece (shifted)",
        "accuracy (shifted)",
        "pavgpu (shifted)",
    }
)


def with_unit(name: str) -> str:
    """The name of a figure and its unit where it has one.

    >>> with_unit("accuracy"), with_unit("fgsm x2"), with_unit("loss")
    ('accuracy (%)', 'fgsm x2 (%)', 'loss')
    """
    return f"{name} (%)" if name.removesuffix(" x2") in PERCENT else name
