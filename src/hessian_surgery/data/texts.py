"""TextEncoder: how a model's own tokenizer turns texts into inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from hessian_surgery.data.batches import Inputs

# Numbers (length,) int64 by the name that the model takes them under, such as `input_ids`.
Tokens: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer, in the two steps that samples of different length need.

    Attributes:
        encode: function from a text, or a pair of texts, to tokens; what is too long is cut off.
        collate: function from the tokens of n texts to inputs (n, length of the longest).
    """

    encode: Callable[..., Tokens]
    collate: Callable[[list[Any]], Inputs]
