"""A Hugging Face model's own image processor and tokenizer, as this package calls them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.texts import TextEncoder, Tokens
from hessian_surgery.errors import InputError
from hessian_surgery.import_by_name import import_extra

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
    pad = import_extra("transformers", "model", "hf").DataCollatorWithPadding(tokenizer)

    def encode(*texts: str) -> Tokens:
        found = tokenizer(*texts, truncation=most is not None, max_length=most)
        return dict(found)

    def collate(samples: list[Any]) -> Inputs:
        return dict(pad(samples))

    return TextEncoder(encode, collate)


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
