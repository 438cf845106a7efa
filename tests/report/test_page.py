import json
import re
from html.parser import HTMLParser

import pytest
from runs import HOSTILE, give_front, made_up_front, make_run, renamed, save_run

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.evidence.overfitting import noise_free_sigmas
from hessian_surgery.evidence.paired_tests import ClassTest
from hessian_surgery.markup import embedded, name, short, text
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.report.classes import significance
from hessian_surgery.report.explorer import explored_command
from hessian_surgery.report.markdown import to_markdown
from hessian_surgery.report.provenance import command_line, reproduction
from hessian_surgery.report.run import load_run
from hessian_surgery.report.run_page import run_page

VOID = {"meta", "input", "br", "img", "link", "hr"}
INPUTS = {
    "model": "smallnet",
    "checkpoint": "a file/base's.safetensors",
    "data": "digits",
    "out": "my run",
    "seed": "0",
}


class Outline(HTMLParser):
    """The elements of a page, its ids and attributes; fails if an element is not closed."""

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.tags = []
        self.ids = []
        self.attributes = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for key, value in attributes if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


CONFIGS = {
    "default": hs.SurgeryConfig(budget=0.01, max_drop=0.03, iterations=1),
    "loop": hs.LoopConfig(iterations=3, search=hs.SpikeSearch(hessian_samples=64)),
}


@pytest.fixture(scope="module", params=CONFIGS)
def outcome(request, _trained, digits_parts):
    module = SmallNet(10)
    module.load_state_dict(_trained)
    return operate(module.eval(), digits_parts, CONFIGS[request.param], front=True)


def test_the_page_says_all_that_was_found(outcome, tmp_path):
    run = make_run(outcome, INPUTS)
    page = run_page(run)
    outline = Outline(page)
    assert outline.tags.count("h1") == 1
    assert len(outline.ids) == len(set(outline.ids))
    places = [value.removeprefix("#") for key, value in outline.attributes if key == "href"]
    assert set(places) <= set(outline.ids)
    assert {"warnings", "classes", "flows", "responses", "iterations", "reproduce"} < set(places)
    assert ("spectrum" in places) == (run.config["algorithm"] == "loop")
    assert ("explore" in places) == (run.config["algorithm"] == "default")
    assert text(outcome.verdict.sentence) in page
    assert f"<p>{text(outcome.ended)}</p>" in page
    assert outcome.ended in to_markdown(outcome.findings, outcome.ended)
    after = outcome.findings.heldout.metrics()[1]
    assert all(f">{100 * value:.1f} <small>" in page for value in after.per_class)
    assert page.count('<tr><th scope="row"><bdi>') >= 10
    assert "SHA-256, weights after" in page
    assert "--checkpoint &#x27;a file/base&#x27;&quot;&#x27;&quot;&#x27;s.safetensors&#x27;" in page
    save_run(outcome, tmp_path / "run", INPUTS)
    assert hs.write_report(tmp_path / "run").read_text() == page


def test_nothing_is_loaded_and_nothing_but_its_own_style_and_script_counts(outcome):
    page = run_page(make_run(outcome, {}))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    outline = Outline(page)
    assert not {"link", "img", "iframe", "object", "form"} & set(outline.tags)
    assert not {"src", "style", "onclick", "onload"} & {key for key, _ in outline.attributes}
    assert "http://" not in page
    assert "https://" not in page


def test_hostile_names_are_only_names(trained, digits_parts, tmp_path):
    parts = renamed(digits_parts, HOSTILE)
    outcome = operate(trained, parts, CONFIGS["default"])
    save_run(outcome, tmp_path / "run", {"data": "</script><b>", "out": '"><i>'})
    give_front(tmp_path / "run")
    page = (tmp_path / "run/report.html").read_text()
    assert {"b", "i", "img"}.isdisjoint(Outline(page).tags)
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "\x00" not in page
    assert "<bdi>חתול שחור</bdi>" in page


def test_what_is_embedded_cannot_end_its_element():
    content = {"name": "</script><!--\u2028&", "values": [0.5]}
    written = embedded(content, "data")
    inner = written.removeprefix('<script type="application/json" id="data">').removesuffix("</script>")
    assert not set("<>&\u2028") & set(inner)
    assert json.loads(inner) == content


@pytest.mark.parametrize("written", [text, name, lambda value: short(value, 9)])
def test_text_is_escaped_and_on_one_line(written):
    for value in (*HOSTILE, "\udcff from a file's name", 3.5):
        found = written(value).removeprefix("<bdi>").removesuffix("</bdi>")
        assert not set("<>\"'\n\t\x00") & set(found)
        found.encode("utf-8")


def test_responses_are_those_of_the_first_iteration(outcome):
    run = make_run(outcome, INPUTS)
    recorded = run.result["iterations"][0]["responses"]
    assert run.responses.values == recorded["values"]
    assert run.responses.directions == recorded["directions"]
    # The other directions are left out if the step moved nothing but biases.
    recorded["directions"] = [f"bias of my {i}" for i in range(len(recorded["values"]))]
    page = run_page(run)
    assert "<bdi>bias of my 0</bdi>" in page
    words = "the step's length" if run.config["algorithm"] == "loop" else "a coefficient of 1 moves the logits"
    assert words in page


