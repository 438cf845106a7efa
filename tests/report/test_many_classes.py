"""Reports of a thousand classes: leading parts that say of how many, and nothing that grows."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from runs import HOSTILE, make_run
from test_page import Outline
from thousand import GRADIENTS, class_names, drawn_findings, drawn_outcome, save_thousand
from torch import nn

import hessian_surgery as hs
from hessian_surgery.cli.tables import describe_choices, print_diagnosis, print_findings
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.evidence.effective_rank import analyse
from hessian_surgery.markup import text
from hessian_surgery.operation.forecast import Expected, Forecast
from hessian_surgery.paper.diagnosis import Diagnosis, SpikeDiagnosis
from hessian_surgery.plain_text import one_line
from hessian_surgery.report.card import model_card
from hessian_surgery.report.deciles import decile_note
from hessian_surgery.report.diagnosis_page import diagnosis_page
from hessian_surgery.report.figure_data import Responses, leading_responses
from hessian_surgery.report.figure_files import run_figures
from hessian_surgery.report.markdown import to_markdown
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("thousand") / "run"
    save_thousand(place)
    return place


@pytest.fixture(scope="module")
def run(folder):
    return load_run(folder)


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "report.html").read_text()


def embedded(page, place):
    return json.loads(re.search(rf'<script type="application/json" id="{place}">(.*?)</script>', page).group(1))


def test_files_and_page_are_small(folder, page):
    assert len(page.encode()) < 1_000_000
    assert (folder / "result.json").stat().st_size < 3_000_000
    assert (folder / "history.jsonl").stat().st_size < 500_000
    outline = Outline(page)
    assert outline.tags.count("tr") < 150
    assert outline.tags.count("li") < 60
    assert len(outline.ids) == len(set(outline.ids))


def test_the_page_says_how_groups_were_made_and_of_how_many_classes_it_shows_some(run, page):
    assert text(decile_note(run.findings)) in page
    assert "by their accuracy before the operation on the calibration images" in page
    for group in run.findings.deciles:
        assert f">{100 * group.after:.1f} <small>" in page
    assert "The 10 of 1,000 classes that gained most" in page
    assert "The 10 of 1,000 classes that lost most" in page
    assert f"the 40 of 1,000 classes that respond most and {GRADIENTS} of {1000 + GRADIENTS:,} directions" in page
    assert re.search(r"12 of \d+ classes that changed; result.json has all", page)
    assert "Of the other 563: 563 cannot be told" in page


def test_the_search_holds_every_class(run, page):
    held = embedded(page, "class-data")
    before, after = run.findings.heldout.metrics()
    assert held["names"] == list(run.classes)
    assert held["count"] == after.count
    for key, metrics in (("before", before), ("after", after)):
        low, value, high = (np.array(part) / 10_000 for part in held[key])
        assert value == pytest.approx(metrics.per_class, abs=1e-4)
        assert np.stack([low, high], 1) == pytest.approx(np.array(metrics.interval), abs=1e-4)
    assert held["p"] == [None] * 1000  # 20 images of each class


def test_the_explorer_holds_every_point_and_its_groups(run, page):
    held = embedded(page, "front-data")
    front = run.result["front"]
    points = [point for found in held["objectives"].values() for point in found]
    assert len(points) == len(front["points"]) == 18
    for shown, point in zip(points, front["points"], strict=True):
        assert np.array(shown["per_class"]) / 10_000 == pytest.approx(point["per_class"], abs=1e-4)
        assert np.array(shown["high"]) / 10_000 == pytest.approx(point["high"], abs=1e-4)
        means = [np.mean([point["per_class"][j] for j in group.members]) for group in run.findings.deciles]
        assert np.array(shown["groups"]) / 10_000 == pytest.approx(means, abs=1e-4)
    assert held["protected"] == front["protected"]


def test_result_json_holds_all_classes_and_some_responses(folder):
    result = json.loads((folder / "result.json").read_text())
    assert len(result["tests"]["per_class"]) == len(result["classes"]) == 1000
    assert sorted(j for group in result["deciles"] for j in group["members"]) == list(range(1000))
    reference = (Path(__file__).parents[2] / "docs/reference/run-folder.md").read_text()
    assert all(f"`{name}`" in reference for name in result["deciles"][0])
    responses = result["iterations"][0]["responses"]
    assert responses["directions"] == [f"class gradient {i}" for i in range(1, GRADIENTS + 1)]
    assert np.array(responses["values"]).shape == (GRADIENTS, 1000)
    assert all(value == float(f"{value:.6g}") for row in responses["values"] for value in row)


@pytest.mark.parametrize("classes", [MANY_CLASSES, MANY_CLASSES + 1])
def test_up_to_forty_classes_are_shown_one_by_one(classes):
    run = make_run(drawn_outcome(drawn_findings(class_names(classes), 2000)), {})
    page = run_page(run)
    many = classes > MANY_CLASSES
    assert ('id="class-data"' in page) == ('id="find"' in page) == ("Ten groups of classes" in page) == many
    assert page.count("data-class=") == (0 if many else classes)
    assert len(run.findings.deciles) == len(run.result["deciles"]) == (10 if many else 0)
    listed = len(run.result["iterations"][0]["responses"]["directions"])
    assert listed == (GRADIENTS if many else classes + GRADIENTS)
    assert len(run.responses.classes) == classes


def test_hostile_names_of_many_classes_are_only_names():
    names = HOSTILE + class_names(50)
    run = make_run(drawn_outcome(drawn_findings(names, 3000)), {"data": "</script><b>", "out": '"><i>'})
    page = run_page(run)
    assert {"b", "i", "img"}.isdisjoint(Outline(page).tags)
    assert page.count("<script") == page.count("</script") == 3
    assert embedded(page, "class-data")["names"] == [one_line(name) for name in names]


def test_console_markdown_and_card_show_groups_and_the_most_changed(run):
    console = Console(file=io.StringIO(), width=80)
    print_findings(console, run.findings)
    printed = console.file.getvalue()
    markdown = to_markdown(run.findings, "All done.")
    before, after = run.findings.heldout.metrics()
    change = np.array(after.per_class) - np.array(before.per_class)
    for words in (printed, markdown):
        assert len(words.splitlines()) < 90
        assert run.classes[int(change.argmax())] in words
        assert "10, strongest" in words
        assert all(f"{100 * group.after:.1f} [" in words for group in run.findings.deciles)
        assert "20 of 1,000 classes: at most 10 that gained most and 10 that lost most." in words
    assert decile_note(run.findings) in markdown
    head = yaml.safe_load(model_card(run).split("---\n", 2)[1])
    metrics = head["model-index"][0]["results"][0]["metrics"]
    assert len(metrics) == 14
    assert metrics[4]["name"] == "mean class accuracy of group 1, weakest"
    assert metrics[4]["value"] == pytest.approx(run.findings.deciles[0].after, abs=1e-6)
    assert describe_choices(run.result["choices"], run.findings).endswith(
        f"and {len(run.result['choices']['protected']) - 10} more"
    )


def test_figures_stay_of_a_size(run):
    figures = run_figures(run)
    assert all(max(figure.get_size_inches()) <= 16 for figure in figures.values())
    assert figures["classes"].axes[0].get_ylabel() == "class (20 of 1,000)"
    assert figures["responses"].axes[0].get_xlabel() == "class (40 of 1,000)"


def test_a_diagnosis_shows_both_ends(run):
    matrix = np.random.default_rng(0).normal(size=(4, 1000))
    metrics = run.findings.calibration.metrics()[0]
    diagnosis = Diagnosis(
        classes=run.classes,
        metrics=metrics,
        forecast=Forecast(Asked(budget=0.002), True, True, *[Expected(0.2, 0.1, 0.01)] * 3, {}),
        error_ratio=2.0,
        exponent=2.0,
        advice="Worth a comparison.",
        warnings=(),
        date="2026-01-01T00:00:00+00:00",
        model="ResNet",
        data={"calibration": {"images": 10, "sha256": 64 * "a"}},
        spikes=SpikeDiagnosis([4.0, 3.0, 2.0, 1.0], [0.0] * 4, matrix.tolist(), 0.1, analyse(matrix, run.classes)),
    )
    console = Console(file=io.StringIO(), width=120)
    print_diagnosis(console, diagnosis)
    assert len(console.file.getvalue().splitlines()) < 64
    assert "the 10 weakest and the 10 strongest of 1,000 classes" in console.file.getvalue()
    assert "… and so 980 more pairs" in console.file.getvalue()
    content = json.loads(json.dumps(diagnosis.as_dict()))
    content |= {"tolerance": 0.01, "seed": 0, "inputs": {}, "hashes": {}, "environment": {}}
    page = diagnosis_page(content)
    assert len(page) < 300_000
    assert "The 10 weakest and the 10 strongest of 1,000 classes" in page
    weakest = run.classes[int(np.argmin(metrics.per_class))]
    assert f"<bdi>{weakest}</bdi>" in page
    assert "before" not in embedded(page, "class-data")


def test_leading_responses_are_the_largest():
    values = np.zeros((3, 100))
    values[1, 7], values[2, 99] = -5.0, 1.0
    shown = leading_responses(Responses(("a", "b", "c"), class_names(100), values.tolist(), "length"))
    assert len(shown.classes) == MANY_CLASSES
    assert shown.of_classes == 100
    assert {class_names(100)[7], class_names(100)[99]} <= set(shown.classes)
    assert np.abs(shown.values).sum() == 6.0


def test_a_page_is_written_again_as_it_was(folder, page):
    assert hs.write_report(folder).read_text() == page


def test_groups_of_folds_say_that_one_set_of_images_does_both():
    findings = replace(drawn_findings(class_names(50), 2500), folds=5)
    said = decile_note(findings)
    assert "on the same images, so that chance makes the first look weaker" in said
    assert "held-out" not in said


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_biases_alone_with_many_classes(tmp_path, gap):
    """Responses to biases are not kept then: there is none. With and without a step."""
    draw = torch.Generator().manual_seed(0)
    model = nn.Linear(43, 43)
    with torch.no_grad():
        model.weight.copy_(4 * torch.eye(43))
        model.bias.copy_(gap * torch.randn(43, generator=draw))

    def images(count):
        labels = torch.arange(43).repeat(count)
        return torch.eye(43)[labels] + 0.5 * torch.randn(len(labels), 43, generator=draw), labels

    parts = {"training_data": images(4), "calibration_data": images(20), "heldout_data": images(20)}
    outcome = hs.operate(model, config=hs.SurgeryConfig(directions="biases"), **parts)
    assert outcome.iterations[0].accepted == (gap > 0)
    assert outcome.structure.effective_rank == 0
    outcome.save(tmp_path / "run")
    page = hs.write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "The step moved only the head" in page if gap else "With more than 40 classes" in page
    assert "responses" not in run_figures(load_run(tmp_path / "run"))
