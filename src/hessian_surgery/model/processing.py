"""A Hugging Face model's own image processor and tokenizer, as this package calls them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import TOKENS
from hessian_surgery.data.texts import CutTokens, TextEncoder, Tokens
from hessian_surgery.errors import InputError

# Tokenizers that know no limit say so with a huge number.
UNLIMITED = 10**6


@dataclass(frozen=True)
class ModelProcessing(Preprocessing):
    """Preprocessing by a model's own image processor.

    Attributes:
        processor: of transformers; it resizes, scales and normalises.
        grey: whether the model takes one channel.
    """

    processor: Any = None
    grey: bool = False

    def batch(self, encoded: list[bytes], names: list[str]) -> Tensor:
        """Decode images to inputs (n, c, h, w) float32; `names` are for error messages."""
        return self._process([self.decode(content, name) for content, name in zip(encoded, names, strict=True)])

    def normalize(self, pixels: Tensor) -> Tensor:
        """Turn pixels (n, 3, h, w) uint8 into inputs (n, c, h, w) float32."""
        return self._process(list(pixels))

    def _process(self, images: Sequence[Tensor]) -> Tensor:
        arrays = [image.permute(1, 2, 0).numpy() for image in images]
        if self.grey:
            arrays = [np.array(Image.fromarray(array).convert("L"))[..., None] for array in arrays]
        found = self.processor(images=arrays, return_tensors="pt", input_data_format="channels_last")["pixel_values"]
        return found.float()


def image_processing(processor: Any, config: Any) -> Preprocessing:
    """Preprocessing by an image processor; without one, images are scaled to [0, 1]."""
    if not hasattr(processor, "image_mean"):
        return Preprocessing()
    return ModelProcessing(processor=processor, grey=getattr(config, "num_channels", 3) == 1)


def text_encoder(tokenizer: Any, config: Any) -> TextEncoder | None:
    """How a tokenizer encodes texts, cut off where the model's positions end; None if it is none.

    Raises:
        InputError: it cannot pad.
    """
    if not hasattr(tokenizer, "pad_token_id"):
        return None
    if tokenizer.pad_token_id is None:
        raise InputError(
            "model: its tokenizer has no padding token; set one, such as tokenizer.pad_token = tokenizer.eos_token and "
            "model.config.pad_token_id = tokenizer.pad_token_id, and save both"
        )
    most = _longest(tokenizer, config)

    def encode(*texts: str) -> Tokens:
        found = tokenizer(*texts, truncation=most is not None, max_length=most)
        tokens = {name: torch.tensor(values) for name, values in found.items()}
        return CutTokens(tokens) if most is not None and _was_cut(found, most) else tokens

    return TextEncoder(encode, partial(_pad, tokenizer))


def _was_cut(found: Any, most: int) -> bool:
    """Whether a text was cut off; of tokenizers that do not say, one with `most` tokens counts."""
    known = getattr(found, "encodings", None)
    return bool(known[0].overflowing) if known else len(found[TOKENS]) >= most


def _pad(tokenizer: Any, samples: list[Mapping[str, Any]]) -> Inputs:
    """Stack tokens, padded to the longest; as `tokenizer.pad`, which is slow for small batches."""
    padding = {TOKENS: tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    rows = {name: [torch.as_tensor(sample[name]) for sample in samples] for name in samples[0]}
    if "attention_mask" not in rows:
        rows["attention_mask"] = [torch.ones_like(row) for row in rows[TOKENS]]
    side = tokenizer.padding_side
    return {
        name: pad_sequence(values, batch_first=True, padding_value=padding.get(name, 0), padding_side=side)
        for name, values in rows.items()
    }


def _longest(tokenizer: Any, config: Any) -> int | None:
    """The most tokens that a text may have; None if nothing limits them."""
    if tokenizer.model_max_length < UNLIMITED:
        return int(tokenizer.model_max_length)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    # RoBERTa and its kin count positions from behind the padding token's number.
    offset = config.pad_token_id + 1 if "roberta" in config.model_type and config.pad_token_id is not None else 0
    return positions - offset
