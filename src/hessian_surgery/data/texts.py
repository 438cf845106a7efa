"""TextEncoder: how a model's own tokenizer turns texts into inputs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from hessian_surgery.data.batches import Inputs

# Numbers (length,) int64 by the name that the model takes them under, such as `input_ids`.
Tokens: TypeAlias = dict[str, Tensor]


class CutTokens(dict[str, Tensor]):
    """Tokens of a text that was longer than the model allows, and has been cut off."""


@dataclass(frozen=True)
class CutOff:
    """What was cut off of a set.

    Attributes:
        texts: how many texts were.
        tokens: what the longest of them has left.
    """

    texts: int
    tokens: int


def cut_off(samples: Iterable[Any]) -> CutOff | None:
    """What was cut off of samples; None if nothing was."""
    lengths = [max(map(len, sample.values())) for sample in samples if isinstance(sample, CutTokens)]
    return CutOff(len(lengths), max(lengths)) if lengths else None


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer, in the two steps that samples of different length need.

    Attributes:
        encode: function from a text, or a pair of texts, to tokens; what is too long is cut off:
            `CutTokens`.
        collate: function from the tokens of n texts to inputs (n, length of the longest).
    """

    encode: Callable[..., Tokens]
    collate: Callable[[list[Any]], Inputs]
