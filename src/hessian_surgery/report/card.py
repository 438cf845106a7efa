"""A model card in Hugging Face's format: metadata for programs, then text for people."""

import json
import re
from pathlib import PurePath

from hessian_surgery.data.sources import IMAGE_KINDS
from hessian_surgery.evidence.metrics import Metrics
from hessian_surgery.plain_text import one_line, visible
from hessian_surgery.report.deciles import group_name
from hessian_surgery.report.markdown import plain, to_markdown
from hessian_surgery.report.provenance import command_line, ran_as_command
from hessian_surgery.report.run import Run
from hessian_surgery.version import __version__

# What YAML forbids between quotes, and JSON does not escape.
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

# The Hub's names for what a classifier of such samples does.
TASKS = {"images": "image-classification", "texts": "text-classification"}


def model_card(run: Run) -> str:
    """Write the card as Markdown with YAML metadata at its head."""
    inputs = run.config["inputs"]
    title = f"{inputs.get('model', 'A classifier')}, patched by Hessian Surgery"
    parts = [
        _head(run, title),
        f"# {plain(title)}",
        f"A trained classifier. Hessian Surgery {__version__} moved its weights a little to raise its weak classes and "
        "protect its strong ones. No class was added, no layer was changed, and the model was not trained again.",
        "## Results on held-out images\n\n" + to_markdown(run.findings, run.result["ended"]).strip(),
        _acceptance(run),
        "## Intended use\n\nUse it in place of the original model, for the same inputs and classes, if even accuracy "
        "across classes matters. The table above says what each class gained and lost. "
        "`patch.safetensors` turns the original weights into these, and back, bit for bit: see "
        "`hessian-surgery apply` and `hessian-surgery revert`.",
        f"## Limits\n\n{_limits(run)}",
        f"## How it was made\n\n{_making(run)}",
    ]
    # The first and the last name files.
    said = [parts[0], *map(run.findings.said, parts[1:-1]), parts[-1]]
    return "\n\n".join(part for part in said if part) + "\n"


def _data_name(spec: str) -> str:
    """The name of a data set, without the folder that it lies in on this machine."""
    kind, _, place = spec.partition(":")
    return PurePath(place).name or kind if kind in IMAGE_KINDS else spec


def _head(run: Run, title: str) -> str:
    """The YAML metadata: tags, and a model-index with results for all images and each class."""
    after = run.findings.heldout.metrics()[1]
    given = (run.config["inputs"].get(name) for name in ("data", "heldout_data", "calibration_data"))
    data = _data_name(str(next((name for name in given if name), "held-out images")))
    metrics: list[tuple[str, str, float]] = [
        ("accuracy", "accuracy", after.accuracy),
        ("balanced_accuracy", "balanced accuracy", after.balanced_accuracy),
        ("accuracy", "worst class accuracy", after.worst),
        ("standard_deviation", "standard deviation of the class accuracies", after.sigma),
    ]
    metrics += _parts(run, after)
    task = TASKS.get(run.findings.noun, "other")
    library = "transformers" if str(run.config["inputs"].get("model", "")).startswith("hf:") else "pytorch"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task}"]
    lines += ["tags:", "- hessian-surgery", "- class-imbalance", f"- {task}"]
    lines += ["metrics:", "- accuracy", "model-index:", f"- name: {_quoted(title)}", "  results:"]
    lines += ["  - task:", f"      type: {task}", "    dataset:"]
    folds = run.findings.folds
    split = "held-out" if folds is None else f"cross-fitted in {folds} folds"
    lines += [f"      name: {_quoted(data)}", f"      type: {_quoted(data)}", f"      split: {split}", "    metrics:"]
    for kind, name, value in metrics:
        lines += [f"    - type: {kind}", f"      name: {_quoted(name)}", f"      value: {value:.6f}"]
    return "\n".join([*lines, "---"])


def _parts(run: Run, after: Metrics) -> list[tuple[str, str, float]]:
    """The accuracy of each class; of many, of each of ten groups."""
    groups = run.findings.deciles
    if groups:
        return [("accuracy", f"mean class accuracy of group {group_name(g, len(groups))}", g.after) for g in groups]
    named = zip(run.classes, after.per_class, strict=True)
    return [("accuracy", f"accuracy of class {one_line(name)}", value) for name, value in named]


def _acceptance(run: Run) -> str:
    failed = run.failed_criteria
    if failed is None:
        return ""
    words = "Every acceptance criterion is met on the held-out images."
    if failed:
        words = "**Not accepted.** Criteria that are not met on the held-out images:\n"
    remedies = {one.failure: one.remedy for one in run.findings.criteria}
    return "\n".join(["## Acceptance\n", words, *(f"- {plain(line + remedies.get(line, ''))}" for line in failed)])


def _limits(run: Run) -> str:
    tests = run.findings.tests
    images = f"{len(run.findings.heldout.labels):,} {'held-out ' if run.findings.folds is None else ''}images"
    lines = [
        "Rebalancing trades accuracy between classes: some gain, others may lose.",
        *([run.findings.note] if run.findings.note else []),
        f"All figures come from {images} of the same source. They say nothing about images that differ from these.",
        "The patch fits these weights only; a model that is trained further needs a new one.",
        f"It changes probabilities too: the calibration error goes from {100 * tests.calibration_error[0]:.1f} % "
        f"to {100 * tests.calibration_error[1]:.1f} %.",
    ]
    return "\n".join(f"- {line}" for line in (*lines, *map(plain, run.findings.warnings)))


def _making(run: Run) -> str:
    inputs = run.config["inputs"]
    lines = [f"- {key}: {plain(str(run.result[key]))}" for key in ("date", "model") if run.result.get(key)]
    lines += [f"- seed: {run.result['seed']}"]
    lines += [f"- {plain(key)}: {plain(str(value))}" for key, value in run.result["environment"].items()]
    lines += [f"- SHA-256, {plain(key)}: `{_hex(value)}`" for key, value in run.hashes.items()]
    if ran_as_command(inputs):
        command = visible(command_line("operate", inputs))
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
        lines += ["", f"{fence}sh", command, fence]
    return "\n".join(lines)


def _hex(value: str) -> str:
    """A hash; what is none of it is left out."""
    return re.sub("[^0-9a-f]", "", value)


def _quoted(value: str) -> str:
    """Quote a string for YAML: as JSON does, with more characters escaped."""
    written = json.dumps(visible(value), ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", written)
