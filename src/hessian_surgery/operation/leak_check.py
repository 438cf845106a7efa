"""The leak check of an operation: are its three sets of images distinct?"""

from dataclasses import dataclass
from typing import Any

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.leaks import Leak, find_copies, find_leaks, hash_part, hash_training
from hessian_surgery.operation.problem import Problem


@dataclass(frozen=True)
class LeakCheck:
    """What a comparison of the parts found.

    Attributes:
        training: how many training images there are.
        compared: how many of them were compared with the other parts.
        leaks: images that two parts share; without held-out data also copies of calibration images.
        firsts: for each calibration image the position of the first one with the same inputs.
    """

    training: int
    compared: int
    leaks: tuple[Leak, ...]
    firsts: list[int]

    @property
    def sentences(self) -> tuple[str, ...]:
        """A warning for each leak."""
        same_fold = "; each is in the fold of its original"
        return tuple(leak.sentence + same_fold * (leak.first == leak.second) for leak in self.leaks)

    def as_dict(self) -> dict[str, Any]:
        """What `split` of `result.json` holds of it."""
        shared = [leak.as_dict() for leak in self.leaks]
        return {"training": self.training, "compared": self.compared, "shared": shared}


def check_leaks(problem: Problem[Any], training: LabelledSet, heldout: LabelledSet | None) -> LeakCheck:
    """Compare the parts; no image is read again that is not in memory.

    Args:
        problem: what is operated on.
        training: the training images.
        heldout: the held-out images; None if the calibration images are divided into folds.

    Raises:
        InputError: two parts share too many images.
    """
    drawn = [] if problem.gradient_data is None else [problem.gradient_data]
    if problem.finder is not None and problem.finder.data.in_memory:
        drawn.append(problem.finder.data)
    trained = hash_training(training, drawn)
    calibration = hash_part(problem.calibration_data, "calibration_data")
    parts = [calibration] if heldout is None else [calibration, hash_part(heldout, "heldout_data")]
    leaks = find_leaks([trained, *parts], min(part.total for part in parts))
    firsts, copies = find_copies(calibration)
    if heldout is None and copies:
        leaks = (*leaks, copies)
    return LeakCheck(len(training), len(trained.hashes), leaks, firsts)
