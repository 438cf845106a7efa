"""The names that options take, and the defaults that help shows.

They are written down here, so that `--help` need not import the rooms that they come from. A test
(`tests/cli/test_help.py`) compares them with those rooms.
"""

MODELS = ("resnet18", "resnet34", "resnet50", "smallnet")
DATA = "digits, hf:DIR, parquet:DIR, imagefolder:DIR, cifar10:DIR, cifar100:DIR, isic:DIR, or package.module:factory"
DATA_KINDS = ("digits", "hf:", "parquet:", "imagefolder:", "cifar10:", "cifar100:", "isic:")
LOSSES = ("cross-entropy", "focal", "class-balanced", "label-smoothing", "class-weights")
TARGETS = ("sigma", "worst")
FAMILIES = ("refit", "class-gradients", "spikes", "both", "biases")
PRESETS = (
    "default",
    "loop",
    "paper",
    "paper:cifar100",
    "paper:isic",
    "paper:isic/focal",
    "paper:isic/class-balanced",
)
PLACES = ("auto", "device", "host", "disk")
PRECISIONS = ("auto", "full", "bfloat16")
SENSITIVITIES = ("gradients", "differences")
CONTROLS = ("adam", "gamma")
BOUNDS = ("ball", "box")
PARTS = ("all", "development", "final")
OPERATORS = ("hessian", "gauss-newton")
# Methods of `compare`: without training, whole operations, and with training.
METHODS = (
    "temperature",
    "logit-adjustment",
    "tau-norm",
    "class-bias",
    "vector-scaling",
    "last-layer",
    "random",
    "class-gradients",
    "spikes",
    "one-step",
    "one-step:spikes",
    "operate",
    "operate:class-gradients",
    "operate:spikes",
    "operate:both",
    "loop",
    "finetune",
    "focal",
    "class-balanced",
    "bulk",
)
# Of `study predictors`: the method whose gain is predicted, and how many small nets there are.
PREDICTED = "spikes"
NETS = 18
# Items of `reproduce`.
ITEMS = (
    "baseline",
    "eigenvalues",
    "spectrum",
    "sensitivity-matrix",
    "p-rule",
    "main",
    "iterations",
    "bulk-walk",
    "comparison",
    "omega",
    "bulk-finetune",
    "cifar100-phases",
    "cifar100-classes",
    "summary",
    "skin",
    "effective-rank",
    "stability",
    "box",
    "adam-control",
    "linearization",
    "all-99",
)
