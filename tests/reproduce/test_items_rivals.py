"""Tables 7, 9 and 13: rules that can hold and can fail, and methods by hand."""

import pytest
import torch

from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.reproduce import rivals
from hessian_surgery.reproduce.items import bulk_finetune, comparison, skin
from hessian_surgery.reproduce.starts import QUICK
from hessian_surgery.reproduce.workbench import Workbench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Workbench("cifar10", QUICK, torch.device("cpu"), tmp_path_factory.mktemp("shared"), quick=True)


def metrics(sigma, accuracy=0.8, per_class=(0.7, 0.9)):
    return {"sigma": sigma, "accuracy": accuracy, "balanced_accuracy": accuracy, "per_class": list(per_class)}


def run(before, after, low, high):
    """A run whose σ falls from one to the other; balanced accuracy rises beyond chance."""
    changes = {
        "sigma": {"difference": after - before, "interval": [low, high]},
        "accuracy": {"difference": 0.0, "interval": [-0.01, 0.01]},
        "balanced_accuracy": {"difference": 0.02, "interval": [0.01, 0.03]},
    }
    return {"classes": ["cat", "dog"], "before": metrics(before), "after": metrics(after), "changes": changes}


def compared(surgery, weights):
    found = {name: run(0.08, 0.075, -0.01, -0.001) for name in comparison.PAPER}
    found["logit adjustment"] = run(0.08, 0.08, 0.0, 0.0)
    found["surgery"] = surgery
    return found | {"class weights": weights}


def verdicts(rows, *words):
    return [row.verdict for row in rows if all(word in row.label for word in words)]


def test_surgery_must_be_ahead_on_every_split():
    ahead = compared(run(0.08, 0.05, -0.04, -0.02), 1.0)
    behind = compared(run(0.08, 0.079, -0.01, 0.01), 1.0)
    both = comparison.rows({"cifar10": [ahead, behind]})
    assert verdicts(both, "less that of") == ["not reproduced"] * 3
    alone = comparison.rows({"cifar10": [ahead]})
    assert verdicts(alone, "less that of") == ["reproduced"] * 3
    assert verdicts(alone, "surgery: change of σ, without") == ["reproduced"]
    assert verdicts(comparison.rows({"cifar10": [behind]}), "surgery: change of σ, without") == ["not reproduced"]
    assert verdicts(alone, "logit adjustment: change") == ["reproduced"]
    assert verdicts(alone, "largest class weight") == ["not reproduced"]
    assert [row.mean for row in alone if row.label == "surgery: cat"] == pytest.approx([70.0])


def test_training_after_surgery_must_raise_sigma_again():
    def trained(bulk, plain):
        found = {"after surgery": metrics(0.05), "bulk": metrics(bulk, 0.81), "finetune": metrics(plain, 0.79)}
        return {"classes": ["cat", "dog"], "before": metrics(0.08)} | found

    rows = bulk_finetune.rows({"cifar10": [trained(0.07, 0.06)]})
    assert verdicts(rows, "raises σ again") == ["reproduced", "reproduced"]
    assert verdicts(rows, "by more than projected") == ["not reproduced"]
    assert verdicts(rows, "raises accuracy") == ["reproduced", "not reproduced"]


def test_skin_rows_judge_falls_and_the_collapse():
    found = {name: run(0.2, 0.15, -0.08, -0.02) for name in skin.TABLE if name != "start"}
    found["τ-norm"] = run(0.2, 0.2, -0.01, 0.01) | {"lengths": [1.4, 1.6]}
    found["collapse"] = {"start": 0.86, "logits": 0.85, "probabilities": 0.02}
    rows = skin.rows({"skin": [found]})
    assert verdicts(rows, "change of σ, without") == ["reproduced"] * 3
    assert verdicts(rows, "change of balanced accuracy") == ["reproduced", "reproduced", "not reproduced"]
    assert verdicts(rows, "τ-norm: change") == ["reproduced"]
    assert verdicts(rows, "the shortest") == ["reproduced"]
    assert verdicts(rows, "logit adjustment at") == ["not reproduced"]
    assert verdicts(rows, "σ of surgery less") == ["not reproduced"]


def test_tau_normalization_divides_the_rows_of_the_head(bench):
    found = rivals.tau_normalized(bench, 0)
    heldout = bench.parts(0).heldout
    model = bench.model()
    with torch.no_grad():
        model.fc.weight /= model.fc.weight.norm(dim=1, keepdim=True) ** found["tau"]
    predicted = compute_logits(as_classifier(model), heldout).argmax(dim=1)
    assert found["after"]["per_class"] == compute_metrics(predicted, heldout.labels, 10).per_class


def test_logit_adjustment_takes_the_best_tau_of_the_calibration_images(bench):
    found = rivals.logit_adjusted(bench, 0)
    calibration = bench.parts(0).calibration
    counts = bench.source.train.counts.float()
    logits = compute_logits(as_classifier(bench.model()), calibration)

    def sigma(tau):
        shifted = logits - tau * (counts / counts.sum()).log()
        return compute_metrics(shifted.argmax(dim=1), calibration.labels, 10).sigma

    assert found["tau"] == min(rivals.TAUS, key=sigma)
    assert found["after"]["sigma"] < found["before"]["sigma"]
    at = rivals.adjusted_at(bench, 0, 2.0)
    assert at["probabilities"] < at["logits"] < at["start"]
