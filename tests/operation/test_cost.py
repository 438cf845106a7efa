from dataclasses import replace

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.curvature.memory import saved_bytes
from hessian_surgery.operation.cost import estimate_cost
from hessian_surgery.operation.driver import run
from hessian_surgery.operation.iteration import DEFAULT
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare
from hessian_surgery.paper.loop import LOOP


@pytest.mark.parametrize("method", ["gradients", "differences"])
def test_the_estimate_is_what_is_done(trained, digits_parts, quick, monkeypatch, method):
    """Counts products and images of a real run with fixed Lanczos steps."""
    config = replace(quick, search=replace(quick.search, lanczos_steps=12), calibration_cap=20, sensitivity=method)
    calibration_data = hs.cap_per_class(digits_parts.calibration, 20)
    expected = estimate_cost(hs.Classifier(trained), digits_parts.training, calibration_data, config)
    counted = {"products": 0, "forward": 0, "back": 0}
    product, logits = hs.Hessian.__matmul__, hs.Classifier.logits
    known = {image.numpy().tobytes() for image in calibration_data.inputs()}

    def counting_product(self, vector):
        counted["products"] += 1
        return product(self, vector)

    def counting_images(self, inputs):
        """Those of the calibration set, which the first image of a batch tells from others."""
        result = logits(self, inputs)
        if inputs[0].numpy().tobytes() in known:
            counted["forward"] += len(inputs)
            counted["back"] += len(inputs) * result.requires_grad
        return result

    monkeypatch.setattr(hs.Hessian, "__matmul__", counting_product)
    problem, before = prepare(trained, digits_parts.training, calibration_data, config)
    monkeypatch.setattr(hs.Classifier, "logits", counting_images)
    run(LOOP, problem, Observer())
    assert len(before.predicted) == 200
    assert expected.products == counted["products"] == 36
    assert expected.passes == (8 if method == "gradients" else 3 * 19 + 2)
    assert expected.images == counted["forward"] + 2 * 200  # and one pass before, one after
    assert expected.backward * 200 == counted["back"]
    assert expected.weights == sum(p.numel() for p in trained.parameters())
    assert expected.data_bytes == 200 * 64 * 4


def test_memory_of_the_graph_grows_with_what_is_resident(trained, digits_parts, quick):
    def graph(**options):
        config = replace(quick, search=replace(quick.search, **options))
        cost = estimate_cost(hs.Classifier(trained), digits_parts.training, digits_parts.calibration, config)
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


def test_a_default_operation_costs_gradients_of_training_images_and_tangents(trained, digits_parts, monkeypatch):
    """Counts the images that go back; no Hessian product is made."""
    config = hs.SurgeryConfig(iterations=1)
    expected = estimate_cost(hs.Classifier(trained), digits_parts.training, digits_parts.calibration, config)
    problem, _ = prepare(trained, digits_parts.training, digits_parts.calibration, config)
    back, logits = [], hs.Classifier.logits

    def counting(self, inputs):
        result = logits(self, inputs)
        back.append(len(inputs) * result.requires_grad)
        return result

    monkeypatch.setattr(hs.Classifier, "logits", counting)
    run(DEFAULT, problem, Observer())
    assert expected.gradients == sum(back) == len(problem.gradient_data)
    assert expected.products == expected.backward == 0
    assert expected.directions == 10
    # Ten differences; the logits before and after; the report's two; at most seven fits for each
    # objective.
    assert expected.passes == 10 + 2 + 2 + 2 * 7
