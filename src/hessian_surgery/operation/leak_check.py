"""The leak check of an operation: are its three sets of images distinct?"""

from dataclasses import dataclass, field
from typing import Any

from hessian_surgery.data.data_hash import data_hash
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.leaks import ON_TRAINING, HashedPart, Leak, find_copies, find_leaks, hash_part, hash_training
from hessian_surgery.operation.problem import Inputs


@dataclass(frozen=True)
class LeakCheck:
    """What a comparison of the parts found.

    Attributes:
        training: how many training images there are.
        compared: how many of them were compared with the other parts.
        leaks: images that two parts share; without held-out data also copies of calibration images.
        firsts: for each calibration image the position of the first one with the same inputs.
        on_training: whether calibration images are training images, and are meant to be.
        data: for each part the number of its `images` and its hash (`sha256`); None for training
            images that are not all in memory.
    """

    training: int
    compared: int
    leaks: tuple[Leak, ...]
    firsts: list[int]
    on_training: bool = False
    data: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def sentences(self) -> tuple[str, ...]:
        """A warning for each leak; and one if calibration images are training images."""
        same_fold = "; each is in the fold of its original"
        found = tuple(leak.sentence + same_fold * (leak.first == leak.second) for leak in self.leaks)
        return (ON_TRAINING, *found) if self.on_training else found

    def as_dict(self) -> dict[str, Any]:
        """What `split` of `result.json` holds of it."""
        shared = [leak.as_dict() for leak in self.leaks]
        return {"training": self.training, "compared": self.compared, "shared": shared}


def check_leaks(inputs: Inputs[Any], training: LabelledSet, heldout: LabelledSet | None) -> LeakCheck:
    """Compare the parts; no image is read again that is not in memory.

    Args:
        inputs: what is operated on.
        training: the training images.
        heldout: the held-out images; None if the calibration images are divided into folds.

    Raises:
        InputError: two parts share too many images.
    """
    drawn = [] if inputs.gradient_data is None else [inputs.gradient_data]
    if inputs.finder is not None and inputs.finder.data.in_memory:
        drawn.append(inputs.finder.data)
    trained = hash_training(training, drawn)
    calibration = hash_part(inputs.calibration_data, "calibration_data")
    parts = [calibration] if heldout is None else [calibration, hash_part(heldout, "heldout_data")]
    judged = min(part.total for part in parts)
    on_training = inputs.config.calibrate_on_training
    compared = [[trained, *parts[1:]], parts] if on_training else [[trained, *parts]]
    leaks = tuple(leak for some in compared for leak in find_leaks(some, judged))
    firsts, copies = find_copies(calibration)
    if heldout is None and copies:
        leaks = (*leaks, copies)
    named = {"training": (training, trained), "calibration": (inputs.calibration_data, calibration)}
    if heldout is not None:
        named["heldout"] = (heldout, parts[1])
    data = {name: {"images": len(own), "sha256": _hash(own, hashed)} for name, (own, hashed) in named.items()}
    return LeakCheck(len(training), len(trained.hashes), leaks, firsts, on_training, data)


def _hash(data: LabelledSet, hashed: HashedPart) -> str | None:
    """The hash of a set, from those of its images; None if not all of them were hashed."""
    return data_hash(data, hashed.hashes) if len(hashed.hashes) == len(data) else None
