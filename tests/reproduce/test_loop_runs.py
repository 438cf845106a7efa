"""Runs of the loop that items share."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hessian_surgery.evidence.deciles import group_changes
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.reproduce.loop_runs import loop_run, loop_weights, run_name
from hessian_surgery.reproduce.starts import QUICK
from hessian_surgery.reproduce.workbench import Workbench


@pytest.mark.full
def test_a_run_is_made_once_and_tells_what_became_of_each_class(tmp_path):
    bench = Workbench("cifar10", QUICK, torch.device("cpu"), tmp_path, quick=True)
    run = loop_run(bench, 0, paper_config())
    pairs = np.array(run["pairs"], dtype=float)
    count = np.array(run["before"]["count"])
    assert (pairs.sum(axis=1) == count).all()
    for part, kind in (("before", 1), ("after", 2)):
        assert run[part]["per_class"] == pytest.approx((pairs[:, 0] + pairs[:, kind]) / count)
    groups = group_changes(np.array(run["calibration_before"]["per_class"]), pairs)
    assert sorted(j for group in groups for j in group.members) == list(range(10))
    assert len(list(tmp_path.glob("loop-ce-*-split-0.json"))) == 1
    assert loop_run(bench, 0, replace(paper_config(), seed=7)) == run  # the split is the seed
    weights = loop_weights(bench, 0, paper_config())
    assert any(not torch.equal(own, weights[name]) for name, own in bench.model().state_dict().items())


def test_other_settings_are_another_run():
    config = paper_config()
    names = {
        run_name(0, config, ""),
        run_name(1, config, ""),
        run_name(0, config, "focal"),
        run_name(0, replace(config, exponent=1), ""),
        run_name(0, replace(config, search=replace(config.search, hessian_samples=64)), ""),
    }
    assert len(names) == 5
    assert run_name(0, paper_config(), "") == run_name(0, config, "")
