"""Hessian products through the attention of real transformers, against the dense matrix."""

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hugging_face_folders import needs_hf

pytestmark = needs_hf
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "num_labels": 3}


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    mask = torch.ones(9, 6, dtype=torch.int64)
    mask[::2, 4:] = 0
    inputs = {"input_ids": torch.randint(0, 12, (9, 6)), "attention_mask": mask}
    config = BertConfig(vocab_size=12, max_position_embeddings=6, **SMALL)
    return BertForSequenceClassification(config), inputs, "bert.encoder*attention*"


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **SMALL))
    return model, {"pixel_values": torch.randn(9, 3, 8, 8, dtype=torch.float64)}, "*attention*"


def gpt2():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=12, n_positions=6, n_embd=8, n_layer=1, n_head=2, n_inner=8, num_labels=3, pad_token_id=0
    )
    return GPT2ForSequenceClassification(config), {"input_ids": torch.randint(1, 12, (9, 6))}, "*attn*"


@pytest.mark.parametrize("make", [bert, vit, gpt2])
@pytest.mark.parametrize("curvature", [hs.Hessian, hs.GaussNewton])
def test_products_agree_with_the_dense_matrix(make, curvature):
    torch.manual_seed(0)
    model, inputs, pattern = make()
    model = model.double().eval()
    labels = torch.arange(9) % 3
    space = hs.parameter_space(model, pattern)
    operator = curvature(model, hs.as_labelled((inputs, labels)), space)
    vectors = torch.randn(3, space.dimension, dtype=torch.float64)
    expected = vectors @ dense(model, space, inputs, labels, curvature is hs.Hessian)
    found = torch.stack([operator @ vector for vector in vectors])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
    assert float(found.abs().max()) > 1e-6


def dense(model, space, inputs, labels, whole):
    """The full Hessian, or Gauss–Newton matrix, by autograd."""
    sizes = [parameter.numel() for parameter in space.parameters]

    def logits(flat):
        pieces = zip(space.names, flat.split(sizes), space.parameters, strict=True)
        weights = {name: piece.view_as(parameter) for name, piece, parameter in pieces}
        return torch.func.functional_call(model, weights, (), inputs).logits

    theta = space.flatten([parameter.detach() for parameter in space.parameters])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        if whole:
            return torch.autograd.functional.hessian(lambda t: nn.functional.cross_entropy(logits(t), labels), theta)
        jacobian = torch.autograd.functional.jacobian(logits, theta)
        p = logits(theta).detach().softmax(1)
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, inner, jacobian) / len(labels)
