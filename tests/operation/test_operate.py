import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.model.evaluation import predict
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation import gain
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.warnings import rounding_warning
from hessian_surgery.weights.patch import load_patch


@pytest.fixture(params=["default", "loop"])
def short(request, quick):
    """A short operation of either kind."""
    return quick if request.param == "loop" else hs.SurgeryConfig(budget=0.01, max_drop=0.03, iterations=2)


@pytest.fixture
def outcome(trained, digits_parts, short):
    return operate(trained, digits_parts, short)


def test_figures_are_those_of_the_model_that_is_left(trained, digits_parts, short):
    outcome = operate(trained, digits_parts, short)
    again = predict(hs.Classifier(trained), digits_parts.heldout)
    assert torch.equal(outcome.findings.heldout.after.predicted, again)
    assert all(torch.equal(outcome.weights[name], t) for name, t in trained.state_dict().items())
    best = min(record.sigma for record in outcome.iterations if record.accepted)
    before, after = outcome.findings.calibration.metrics()
    assert after.sigma == pytest.approx(min(best, before.sigma))


def test_same_seed_same_history(_trained, digits_parts, short):
    def history():
        model = SmallNet(10)
        model.load_state_dict(_trained)
        records = operate(model, digits_parts, short).iterations
        return [{k: v for k, v in record.as_dict().items() if k != "seconds"} for record in records]

    assert history() == history()


def test_only_the_weights_differ_afterwards(trained, digits_parts, short):
    trained.train()
    trained.features[1].eval()
    trained.fc.bias.requires_grad_(False)
    trained.fc.weight.grad = gradient = torch.ones_like(trained.fc.weight)
    buffers = {name: b.clone() for name, b in trained.named_buffers()}
    bias = trained.fc.bias.detach().clone()
    random_state = torch.get_rng_state()
    outcome = operate(trained, digits_parts, short)
    assert any(record.accepted for record in outcome.iterations)
    assert trained.training
    assert not trained.features[1].training
    assert trained.fc.weight.grad is gradient
    assert not trained.fc.bias.requires_grad
    assert torch.equal(trained.fc.bias, bias)
    assert all(torch.equal(b, buffers[name]) for name, b in trained.named_buffers())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_glob_moves_only_what_it_names(trained, digits_parts, short):
    far = {"amplitude": 0.02} if isinstance(short, hs.LoopConfig) else {}
    outcome = operate(trained, digits_parts, replace(short, parameters="fc.*", **far))
    assert set(outcome.patch().bits) <= {"fc.weight", "fc.bias"}
    assert outcome.patch().bits


def test_an_interruption_gives_the_start_back(trained, digits_parts, short, monkeypatch):
    monkeypatch.setattr(gain, "REST", 0.0)

    class Interrupting(Observer):
        def iteration(self, record):
            if record.iteration == 2:
                raise KeyboardInterrupt

    before = {name: t.clone() for name, t in trained.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        operate(trained, digits_parts, short, observer=Interrupting())
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())


def test_what_is_measured_is_what_is_stored(trained, digits_parts, short):
    trained.load_state_dict({name: t.half() for name, t in trained.state_dict().items()})
    stored_as = {name: torch.float16 if t.is_floating_point() else t.dtype for name, t in trained.state_dict().items()}
    outcome = operate(trained, digits_parts, short, stored_as=stored_as)
    assert outcome.weights["fc.weight"].dtype == torch.float16
    assert torch.equal(trained.fc.weight, outcome.weights["fc.weight"].float())


def test_run_folder(outcome, tmp_path, digits_parts):
    outcome.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "config.json",
        "history.jsonl",
        "result.json",
        "predictions.safetensors",
        "patch.safetensors",
        "model.safetensors",
    }
    assert json.loads((tmp_path / "config.json").read_text()) == outcome.config.as_dict() | {"inputs": {}}
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == list(range(1, len(outcome.iterations) + 1))
    predictions = load_file(tmp_path / "predictions.safetensors")
    assert torch.equal(predictions["heldout.index"], digits_parts.heldout.index)
    assert torch.equal(predictions["heldout.label"], digits_parts.heldout.labels)
    model = load_file(tmp_path / "model.safetensors")
    patch = load_patch(tmp_path / "patch.safetensors")
    base = patch.revert(model)
    assert all(torch.equal(base[name], t) for name, t in outcome.base_weights.items())
    check_contract(json.loads((tmp_path / "result.json").read_text()), classes=10)


METRICS = {"accuracy", "balanced_accuracy", "sigma", "worst", "per_class", "count", "interval"}
RESULT = {
    *("front", "ended", "date", "plain", "changed", "recalibrated", "costs", "simpler", "model", "data", "noun"),
    *("schema_version", "method", "classes", "seed", "before", "after", "iterations", "verdict", "warnings"),
    *("asked", "promises", "tests", "deciles", "split", "diagnosis", "choices", "seconds", "environment", "acceptance"),
}
SPLIT = {
    *("seed", "calibration", "heldout", "hessian", "gradients", "folds", "note", "training", "compared", "shared"),
}
ITERATION = {
    *("iteration", "accepted", "eigenvalues", "residuals", "products", "coefficients", "responses"),
    *("candidate_sigma", "max_drop", "sigma", "accuracy", "worst", "per_class", "seconds"),
}


