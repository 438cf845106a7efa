import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from report_checks import check_report
from scipy.stats import spearmanr

import hessian_surgery as hs
from hessian_surgery.errors import InputError
from hessian_surgery.studies import predictors_report
from hessian_surgery.studies.model_zoo import RECIPES, Recipe, train_net
from hessian_surgery.studies.predictors import (
    GAINS,
    PREDICTORS,
    Case,
    Estimate,
    gains_of,
    headline_row,
    load_cases,
    make_case,
)
from hessian_surgery.studies.rank_correlations import correlate, relate

ONE = np.zeros(8, dtype=np.int64)


def case(i: int, group: str = "digits", error: float | None = 0.01) -> Case:
    """Model i of twelve: predictors and gains grow with i, but the rank of S falls and rises."""
    predictors = dict.fromkeys(PREDICTORS, 1.0 + i) | {"effective_rank": abs(i - 5.5), "exponent": 0.5}
    return Case(f"net {i}", group, 100, predictors, dict.fromkeys(GAINS, Estimate(0.1 * i, error)), -0.001)


def test_the_correlation_is_spearmans_and_p_comes_from_permutations():
    rng = np.random.default_rng(0)
    x = rng.normal(size=8)
    y = x + rng.normal(size=8)
    rho, p = correlate(x, y, ONE)
    expected = spearmanr(x, y)
    assert rho == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, abs=0.02)
    up = np.arange(4.0)
    # Of the 24 orders of four models, two are as extreme as the perfect one.
    assert correlate(up, up, ONE[:4])[1] == pytest.approx(2 / 24, abs=0.01)


def test_ranks_within_groups_ignore_differences_between_groups():
    x = np.array([1.0, 2, 3, 4, 11, 12, 13, 14])
    y = np.array([4.0, 3, 2, 1, 14, 13, 12, 11])
    assert correlate(x, y, ONE)[0] > 0.4
    assert correlate(x, y, np.repeat([0, 1], 4))[0] == pytest.approx(-1)


@pytest.mark.parametrize("groups", [[0, 0, 1, 2], [0, 1, 2, 3]])
def test_too_few_models_or_equal_values_have_no_correlation(groups):
    assert correlate(np.arange(4.0), np.arange(4.0), np.array(groups)) is None
    assert correlate(np.ones(4), np.arange(4.0), ONE[:4]) is None


def test_correlations_find_what_was_put_in():
    result = relate([case(i, "digits" if i < 6 else "cifar10") for i in range(12)])
    found = {(r.gain, r.predictor, r.within): r for r in result.relations}
    signal = found["fall", "sigma", False]
    noise = found["fall", "effective_rank", False]
    assert (signal.rho, signal.models) == (pytest.approx(1), 12)
    assert signal.p_holm < 0.01
    assert noise.rho == pytest.approx(0)
    assert noise.p == noise.p_holm == 1
    assert found["fall", "sigma", True].rho == pytest.approx(1)
    assert ("fall", "exponent", False) not in found
    assert result.reliability["fall"] == pytest.approx(1 - 0.01**2 / np.var(0.1 * np.arange(12), ddof=1))
    with pytest.raises(InputError, match="two models named 'net 1'"):
        relate([case(1), case(1)])
    with pytest.raises(InputError, match="no model"):
        relate([])


def test_gains_that_are_all_noise_cannot_be_predicted():
    assert relate([case(i, error=9.0) for i in range(4)]).reliability["fall"] == 0
    assert relate([case(i, error=None) for i in range(4)]).reliability == {}


@pytest.mark.full
def test_the_report(tmp_path):
    result = relate([case(i, "digits" if i < 6 else "cifar10") for i in range(12)])
    check_report(predictors_report, result, tmp_path)
    text = predictors_report.to_markdown(result)
    assert "| net 11 | 100 | 12.00 | 0.50 |" in text
    assert "+110.0 ± 1.0 | -0.10 |" in text
    assert "**+1.00 (" in text
    assert "'fall of σ' is predicted beyond chance by largest over" in predictors_report.describe(result)
    assert "Too few models" in predictors_report.describe(relate([case(0)]))


COMPARISON = {
    "classes": ["a", "b", "c"],
    "images": 60,
    "headline": 0.002,
    "base": {"sigma": 0.2},
    "bias_shares": {"spikes": [0.2, 0.4, 0.9]},
    "methods": [
        {"name": "spikes", "budget": 0.0, "sigma": 0.19, "delta_accuracy": 0.0, "paired_vs_class_bias": None},
        {
            "name": "spikes",
            "budget": 0.002,
            "sigma": 0.15,
            "delta_accuracy": -0.001,
            "sigma_change": {"difference": -0.05, "interval": [-0.07, -0.03]},
            "paired_vs_class_bias": {"difference": 0.01, "interval": [-0.01, 0.03]},
        },
        {"name": "loop", "budget": None, "sigma": None, "delta_accuracy": None, "paired_vs_class_bias": None},
    ],
}


def test_gains_by_hand():
    row = headline_row(COMPARISON, "spikes")
    gains = gains_of(row, 0.2)
    assert gains["fall"] == Estimate(0.05, pytest.approx(0.02 / 1.96, rel=1e-3))
    assert gains["relative_fall"].value == pytest.approx(0.25)
    assert gains["ahead_of_bias"].value == -0.01
    older = {**row, "sigma_change": None, "paired_vs_class_bias": None}
    assert gains_of(older, 0.2)["fall"] == Estimate(pytest.approx(0.05))
    assert "ahead_of_bias" not in gains_of(older, 0.2)
    for method in ("loop", "tau-norm"):
        with pytest.raises(InputError, match=f"no figures for '{method}'; give one of spikes"):
            headline_row(COMPARISON, method)


