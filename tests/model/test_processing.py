"""A model's own image processor and tokenizer."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import hessian_surgery as hs
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.texts import CutTokens
from hessian_surgery.model.processing import image_processing, text_encoder
from hugging_face_folders import needs_hf

pytestmark = needs_hf


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def words(**kept):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", **kept)


def test_images_become_what_the_processor_makes_of_them():
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor(size={"height": 4, "width": 4}, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    processing = image_processing(processor, SimpleNamespace(num_channels=3))
    pixels = np.full((9, 7, 3), 255, dtype=np.uint8)
    found = processing.batch([encoded(pixels), encoded(pixels[:5])], ["one", "two"])
    assert torch.equal(found, torch.full((2, 3, 4, 4), 2.0))
    assert torch.equal(processing.normalize(torch.full((1, 3, 9, 9), 255, dtype=torch.uint8)), found[:1])
    with pytest.raises(hs.InputError, match="two cannot be read as an image"):
        processing.batch([b"no image"], ["two"])


def test_a_model_of_one_channel_gets_grey_images():
    from transformers import ViTImageProcessor

    processor = ViTImageProcessor(size={"height": 4, "width": 4}, image_mean=[0.5], image_std=[0.5])
    processing = image_processing(processor, SimpleNamespace(num_channels=1))
    found = processing.batch([encoded(np.full((6, 6, 3), 255, dtype=np.uint8))], ["one"])
    assert torch.equal(found, torch.ones(1, 1, 4, 4))


def test_without_a_processor_images_are_scaled():
    assert image_processing(None, SimpleNamespace()) == Preprocessing()
    assert text_encoder(None, SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("limit", "config", "most"),
    [
        ({"model_max_length": 3}, {"max_position_embeddings": 5}, 3),
        ({}, {"max_position_embeddings": 5, "model_type": "bert", "pad_token_id": 0}, 5),
        ({}, {"max_position_embeddings": 5, "model_type": "xlm-roberta", "pad_token_id": 1}, 3),
        ({}, {}, 9),
    ],
)
def test_texts_are_cut_off_where_the_models_positions_end(limit, config, most):
    encoder = text_encoder(words(pad_token="[PAD]", **limit), SimpleNamespace(**config))
    assert len(encoder.encode("a " * 9)["input_ids"]) == most


def test_what_was_cut_off_is_marked_by_tokenizers_of_both_kinds():
    from transformers import ByT5Tokenizer

    config = SimpleNamespace(max_position_embeddings=5, model_type="bert", pad_token_id=0)
    encode = text_encoder(words(pad_token="[PAD]"), config).encode
    cut = [
        isinstance(encode(*texts), CutTokens) for texts in (("a " * 5,), ("a " * 6,), ("a b", "a b"), ("a b", "a " * 4))
    ]
    assert cut == [False, True, False, True]
    encode = text_encoder(ByT5Tokenizer(), config).encode
    assert [isinstance(encode("a" * length), CutTokens) for length in (3, 5)] == [False, True]
    unlimited = text_encoder(ByT5Tokenizer(), SimpleNamespace()).encode
    assert not isinstance(unlimited("a" * 99), CutTokens)


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_are_padded_as_the_tokenizer_does(side):
    encoder = text_encoder(words(pad_token="[PAD]", padding_side=side), SimpleNamespace())
    batch = encoder.collate([encoder.encode("a b a"), encoder.encode("b", "a")])
    row = [3, 2, 0] if side == "right" else [0, 3, 2]
    assert batch["input_ids"].tolist() == [[2, 3, 2], row]
    assert torch.equal(batch["attention_mask"], (batch["input_ids"] > 0).long())


def test_a_tokenizer_that_cannot_pad_is_refused():
    with pytest.raises(hs.InputError, match="no padding token; set one"):
        text_encoder(words(), SimpleNamespace())
