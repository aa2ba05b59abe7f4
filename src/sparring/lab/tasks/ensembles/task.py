"""Ensembles under attack: networks trained at once on five data sets, with and without priority dropout.

The tasks of "Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training": Tables 1 to 3
(ambiguity, L_d, L_s), 4 (white box), 5 (black box: `--set black_box=N`), 6 (adversarial training: `at`, `at-pdd`, `at-lpd`,
`at-adp` and the same after `at-pgd`), Figs. 2 and 3. Gradient attacks on the softmax's cross-entropy say little about a
model whose unscaled dropout flattens it: `margin`, `autoattack` and the audit do not depend on it.
"""

from collections.abc import Mapping

from ...task import Setting, Task, Value
from .data import LOAD
from .figures import draw
from .measures import evaluate
from .methods import METHODS, build

Values = dict[str, Value]

# What is measured besides accuracy: how many images each kind of attack gets; 0 leaves it out.
NOTHING: Values = {
    "watched": 0,
    "attacked": 0,
    "autoattack": 0,
    "saliency": 0,
    "black_box": 0,
    "audited": 0,
    "swept": 0,
    "certified": 0,
}
# Section 5 and the predecessor's code: SGD .02, momentum .9, weight decay 5e-4, cosine to 1e-4, batches of 64, K = 3.
SETTINGS: Values = {
    "optimiser": "sgd",
    "lr": 0.02,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "lr_end": 1e-4,
    "batch": 64,
    "members": 3,
    "dropout": "none",
    "keep": 0.5,
    "rescale": False,
    "gamma": 10.0,
    "intervals": 0,
    "entropy": 0.0,
    "determinant": 0.0,
    "deg": 0.0,
    "similarity": 0.0,
    "smoothness": 0.0,
    "trs_radius": 0.03,
    "adversary": "none",
    "craft": "ensemble",
    "margin_steps": 20,
    "searches": 5,
    "search_steps": 50,
    **NOTHING,
    "certified_radius": 0.0005,
    "architecture": "resnet",
}
DIGITS: Values = {
    **SETTINGS,
    "architecture": "cnn",
    "lr": 0.3,
    "epochs": 40,
    "width": 128,
    "radius": 0.1,
    "attacked": 300,
    "autoattack": 30,
    "saliency": 50,
    "swept": 100,
    "audited": 200,
    "certified": 200,
    "certified_radius": 0.01,
}
MNIST: Values = {
    **SETTINGS,
    "architecture": "cnn",
    "lr": 0.05,
    "epochs": 10,
    "width": 64,
    "radius": 0.1,
    "examples": 10_000,
    "test_examples": 2000,
    "attacked": 300,
    "autoattack": 100,
    "audited": 100,
    "swept": 100,
}
CIFAR: Values = {
    **SETTINGS,
    "lr": 0.1,
    "epochs": 6,
    "width": 8,
    "radius": 0.02,
    "attacked": 200,
    "autoattack": 50,
    "audited": 50,
    "examples": 10_000,
    "test_examples": 1000,
}
TINY: Values = {**NOTHING, "attacked": 20, "margin_steps": 10, "searches": 1, "search_steps": 5, "swept": 20}
IMAGES: Values = {**CIFAR, **TINY, "epochs": 3, "width": 4, "swept": 0, "examples": 500, "test_examples": 200}
# Full-size: 150 epochs are the predecessor's; tables are over all test images (0) but for the attacks, whose numbers the
# paper does not give; L_d and L_s over the first 2,000, certificates over 200 (of networks of width 4: --set width=4).
PAPER: Values = {
    **CIFAR,
    "lr": 0.02,
    "epochs": 150,
    "width": 64,
    "attacked": 2000,
    "margin_steps": 100,
    "autoattack": 1000,
    "saliency": 1000,
    "searches": 10,
    "search_steps": 100,
    "audited": 1000,
    "swept": 1000,
    "examples": 0,
    "test_examples": 0,
}

SCALES: dict[str, dict[str, Values]] = {
    "digits-ensemble": {"tiny": {**DIGITS, **TINY, "epochs": 15, "attacked": 100, "swept": 100}, "small": DIGITS},
    "mnist-ensemble": {
        "tiny": {**IMAGES, "architecture": "cnn", "width": 32, "lr": 0.05, "radius": 0.1},
        "small": MNIST,
    },
    "cifar10-ensemble": {"tiny": IMAGES, "small": CIFAR, "paper": PAPER},
    "cifar100-ensemble": {"tiny": IMAGES, "small": {**CIFAR, "examples": 0, "epochs": 10}, "paper": PAPER},
    "tiny-imagenet-ensemble": {
        "tiny": {**IMAGES, "epochs": 1, "attacked": 4, "width": 2, "examples": 200},
        "small": CIFAR,
        "paper": PAPER,
    },
}
SUMMARIES = {
    "digits-ensemble": "8 x 8 digits, three small CNNs trained at once, clean and under attack",
    "mnist-ensemble": "MNIST, three small CNNs trained at once, clean and under attack",
    "cifar10-ensemble": "CIFAR-10, three ResNet-18s trained at once, clean and under attack",
    "cifar100-ensemble": "CIFAR-100, three ResNet-18s trained at once, clean and under attack",
    "tiny-imagenet-ensemble": "Tiny-ImageNet, three ResNet-18s trained at once, clean and under attack",
}
ATTACKER = 1000  # seed of the attacker's models


def surrogates(setting: Setting) -> Mapping[str, Setting]:
    """The attacker's models of Table 5: (I) plain networks of another kind, (II) the same defence once more.

    Their seed is fixed, so all seeds of a method share the second and all methods the first.
    """
    if not setting["black_box"]:
        return {}
    task = next(entry for entry in TASKS if entry.name == setting.task)
    kept = {name: value for name, value in setting.overrides.items() if name not in NOTHING}
    other: Values = {"architecture": "cnn" if setting["architecture"] == "resnet" else "resnet"}
    other["width"] = {"cnn": 64, "resnet": 4}[str(other["architecture"])]
    common = {name: value for name, value in kept.items() if name in task.setting("plain", setting.scale).values}
    return {
        "I": task.setting("plain", setting.scale, ATTACKER, setting.data, {**common, **NOTHING, **other}),
        "II": task.setting(setting.method, setting.scale, ATTACKER, setting.data, {**kept, **NOTHING}),
    }


TASKS = tuple(
    Task(
        name=name,
        summary=summary,
        score="accuracy",
        better="higher",
        scales=SCALES[name],
        methods=METHODS,
        load=LOAD[name],
        build=build,
        evaluate=evaluate,
        figures=draw,
        helpers=surrogates,
        paper="Deep Ensemble Robustness by Adaptive Sampling in Dropout-Based Simultaneous Training, tables 1-6",
    )
    for name, summary in SUMMARIES.items()
)
