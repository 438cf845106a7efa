"""The goal that a config sets for a starting model: the same for an operation and its rivals."""

import numpy as np
from numpy.typing import NDArray

from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.evidence.class_noise import class_noise
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.goal import Goal, make_goal
from hessian_surgery.operation.protection import protect
from hessian_surgery.types import Array

# By how many standard errors limits and targets that a user gave must be predicted to hold: nine
# times out of ten.
SURETY = 1.28


def starting_goal(config: SurgeryConfig, per_class: Array, count: NDArray[np.int64], classes: tuple[str, ...]) -> Goal:
    """What is aimed at, and within which limits, against the starting model.

    Args:
        config: what a user asked for.
        per_class: class accuracies (C,) of the starting model on the calibration images.
        count: these images, by class (C,).
        classes: their names.
    """
    promised = protect(config, per_class, count, classes)
    return make_goal(
        Rates(float(per_class @ count / count.sum()), per_class),
        classes,
        aim=config.target,
        budget=config.budget,
        protected=promised.protected,
        max_drop=promised.max_drop,
        targets=config.targets,
        noise=class_noise(per_class, count),
        surety=SURETY,
        limit_surety=SURETY if config.protect or config.max_drop is not None else 0.0,
    )
