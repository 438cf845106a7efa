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


@pytest.mark.parametrize("crossed", [False, True])
def test_a_default_operation_costs_gradients_and_passes(trained, digits_parts, digits_images, monkeypatch, crossed):
    """Counts the images that go forward and back; no Hessian product is made.

    With a hundred images of a typical class, the calibration images have gradients too.
    """
    config = hs.SurgeryConfig(budget=0.01)
    data = digits_images if crossed else digits_parts.calibration
    expected = estimate_cost(hs.Classifier(trained), digits_parts.training, data, config)
    problem, _ = prepare(trained, digits_parts.training, data, config)
    known = {image.numpy().tobytes() for image in data.inputs()}
    counted = {"forward": 0, "back": 0, "gradients": 0}
    logits = hs.Classifier.logits

    def counting(self, inputs):
        """Those of the calibration set, which the first image of a batch tells from others."""
        result = logits(self, inputs)
        if inputs[0].numpy().tobytes() in known:
            counted["forward"] += len(inputs)
            counted["back"] += len(inputs) * result.requires_grad
        else:
            counted["gradients"] += len(inputs) * result.requires_grad
        return result

    monkeypatch.setattr(hs.Classifier, "logits", counting)
    observer = Keeping()
    run(DEFAULT, replace(problem, with_front=True), observer)
    assert [record.accepted for record in observer.records] == [True]
    assert len(observer.records[0].responses.directions) == expected.directions + 10  # the biases cost nothing
    assert expected.products == 0
    assert expected.directions == (20 if crossed else 10)
    assert expected.gradients == counted["gradients"] == len(problem.gradient_data)
    assert expected.backward == crossed
    assert expected.backward * len(data) == counted["back"]
    # Differences; the logits before and after; the report's two; six fits for each objective.
    assert expected.passes == (20 + 1 if crossed else 10) + 2 + 2 + 2 * 6
    assert expected.images == expected.passes * len(data)
    assert counted["forward"] == (expected.passes - 2) * len(data) + 2  # two images tell where the head is
    assert config.iterations == 1
    again = estimate_cost(hs.Classifier(trained), digits_parts.training, data, replace(config, iterations=2))
    assert again.passes == 2 * ((20 + 1 if crossed else 10) + 2) + 2 + 3 * 6


def test_few_images_of_a_typical_class_have_no_gradients(trained, digits_parts, digits_images):
    """A cap counts, and so does the typical class: the mean of the classes does not."""

    def directions(data, **choices):
        config = hs.SurgeryConfig(**choices)
        cost = estimate_cost(hs.Classifier(trained), digits_parts.training, data, config)
        assert (cost.backward == 1) == (cost.directions == 20)
        return cost.directions

    assert directions(digits_images) == directions(digits_images, calibration_cap=100) == 20
    assert directions(digits_images, calibration_cap=99) == 10
    few = torch.cat([(digits_images.labels == j).nonzero()[:99, 0] for j in range(6)])
    many = (digits_images.labels > 5).nonzero()[:, 0].repeat(2)
    uneven = digits_images.subset(torch.cat([few, many]))
    assert float(uneven.counts.double().mean()) > 100
    assert directions(uneven) == 10


class Keeping(Observer):
    """Keeps the records."""

    def __init__(self):
        self.records = []

    def iteration(self, record):
        self.records.append(record)
