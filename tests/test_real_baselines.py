"""Post-hoc baselines on a real checkpoint."""

import numpy as np
import pytest
import torch

import hessian_surgery as hs
from conftest import real
from hessian_surgery.baselines.model_edits import ChainState
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.baselines.posthoc import FINE_TAUS, logit_adjustment
from hessian_surgery.data.splits import join_sets
from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation.starting_goal import starting_goal


@pytest.mark.full
def test_a_little_logit_adjustment_keeps_most_of_the_majority_class(shared):
    """Two images in three are of one class. Adjusting logits by a quarter of log π keeps most.

    Adjusting probabilities by mistake would turn that class over.
    """
    model, parts = real(shared, "ham10000")
    images = join_sets(parts.calibration, parts.heldout)
    assert len(images) == 2051
    logits = compute_logits(hs.Classifier(model.eval()), images)
    outputs = ModelOutputs(images.classes, images.labels, logits, parts.training.counts)
    base = compute_metrics(logits.argmax(dim=1), images.labels, 7)
    goal = starting_goal(hs.SurgeryConfig(), np.array(base.per_class), images.counts.numpy(), images.classes)
    found = logit_adjustment(outputs, ChainState.initial(logits), torch.arange(2051), goal)
    at = {tau: candidate.rates.per_class for tau, candidate in zip(FINE_TAUS, found.candidates, strict=True)}
    majority = int(parts.training.counts.argmax())
    assert images.classes[majority] == "nv"
    assert 0.6 < at[0.25][majority] < at[0.0][majority]
