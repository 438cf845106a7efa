"""A zoo of small nets that were trained differently, for studies over many models."""

from dataclasses import dataclass

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.readers.digits import digits
from hessian_surgery.data.sources import Parts, open_source
from hessian_surgery.data.splits import cap_per_class, long_tailed, stratified_split
from hessian_surgery.model.losses import LossName, make_loss
from hessian_surgery.model.smallnet import SmallNet, train_smallnet


@dataclass(frozen=True)
class Recipe:
    """How a net is trained.

    Attributes:
        seed: fixes the data's parts, the order of the tail, the initial weights and the batches.
        epochs: passes over the training images.
        loss: by name.
        tail: the share of its training images that the rarest class keeps; 1 keeps all images.
    """

    seed: int
    epochs: int
    loss: LossName
    tail: float

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.epochs} epochs, {self.loss}, tail {self.tail:g}"


EPOCHS = (3, 10, 30)
TAILS = (0.05, 0.2, 1.0)
LOSSES: tuple[LossName, ...] = ("cross-entropy", "focal", "class-balanced")
# Two Graeco-Latin squares: every pair of epochs, losses and tails occurs equally often. The first
# three recipes differ in all of them, and no two have the same seed.
RECIPES = tuple(Recipe(i, EPOCHS[i % 3], LOSSES[(i // 3 + i) % 3], TAILS[(2 * (i // 3) + i) % 3]) for i in range(2 * 9))


def train_net(
    recipe: Recipe, spec: str, per_class: int | None = None, size: int | None = None
) -> tuple[SmallNet, Parts]:
    """Train a net by a recipe.

    Args:
        recipe: how to train it.
        spec: the data, as for `--data`; it needs a train and a test part.
        per_class: the most images of a class in either part, before the tail is cut.
        size: side in pixels that images are resized to. They are not normalised: the net's
            BatchNorm does that.

    Returns:
        The net, and its training, calibration and held-out data.
    """
    train, test = _read(spec, recipe.seed, Preprocessing(size=size))
    if per_class is not None:
        train, test = (cap_per_class(part, per_class, recipe.seed) for part in (train, test))
    train = long_tailed(train, recipe.tail, recipe.seed).resident()
    parts = Parts(train, *stratified_split(test.resident(), (0.5, 0.5), recipe.seed))
    return train_smallnet(train, recipe.seed, recipe.epochs, loss=make_loss(recipe.loss, train.counts)), parts


def _read(spec: str, seed: int, preprocessing: Preprocessing) -> tuple[LabelledSet, LabelledSet]:
    if spec == "digits":
        task = digits(seed, tail=1.0)
        return task.train, task.test
    source = open_source(spec, seed, preprocessing)
    return source.part("train", "data"), source.part("test", "data")
