"""Acceptance: criteria for the held-out images, from a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hessian_surgery.data.class_names import class_number
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.operation.goal import SLACK
from hessian_surgery.parse_numbers import parse_accuracy, parse_amount

MINIMUM, DROP = "minimum_accuracy", "maximum_drop"
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


def read_criteria(path: Path) -> Criteria:
    """Read criteria; refuse anything else in the file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"accept: {path} cannot be read as TOML: {error}") from error
    named = content.pop("classes", {})
    if not isinstance(named, dict) or not all(isinstance(value, dict) for value in named.values()):
        raise InputError(f"accept: classes is {named!r} in {path}; give a table for each class, such as [classes.cat]")
    criteria = Criteria(
        every=_limits(content, "", path),
        classes={name: _limits(value, f"classes.{name}.", path) for name, value in named.items()},
    )
    if all(limits == Limits() for limits in (criteria.every, *criteria.classes.values())):
        raise InputError(f"accept: {path} asks for nothing; give {MINIMUM} or {DROP}, such as {DROP} = 0.03")
    return criteria


def unmet(criteria: Criteria, images: BeforeAfter) -> list[str]:
    """The criteria that the patched model does not meet on these images, a sentence for each."""
    before, after = images.metrics()
    failed = []
    for name, old, new in zip(images.classes, before.per_class, after.per_class, strict=True):
        limits = criteria.of(name)
        if limits.minimum_accuracy is not None and new < limits.minimum_accuracy - SLACK:
            failed.append(f"{name}: accuracy {100 * new:.1f} %, {MINIMUM} is {100 * limits.minimum_accuracy:g} %")
        if limits.maximum_drop is not None and old - new > limits.maximum_drop + SLACK:
            failed.append(f"{name}: lost {100 * (old - new):.1f} pp, {DROP} is {100 * limits.maximum_drop:g} pp")
    return failed


def _limits(content: dict[str, Any], prefix: str, path: Path) -> Limits:
    for key, value in content.items():
        if key not in PARSERS:
            raise InputError(
                f"accept: {prefix}{key} in {path} is no criterion; give {MINIMUM}, {DROP} or [classes.NAME]"
            )
        if isinstance(value, str):
            value = content[key] = PARSERS[key](f"accept: {prefix}{key}", value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise InputError(
                f'accept: {prefix}{key} is {value!r} in {path}; give a fraction from 0 to 1, such as 0.6 or "60%"'
            )
    return Limits(content.get(MINIMUM), content.get(DROP))