def check_contract(result, classes):
    """`result.json` holds what the design promises, in fractions and in class order."""
    assert set(result) == RESULT
    assert result["schema_version"] == 2
    assert len(result["classes"]) == classes
    for when in ("before", "after"):
        for part in ("calibration", "heldout"):
            metrics = result[when][part]
            assert set(metrics) == METRICS
            assert all(0 <= value <= 1 for value in metrics["per_class"])
            assert len(metrics["per_class"]) == len(metrics["count"]) == len(metrics["interval"]) == classes
            assert metrics["sigma"] == pytest.approx(np.std(metrics["per_class"]))
    for record in result["iterations"]:
        assert set(record) >= ITERATION
        stages = {"directions", "plan", "front", "measure"}
        assert set(record["seconds"]) == (stages if "gain" in record else {"lanczos", "sensitivity", "plan", "measure"})
    assert result["verdict"]["outcome"] in ("better", "no detectable change", "worse")
    assert result["verdict"]["sentence"]
    before, after = (
        result[when]["heldout"] | {"sigma": corrected}
        for when, corrected in zip(("before", "after"), result["tests"]["sigma_corrected"], strict=True)
    )
    for name in ("sigma", "accuracy", "balanced_accuracy"):
        test = result["tests"][name]
        assert test["difference"] == pytest.approx(after[name] - before[name])
        assert test["interval"][0] <= test["interval"][1]
    assert all(set(row) >= {"class", "gained", "lost", "p", "p_holm"} for row in result["tests"]["per_class"])
    assert len(result["tests"]["per_class"]) == classes
    assert set(result["split"]) == SPLIT
    assert {"effective_rank", "singular_values"} <= set(result["diagnosis"])
    assert set(result["environment"]) == {"hessian-surgery", "python", "torch", "device", "threads"}


def test_a_late_failure_gives_the_start_back(trained, digits_parts, short, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hessian_surgery.operation.operate.make_findings", interrupted)
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        operate(trained, digits_parts, short)
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())


def test_half_precision_modules_are_refused(trained, digits_parts, short):
    with pytest.raises(hs.InputError, match=r"held in half precision.*call model.float\(\) first"):
        operate(trained.bfloat16(), digits_parts, short)


def test_training_images_of_a_default_operation_are_read_once(trained, digits_parts, monkeypatch):
    monkeypatch.setattr(gain, "REST", 0.0)
    reads, pool = [], digits_parts.training

    def noisy(positions):
        reads.append(len(positions))
        return pool.fetch(positions) + 0.1 * torch.randn(len(positions), 1, 8, 8)

    parts = replace(digits_parts, training=replace(pool, fetch=noisy, in_memory=False))
    outcome = operate(trained, parts, hs.SurgeryConfig(budget=0.01, max_drop=0.03, iterations=2))
    assert len(outcome.iterations) == 2
    assert reads == [len(pool)]
    assert outcome.split["gradients"] == len(pool)


def test_the_hessian_batch_is_read_once(trained, digits_parts, quick):
    reads = []
    pool = digits_parts.training

    def noisy(positions):
        reads.append(len(positions))
        return pool.fetch(positions) + 0.1 * torch.randn(len(positions), 1, 8, 8)

    parts = replace(digits_parts, training=replace(pool, fetch=noisy, in_memory=False))
    operate(trained, parts, replace(quick, search=replace(quick.search, micro_batch=16)))
    assert reads == [64]


def test_rounding_that_eats_the_gain_is_said():
    base, fine = np.array([0.5, 0.9]), np.array([0.7, 0.9])
    assert rounding_warning(base, fine, fine) is None
    assert rounding_warning(base, base, base) is None
    assert "took 50 % of the gain: σ on the calibration images is 15.00 pp, 10.00" in rounding_warning(
        base, fine, np.array([0.6, 0.9])
    )


def test_a_model_with_more_outputs_than_classes(digits_parts, short):
    outcome = operate(SmallNet(12), digits_parts, replace(short, iterations=1))
    assert "12 outputs, the data 10 classes" in outcome.findings.warnings[0]


def test_a_missing_class_is_named(trained, digits_parts, short):
    parts = digits_parts
    few = replace(parts, heldout=parts.heldout.subset((parts.heldout.labels != 4).nonzero().squeeze(1)))
    with pytest.raises(hs.InputError, match="heldout_data: class '4' has no sample"):
        operate(trained, few, short)
    named, turned = (replace(parts.heldout, classes=tuple(names)) for names in ("abcdefghij", "jihgfedcba"))
    renamed = replace(parts, calibration=replace(parts.calibration, classes=named.classes), heldout=turned)
    with pytest.raises(hs.InputError, match="heldout_data: its class 0 is 'j', but calibration_data's is 'a'"):
        operate(trained, renamed, short)


def test_warnings_name_what_limits_the_claim(trained, digits_parts, quick):
    outcome = operate(
        trained, digits_parts, replace(quick, search=replace(quick.search, lanczos_steps=10), calibration_cap=30)
    )
    text = " ".join(outcome.findings.warnings)
    assert "have not converged" in text
    assert "fewer than 50 calibration images of 0 (30)" in text


@pytest.mark.parametrize("argument", ["training_data", "calibration_data", "heldout_data"])
def test_data_that_cannot_be_read_are_named_by_their_argument(trained, digits_parts, argument):
    parts = {f"{name}_data": getattr(digits_parts, name) for name in ("training", "calibration", "heldout")}
    with pytest.raises(hs.InputError, match=f"^{argument}: part 0 of a sample is a PIL image; make it a tensor"):
        hs.operate(trained, **parts | {argument: [(Image.new("L", (8, 8)), 0)]})
