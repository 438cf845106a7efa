"""Acceptance: criteria for the held-out images, from a TOML file or a mapping."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from hessian_surgery.data.class_names import class_number
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.costs import WIDE
from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.promises import change_interval
from hessian_surgery.evidence.resampled_pairs import pair_counts
from hessian_surgery.operation.goal import SLACK
from hessian_surgery.parse_numbers import parse_accuracy, parse_amount
from hessian_surgery.plain_text import reason
from hessian_surgery.stored import read_small

MINIMUM: Final = "minimum_accuracy"
DROP: Final = "maximum_drop"
# How each criterion is read if it is text, such as "80%" or "3pp".
PARSERS = {MINIMUM: parse_accuracy, DROP: parse_amount}


@dataclass(frozen=True)
class Limits:
    """What a class must reach, and what it may lose; fractions, None for no limit."""

    minimum_accuracy: float | None = None
    maximum_drop: float | None = None


@dataclass(frozen=True)
class Criteria:
    """Limits for every class, and other limits for some."""

    every: Limits
    classes: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, name: str) -> Limits:
        """The limits of a class: its own, or else those for every class."""
        own = self.classes.get(name, Limits())
        return Limits(
            self.every.minimum_accuracy if own.minimum_accuracy is None else own.minimum_accuracy,
            self.every.maximum_drop if own.maximum_drop is None else own.maximum_drop,
        )

    def check_names(self, classes: tuple[str, ...]) -> None:
        """Raise an InputError for a class that does not exist."""
        for name in self.classes:
            class_number(name, classes, "accept")


# What a caller may give: criteria, the same as a mapping, or the path of a TOML file.
Accept: TypeAlias = Criteria | Mapping[str, Any] | str | Path


def as_criteria(accept: Accept | None, classes: tuple[str, ...]) -> Criteria | None:
    """Make criteria of what a caller gave; None if that is nothing.

    Args:
        accept: criteria; or what a file holds, such as `{"maximum_drop": 0.03, "classes": {"cat":
            {"minimum_accuracy": 0.6}}}`; or the path of a TOML file.
        classes: all names that it may hold.
    """
    if accept is None:
        return None
    if isinstance(accept, str | Path):
        accept = read_criteria(Path(accept))
    elif isinstance(accept, Mapping):
        accept = _parse(accept, "the mapping")
    if not isinstance(accept, Criteria):
        raise InputError(f"accept: got {type(accept).__name__}; give a mapping, or the path of a TOML file")
    accept.check_names(classes)
    return accept


def read_criteria(path: Path) -> Criteria:
    """Read criteria; refuse anything else in the file."""
    try:
        content = tomllib.loads(read_small(path, "accept", "TOML"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"accept: {path} cannot be read as TOML: {reason(error)}") from error
    return _parse(content, str(path))


def _parse(content: Mapping[str, Any], place: str) -> Criteria:
    """Criteria from plain values; `place` says in errors where these were."""
    every = dict(content)
    named = every.pop("classes", {})
    if not isinstance(named, Mapping) or not all(isinstance(value, Mapping) for value in named.values()):
        raise InputError(f"accept: classes is {named!r} in {place}; give a table for each class, such as [classes.cat]")
    criteria = Criteria(
        every=_limits(every, "", place),
        classes={name: _limits(value, f"classes.{name}.", place) for name, value in named.items()},
    )
    if all(limits == Limits() for limits in (criteria.every, *criteria.classes.values())):
        raise InputError(f"accept: {place} asks for nothing; give {MINIMUM} or {DROP}, such as {DROP} = 0.03")
    return criteria


def criteria_from(content: Mapping[str, Any]) -> Criteria:
    """Criteria from the form that `result.json` holds."""
    return Criteria(Limits(**content["every"]), {name: Limits(**own) for name, own in content["classes"].items()})


def check_criteria(criteria: Criteria, images: BeforeAfter) -> tuple[CheckedCriterion, ...]:
    """Check each criterion on these images; it is met if the measured value is within it."""
    before, after = images.metrics()
    kinds = pair_counts(images)
    found = []
    for j, name in enumerate(images.classes):
        limits = criteria.of(name)
        old, new = before.per_class[j], after.per_class[j]
        if limits.minimum_accuracy is not None:
            least = limits.minimum_accuracy
            met = new >= least - SLACK
            found.append(CheckedCriterion(name, MINIMUM, least, new, after.interval[j], met))
        if limits.maximum_drop is not None:
            most = limits.maximum_drop
            low, high = change_interval(kinds[j, 2], kinds[j, 1], before.count[j], WIDE)
            met = old - new <= most + SLACK
            found.append(CheckedCriterion(name, DROP, most, old - new, (-high, -low), met))
    return tuple(found)


def _limits(content: Mapping[str, Any], prefix: str, place: str) -> Limits:
    read: dict[str, float] = {}
    for key, value in content.items():
        if key not in PARSERS:
            raise InputError(
                f"accept: {prefix}{key} in {place} is no criterion; give {MINIMUM}, {DROP} or [classes.NAME]"
            )
        if isinstance(value, str):
            value = PARSERS[key](f"accept: {prefix}{key}", value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise InputError(
                f'accept: {prefix}{key} is {value!r} in {place}; give a fraction from 0 to 1, such as 0.6 or "60%"'
            )
        read[key] = value
    return Limits(read.get(MINIMUM), read.get(DROP))
