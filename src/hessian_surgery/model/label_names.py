"""The class names that a model holds, beside those of the data."""

import re
from collections.abc import Mapping

from torch import nn

from hessian_surgery.errors import InputError

# What transformers calls classes that nobody has named.
UNNAMED = re.compile(r"LABEL_\d+")
# How Hugging Face's data sets are brought into a model's order.
ALIGNED = ', as dataset.align_labels_with_mapping(model.config.label2id, "label") makes them'


def label_names(module: nn.Module) -> tuple[str, ...] | None:
    """The class names of the outputs, in their order; None if the model holds none."""
    names = output_names(module)
    return None if names is None or all(UNNAMED.fullmatch(name) for name in names) else names


def output_names(module: nn.Module) -> tuple[str, ...] | None:
    """What the model calls its outputs, be it LABEL_0 and so on; None if it says nothing.

    Names are in `class_names`, or, as Hugging Face's are, in `config.id2label`.
    """
    own = getattr(module, "class_names", None)
    if isinstance(own, list | tuple) and own:
        return tuple(map(str, own))
    labels = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or not labels:
        return None
    return tuple(str(labels[key]) for key in sorted(labels, key=int))


def check_label_names(module: nn.Module, classes: tuple[str, ...]) -> str | None:
    """Refuse data whose classes are the model's in another order.

    Case and spaces do not count, and numbers are no names.

    Args:
        module: the model.
        classes: the class names of the data.

    Returns:
        A note if no name is in both, so that the order cannot be checked.
    """
    names = output_names(module)
    if names is None or classes == tuple(str(i) for i in range(len(classes))):
        return None
    own, others = ([" ".join(name.casefold().split()) for name in both] for both in (names, classes))
    if own[: len(others)] == others:
        return None
    if not set(own) & set(others):
        return f"the model calls its first class {names[0]!r} and the data {classes[0]!r}: they are matched in order"
    at = next(i for i, pair in enumerate(zip([*own, *others], others, strict=False)) if pair[0] != pair[1])
    theirs = repr(names[at]) if at < len(names) else "not there"
    place = "class_names" if getattr(module, "class_names", None) else "id2label"
    how = ALIGNED if place == "id2label" and set(others) <= set(own) else ""
    raise InputError(
        f"model: its class {at} is {theirs} ({place}), but the data's is {classes[at]!r}; "
        f"give data with the model's classes in the model's order{how}"
    )