def test_predictors_by_hand():
    diagnosis = {
        "classes": ("a", "b", "c"),
        "error_ratio": 3.0,
        "exponent": 2.0,
        "structure": {"effective_rank": 1.7},
        "metrics": {"sigma": 0.2, "accuracy": 0.5, "per_class": [0.5] * 3, "count": [25] * 3},
    }
    found = make_case("net", "data", diagnosis, COMPARISON, "spikes")
    assert found.predictors["bias_share"] == pytest.approx(0.3)
    assert found.predictors["sigma_over_noise"] == pytest.approx(0.2 / (0.1 * np.sqrt(2 / 3)))
    assert found.delta_accuracy == -0.001
    with pytest.raises(InputError, match="has no spikes"):
        make_case("net", "data", diagnosis, COMPARISON | {"bias_shares": {}}, "spikes")
    with pytest.raises(InputError, match="other classes"):
        make_case("net", "data", diagnosis, COMPARISON | {"classes": ["a"]}, "spikes")


def test_the_zoo_is_balanced():
    assert len({recipe.seed for recipe in RECIPES}) == len(RECIPES) == 18
    for one, other in combinations(("epochs", "loss", "tail"), 2):
        assert set(Counter((getattr(r, one), getattr(r, other)) for r in RECIPES).values()) == {2}


def test_a_net_is_trained_by_its_recipe():
    recipe = Recipe(0, 1, "class-balanced", 0.05)
    net, parts = train_net(recipe, "digits")
    assert torch.equal(parts.training.inputs(), hs.digits(0).train.inputs())
    assert len(parts.calibration) + len(parts.heldout) == len(hs.digits(0).test)
    other, small = train_net(Recipe(0, 1, "cross-entropy", 0.05), "digits", per_class=20)
    assert small.training.counts.max() == 20
    assert not torch.equal(net.fc.weight, other.fc.weight)


@pytest.mark.full
@pytest.mark.usefixtures("own_folder")
def test_the_command_trains_nets_reads_files_and_joins_studies(run, capsys, tmp_path, checkpoint):
    quick = ["--nets", "3", "--splits", "2", "--per-class", "20"]
    assert run("study", "predictors", *quick, "--out", "zoo") == 0
    assert "3 models, spikes" in capsys.readouterr().out
    model = ["--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits"]
    assert run("diagnose", *model, "--hessian-samples", "64", "--spikes", "3", "--json") == 0
    (tmp_path / "diagnosis.json").write_text(capsys.readouterr().out)
    assert run("compare", *model, "--methods", "spikes", "--spikes", "3", "--splits", "2", "--json") == 0
    (tmp_path / "compare.json").write_text(capsys.readouterr().out)
    compared = json.loads((tmp_path / "compare.json").read_text())
    base, *_, last = compared["methods"]
    assert 0 < compared["base"]["sigma_corrected"] < compared["base"]["sigma"]
    assert last["sigma_change"]["difference"] == pytest.approx(last["sigma"] - base["sigma"], abs=0.02)
    files = ["--diagnosis", "diagnosis.json", "--comparison", "compare.json"]
    assert run("study", "predictors", *files, "--with", "zoo/predictors.json", "--out", "all", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "all/predictors.json").read_text())
    assert [found["group"] for found in content["cases"]] == ["digits"] * 4
    assert content["cases"][3]["name"] == "smallnet, digits"
    assert all(np.isfinite(list(found["predictors"].values())).all() for found in content["cases"])
    assert len(load_cases(tmp_path / "all/predictors.json", "spikes")) == 4
    assert {path.name for path in (tmp_path / "all").iterdir()} == {
        f"predictors.{suffix}" for suffix in ("json", "md", "png", "svg")
    }


@pytest.mark.full
@pytest.mark.usefixtures("own_folder")
def test_the_command_measures_a_model_of_ones_own(run, capsys, checkpoint):
    model = ["--model", "smallnet", "--checkpoint", checkpoint, "--data", "digits", "--per-class", "20"]
    assert run("study", "predictors", *model, "--method", "bias", "--splits", "2", "--out", "own", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["method"], content["cases"][0]["name"]) == ("class-bias", "smallnet, digits, base")
    assert "ahead_of_bias" not in content["cases"][0]["gains"]
    assert run("study", "predictors", "--nets", "0", "--with", "own/predictors.json", "--out", "all") == 2
    assert "is not a study of 'spikes'" in capsys.readouterr().err


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "methods: got 'magic'"),
        (["--nets", "99"], "nets: got 99; there are recipes for 0 to 18"),
        (["--nets", "0"], "nets: there is no model to study"),
        (["--loss", "focal"], "model: missing; --loss is about a model of your own"),
        (["--diagnosis", "a.json"], "diagnosis: got 1, and 0 of --comparison; give them in pairs"),
        (["--diagnosis", "a.json", "--comparison", "b.json"], "diagnosis: a.json cannot be read as JSON"),
        (["--with", "a.json"], "with: a.json cannot be read as JSON"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(run, capsys, tmp_path, arguments, message):
    assert run("study", "predictors", *arguments, "--out", "lab") == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "lab").exists()