def test_spikes_that_have_not_converged_are_counted(outcome):
    run = make_run(outcome, INPUTS)
    first = run.result["iterations"][0]
    first |= {"eigenvalues": [3.0, 2.0], "residuals": [0.5, 0.0]}
    run.config["search"]["tolerance"] = 0.01
    assert "At a tolerance of 0.01 for the relative residual, 1 of 2 have not converged." in run_page(run)


def test_the_explored_command_is_the_runs_own_with_another_aim(outcome):
    run = make_run(outcome, INPUTS | {"target": "sigma", "budget": "0.002", "iterations": "3"})
    command = explored_command(run, "worst", 0.005)
    assert command == (
        "hessian-surgery operate --model smallnet --checkpoint 'a file/base'\"'\"'s.safetensors' --data digits "
        "--seed 0 --target worst --budget 0.005 --iterations 1 --out 'my run-worst-0.005'"
    )
    assert 'target="worst", targets={}, budget=0.005' in explored_command(make_run(outcome, {}), "worst", 0.005)
    assert command_line("compare", {"image_size": 32}) == "hessian-surgery compare --image-size 32"
    again = reproduction("operate", INPUTS, {}, {}).body
    assert "--out &#x27;my run-again&#x27; --seed 0" in again


def test_the_explorer_is_there_if_there_is_a_front(trained, digits_parts):
    run = make_run(operate(trained, digits_parts, CONFIGS["default"]), INPUTS)
    run.result["front"] = None
    assert 'id="explore"' not in run_page(run)
    run.result["front"] = made_up_front(run.result)
    page = run_page(run)
    assert 'id="explore"' in page
    assert page.count("<li data-class=") == 10


def test_overfitting_to_the_calibration_images_is_said(outcome):
    """Wherever warnings are told, and once."""
    run = make_run(outcome, INPUTS)
    before, after = noise_free_sigmas(run.findings.calibration)
    overfitted = after - before < run.findings.tests.sigma.interval[0]
    told = [warning for warning in run.findings.warnings if warning.startswith("overfitting: ")]
    assert len(told) == overfitted
    assert run_page(run).count("overfitting: ") == overfitted
    assert outcome.summary().count("overfitting: ") == overfitted


@pytest.mark.parametrize(
    ("gained", "lost", "p", "claim", "sign", "words"),
    [
        (9, 0, 0.004, True, "up", "▲ yes, p = 0.004"),
        (0, 20, 1e-6, True, "down", "▼ yes, p &lt; 0.0001"),
        (3, 1, 0.6, True, "same", "no, p = 0.6"),
        (9, 0, 0.004, False, "same", "too few to tell"),
    ],
)
def test_significance_in_words(gained, lost, p, claim, sign, words):
    found = significance(ClassTest("cat", gained, lost, p, p, 0.1, claim))
    assert found[0] == sign
    assert words in found[1]


def test_a_run_is_read_again_as_it_was(outcome, tmp_path):
    save_run(outcome, tmp_path / "run", INPUTS)
    one = make_run(outcome, INPUTS)
    two = load_run(tmp_path / "run")
    assert one.hashes == two.hashes
    assert one.config == json.loads(json.dumps(two.config))
    assert json.loads(json.dumps(one.result)) == two.result


def test_a_comparison_of_other_classes_is_refused(outcome, tmp_path):
    save_run(outcome, tmp_path / "run", INPUTS)
    base = {"accuracy": 0.5, "sigma": 0.1, "worst": 0.4, "balanced_accuracy": 0.5}
    front = {"schema_version": 2, "classes": ["cat"], "images": 9, "headline": 0.0, "base": base, "methods": []}
    front |= {"bias_shares": {}, "splits": 1, "advice": {"sentence": ""}, "inputs": {}, "environment": {}, "seed": 0}
    (tmp_path / "compare.json").write_text(json.dumps(front))
    with pytest.raises(hs.InputError, match=r"comparison: .* has other classes than .*; give a comparison of the same"):
        hs.write_report(tmp_path / "run", comparison=tmp_path)


@pytest.mark.parametrize(("command", "content"), [("compare", '{"schema_version": 1}'), ("diagnose", "{}")])
def test_folders_of_an_earlier_version_are_refused(tmp_path, command, content):
    file = {"compare": "compare.json", "diagnose": "diagnosis.json"}[command]
    (tmp_path / file).write_text(content)
    words = rf"^run: {tmp_path} was written by an earlier version \(schema 1\); {command} again$"
    with pytest.raises(hs.InputError, match=words):
        hs.write_report(tmp_path)


def test_a_comparison_of_an_earlier_version_is_refused(outcome, tmp_path):
    save_run(outcome, tmp_path / "run", INPUTS)
    (tmp_path / "compare.json").write_text('{"schema_version": 1}')
    with pytest.raises(hs.InputError, match=r"^comparison: .* an earlier version \(schema 1\); compare again$"):
        hs.write_report(tmp_path / "run", comparison=tmp_path)
