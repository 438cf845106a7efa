from dataclasses import replace

import torch

import hessian_surgery as hs
from hessian_surgery.curvature import operators
from hessian_surgery.curvature.memory import saved_bytes
from hessian_surgery.surgery import loop, sensitivity
from hessian_surgery.surgery.cost import estimate_cost


def test_the_estimate_is_what_is_done(trained, digits_parts, quick, monkeypatch):
    """Counts products and images of a real run with fixed Lanczos steps."""
    config = replace(quick, lanczos_steps=12, sensitivity_cap=20)
    expected = estimate_cost(hs.Classifier(trained), digits_parts.hessian, digits_parts.sensitivity, config)
    counted = {"products": 0, "passes": 0}
    product, accuracies = operators.Hessian.__call__, sensitivity.accuracies

    def counting_product(self, vector):
        counted["products"] += 1
        return product(self, vector)

    def counting_pass(*arguments):
        counted["passes"] += 1
        return accuracies(*arguments)

    monkeypatch.setattr(operators.Hessian, "__call__", counting_product)
    monkeypatch.setattr(sensitivity, "accuracies", counting_pass)
    monkeypatch.setattr(loop, "accuracies", counting_pass)
    hs.operate(
        trained,
        hessian_data=digits_parts.hessian,
        sensitivity_data=digits_parts.sensitivity,
        heldout_data=digits_parts.heldout,
        config=config,
    )
    assert expected.products == counted["products"] == 36
    assert expected.passes == counted["passes"] + 2  # and one before, one after
    assert expected.images == expected.passes * 200
    assert expected.weights == sum(p.numel() for p in trained.parameters())
    assert expected.data_bytes == 200 * 64 * 4


def test_memory_of_the_graph_grows_with_what_is_resident(trained, digits_parts, quick):
    def graph(**options):
        config = replace(quick, **options)
        cost = estimate_cost(hs.Classifier(trained), digits_parts.hessian, digits_parts.sensitivity, config)
        assert cost.total_bytes > cost.graph_bytes > 0
        return cost.graph_bytes

    assert graph(hessian_samples=64) == 2 * graph(hessian_samples=32)
    assert graph(hessian_samples=64, micro_batch=16) == graph(hessian_samples=16)


def test_saved_bytes_are_counted_once_and_without_weights():
    model = torch.nn.Linear(8, 4, bias=False)
    data = hs.as_labelled((torch.randn(3, 8), torch.arange(3)), classes=list("abcd"))
    saved = saved_bytes(hs.Classifier(model), data)
    # The input (8 floats), the log-probabilities (4 floats), the label and the loss's weight sum.
    assert 8 * 4 + 4 * 4 + 8 <= saved <= 8 * 4 + 4 * 4 + 16
