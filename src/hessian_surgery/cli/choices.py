"""The names that options take, and the defaults that help texts show.

They are written down here, so that `--help` need not import the rooms that they come from. A test
(`tests/cli/test_help.py`) compares them with those rooms.
"""

DATA = "digits, parquet:DIR, imagefolder:DIR, cifar10:DIR, cifar100:DIR, isic:DIR, or package.module:factory"
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
    "operate:spikes",
    "operate:both",
    "loop",
    "finetune",
    "focal",
    "class-balanced",
    "bulk",
)
HESSIAN_SAMPLES = 256
TOLERANCE = 0.01
# Of `study predictors`: the method whose gain is predicted, and how many small nets there are.
PREDICTED = "spikes"
NETS = 18
