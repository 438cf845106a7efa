import pytest
import yaml
from runs import HOSTILE, make_run, renamed

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.plain_text import one_line
from hessian_surgery.report.card import model_card


@pytest.fixture(params=["plain", "hostile"])
def run(request, trained, digits_parts):
    parts = digits_parts if request.param == "plain" else renamed(digits_parts, HOSTILE)
    outcome = operate(trained, parts, hs.SurgeryConfig(budget=0.01, max_drop=0.03, iterations=1))
    return make_run(outcome, {"model": "smallnet", "data": "parquet:a 'b' ```c", "out": "run"})


def test_the_head_is_what_hugging_face_reads(run):
    card = model_card(run)
    _, head, _ = card.split("---\n", 2)
    content = yaml.safe_load(head)
    (entry,) = content["model-index"]
    (result,) = entry["results"]
    assert result["task"]["type"] == content["pipeline_tag"] == "image-classification"
    assert result["dataset"]["name"] == result["dataset"]["type"] == "a 'b' ```c"
    metrics = {metric["name"]: metric["value"] for metric in result["metrics"]}
    after = run.findings.heldout.metrics()[1]
    assert metrics["accuracy"] == pytest.approx(after.accuracy, abs=1e-6)
    for title, value in zip(run.classes, after.per_class, strict=True):
        assert metrics[f"accuracy of class {one_line(title)}"] == pytest.approx(value, abs=1e-6)
    assert len(metrics) == 14


def test_the_text_says_results_use_and_limits(run):
    card = model_card(run)
    headings = [line for line in card.splitlines() if line.startswith("## ")]
    assert headings == ["## Results on held-out images", "## Intended use", "## Limits", "## How it was made"]
    assert "````sh\nhessian-surgery operate --model smallnet" in card
    assert "<script>" not in card.split("---\n", 2)[2].replace("\\<", "")
    run.result["acceptance"] = {"criteria": {}, "failed": ["0: lost 9.0 pp"]}
    assert "**Not accepted.**" in model_card(run)
    run.result["acceptance"] = {"criteria": {}, "failed": []}
    assert "Every acceptance criterion is met" in model_card(run)


def test_no_folder_of_this_machine_is_in_the_head(trained, digits_parts):
    outcome = operate(trained, digits_parts, hs.SurgeryConfig(iterations=1))
    for given, name in (("imagefolder:/home/me/photos", "photos"), ("digits", "digits"), ("nets:data", "nets:data")):
        head = yaml.safe_load(model_card(make_run(outcome, {"data": given})).split("---\n", 2)[1])
        assert head["model-index"][0]["results"][0]["dataset"]["name"] == name
