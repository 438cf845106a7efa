"""Every form of a report begins with the answer; folders of earlier versions are still read."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from runs import make_run

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.markup import text
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation.acceptance_criteria import Criteria, Limits
from hessian_surgery.operation.accepted import with_criteria
from hessian_surgery.operation.answer_text import ASKED, CHANGED, COSTS, SIMPLER
from hessian_surgery.operation.outcome import load_findings
from hessian_surgery.report.card import model_card
from hessian_surgery.report.markdown import plain, to_markdown
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page
from hessian_surgery.weights.tensorfile import read_tensors, save_tensors

STRICT = Criteria(Limits(minimum_accuracy=0.5), {"9": Limits(minimum_accuracy=0.99)})


@pytest.fixture(scope="module", params=["fc*", "features*"])
def outcome(request, _trained, digits_parts):
    """One operation that may move the head alone, and one that must move other weights."""
    module = SmallNet(10)
    module.load_state_dict(_trained)
    found = operate(module.eval(), digits_parts, hs.SurgeryConfig(parameters=request.param), front=True)
    return with_criteria(found, STRICT)


def printed(findings):
    console = Console(file=StringIO(), width=400)
    print_findings(console, findings)
    return console.file.getvalue()


def test_all_forms_begin_with_the_same_answer(outcome):
    run = make_run(outcome, {})
    findings = run.findings
    assert findings.verdict.headline == "Better, but 1 of 10 criteria not met"
    forms = {
        printed(findings): str,
        to_markdown(findings, outcome.ended): plain,
        model_card(run): plain,
        run_page(run): text,
    }
    for form, written in forms.items():
        places = [form.index(written(words)) for words in (findings.verdict.headline, findings.plain)]
        assert places == sorted(places)
        for words in ("a lower σ", "criterion", "9", str(findings.changed), *(ASKED, CHANGED, COSTS, SIMPLER)[1:]):
            assert written(words) in form
        assert form.index(written(findings.plain)) < form.index(written(CHANGED)) < form.index(written(SIMPLER))
    page = run_page(run)
    assert '<div class="verdict mixed">' in page
    assert text(findings.criteria[9].failure + findings.criteria[9].remedy) in page
    assert outcome.date[:16].replace("T", " ") in page
    for part in ("training", "calibration", "heldout"):
        assert outcome.data[part]["sha256"] in page
        assert outcome.data[part]["sha256"] in model_card(run)
    assert list(outcome.as_dict())[:6] == ["schema_version", "method", "date", "verdict", "plain", "asked"]


def test_directions_that_were_not_used_are_not_shown(outcome):
    run = make_run(outcome, {})
    page = run_page(run)
    only = run.findings.changed.only_biases
    assert ("The other directions were not used" in page) == only
    assert len(run.classes) <= MANY_CLASSES
    shown = page[page.index('<section id="responses"') : page.index('<section id="iterations"')]
    assert ("gradient" in shown) != only


def test_a_folder_of_an_earlier_version_is_still_reported_on(outcome, tmp_path):
    outcome.save(tmp_path / "run")
    path = tmp_path / "run/result.json"
    result = json.loads(path.read_text())
    for key in ("date", "plain", "changed", "recalibrated", "costs", "simpler", "model", "data"):
        del result[key]
    del result["acceptance"]["checked"]
    for key in ("headline", "tone"):
        del result["verdict"][key]
    path.write_text(json.dumps(result))
    tensors, _ = read_tensors(tmp_path / "run/predictions.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "simpler" not in name}
    assert len(kept) == len(tensors) - 3
    save_tensors(tmp_path / "run/predictions.safetensors", kept)
    run = load_run(tmp_path / "run")
    assert run.findings.changed is run.findings.simpler is None
    # Criteria are checked again, so the headline is not green.
    assert run.findings.verdict.headline == outcome.verdict.headline
    for form in (run_page(run), model_card(run), to_markdown(run.findings, "ended"), printed(run.findings)):
        assert "1 of 10 criteria not met" in form
        assert COSTS in form
        assert SIMPLER not in form


def test_a_saved_run_says_what_it_said_when_it_ended(outcome, tmp_path):
    outcome.save(tmp_path / "run")
    findings = load_findings(tmp_path / "run")
    size = (tmp_path / "run/patch.safetensors").stat().st_size
    assert findings.changed == replace(outcome.findings.changed, patch_bytes=size)
    assert findings.verdict == outcome.verdict
    assert findings.criteria == outcome.findings.criteria
    assert findings.warnings == outcome.findings.warnings
    assert findings.simpler.as_dict() == outcome.findings.simpler.as_dict()
