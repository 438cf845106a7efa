import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from runs import HOSTILE, give_front, made_up_front, renamed

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.evidence.paired_tests import ClassTest
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.report.explorer import explored_command
from hessian_surgery.report.markup import embedded, name, short, text
from hessian_surgery.report.provenance import command_line, reproduction
from hessian_surgery.report.run import direction_names, load_run, run_of
from hessian_surgery.report.run_page import halves_gap, run_page, significance

VOID = {"meta", "input", "br", "img", "link", "hr"}
INPUTS = {
    "model": "smallnet",
    "checkpoint": "a file/base's.safetensors",
    "data": "digits",
    "out": "my run",
    "seed": "0",
}


class Outline(HTMLParser):
    """Which elements a page has, whether they are closed, and its ids and attributes."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.ids, self.attributes, self.labels = [], [], [], [], []
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
    "planned": hs.SurgeryConfig(budget=0.01, max_drop=0.03, iterations=1),
    "loop": hs.SurgeryConfig.loop(iterations=3, hessian_samples=64),
}


@pytest.fixture(scope="module", params=CONFIGS)
def outcome(request, _trained, digits_parts):
    module = SmallNet(10)
    module.load_state_dict(_trained)
    return operate(module.eval(), digits_parts, CONFIGS[request.param])


def test_the_page_says_all_that_was_found(outcome, tmp_path):
    page = run_page(run_of(outcome, None, INPUTS))
    outline = Outline(page)
    assert outline.tags.count("h1") == 1
    assert len(outline.ids) == len(set(outline.ids))
    places = [value.removeprefix("#") for key, value in outline.attributes if key == "href"]
    assert set(places) <= set(outline.ids)
    spikes = {"spectrum"} if outcome.config.algorithm == "loop" else set()
    assert {"warnings", "classes", "flows", "sensitivity", "iterations", "reproduce"} | spikes < set(places)
    assert ("spectrum" in places) == bool(spikes)
    assert text(outcome.verdict.sentence) in page
    after = outcome.findings.heldout.metrics()[1]
    assert all(f">{100 * value:.1f} <small>" in page for value in after.per_class)
    assert page.count('<tr><th scope="row"><bdi>') >= 10
    assert "SHA-256, weights after" in page
    assert "--checkpoint &#x27;a file/base&#x27;&quot;&#x27;&quot;&#x27;s.safetensors&#x27;" in page
    outcome.save(tmp_path / "run", None, INPUTS)
    assert hs.write_report(tmp_path / "run").read_text() == page


def test_nothing_is_loaded_and_nothing_but_its_own_style_and_script_counts(outcome):
    page = run_page(run_of(outcome, None, {}))
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
    outcome = operate(trained, parts, CONFIGS["planned"])
    outcome.save(tmp_path / "run", None, {"data": "</script><b>", "out": '"><i>'})
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


def test_directions_have_names(outcome):
    run = run_of(outcome, None, INPUTS)
    names = direction_names(run)
    assert len(names) == len(run.result["iterations"][0]["sensitivity"])
    if outcome.config.algorithm == "loop":
        assert names[0] == "spike 1"
    else:
        assert (names[0], names[10]) == ("bias of 0", "gradient of 0")
    told = run.result | {"choices": {"direction_names": ["mine"]}}
    assert direction_names(replace(run, result=told)) == ["mine"]


def test_the_explored_command_is_the_runs_own_with_another_aim(outcome):
    run = run_of(outcome, None, INPUTS | {"target": "sigma", "budget": "0.002", "iterations": "3"})
    command = explored_command(run, "worst", 0.005)
    assert command == (
        "hessian-surgery operate --model smallnet --checkpoint 'a file/base'\"'\"'s.safetensors' --data digits "
        "--seed 0 --target worst --budget 0.005 --iterations 1 --out 'my run-worst-0.005'"
    )
    assert 'target="worst", targets={}, budget=0.005' in explored_command(run_of(outcome, None, {}), "worst", 0.005)
    assert command_line("compare", {"image_size": 32}) == "hessian-surgery compare --image-size 32"
    again = reproduction("operate", INPUTS, {}, {}).body
    assert "--out &#x27;my run-again&#x27; --seed 0" in again


def test_the_explorer_is_there_where_a_front_is(outcome, tmp_path):
    run = run_of(outcome, None, INPUTS)
    run.result["front"] = None
    assert 'id="explore"' not in run_page(run)
    run.result["front"] = made_up_front(run.result)
    page = run_page(run)
    assert 'id="explore"' in page
    assert page.count("<li data-class=") == 10


def test_a_gap_between_the_halves_is_said(outcome):
    run = run_of(outcome, None, INPUTS)
    told = halves_gap(run)
    before, after = run.findings.calibration.metrics()
    assert (told is not None) == (after.sigma - before.sigma < run.findings.tests.sigma.interval[0])


@pytest.mark.parametrize(
    ("gained", "lost", "p", "claim", "sign", "words"),
    [
        (9, 0, 0.004, True, "up", "▲ yes, p = 0.004"),
        (0, 20, 1e-6, True, "down", "▼ yes, p &lt; 0.0001"),
        (3, 1, 0.6, True, "same", "no, p = 0.6"),
        (9, 0, 0.004, False, "same", "too few images"),
    ],
)
def test_significance_in_words(gained, lost, p, claim, sign, words):
    found = significance(ClassTest("cat", gained, lost, p, p, 0.1, claim))
    assert found[0] == sign
    assert words in found[1]


def test_a_run_is_read_again_as_it_was(outcome, tmp_path):
    outcome.save(tmp_path / "run", None, INPUTS)
    one, two = run_of(outcome, None, INPUTS), load_run(tmp_path / "run")
    assert one.hashes == two.hashes
    assert one.config == json.loads(json.dumps(two.config))
    assert json.loads(json.dumps(one.result)) == two.result


def test_a_comparison_of_other_classes_is_refused(outcome, tmp_path):
    outcome.save(tmp_path / "run", None, INPUTS)
    (tmp_path / "compare.json").write_text('{"classes": ["cat"]}')
    with pytest.raises(hs.InputError, match=r"compare: the classes of .* give one of the same model"):
        hs.write_report(tmp_path / "run", comparison=tmp_path)
