"""A model card in Hugging Face's format for a patched model: metadata that programs read, then what people read."""

import json
import re
from typing import Any

from hessian_surgery.report.markdown import plain, to_markdown
from hessian_surgery.report.markup import writable
from hessian_surgery.report.provenance import command_line
from hessian_surgery.report.run import Run
from hessian_surgery.version import __version__

# What YAML does not take between quotes, beside what JSON escapes.
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def model_card(run: Run) -> str:
    """The card as Markdown with a YAML head."""
    inputs = run.config["inputs"]
    title = f"{inputs.get('model', 'A classifier')}, patched by Hessian Surgery"
    parts = [
        _head(run, title),
        f"# {plain(title)}",
        f"A trained classifier whose weights were moved a little by Hessian Surgery {__version__}, so that its weak "
        "classes rise and its strong ones are spared. No class was added, no layer was changed, and it was not trained "
        "again.",
        "## Results on held-out images\n\n" + to_markdown(run.findings).strip(),
        _acceptance(run),
        "## Intended use\n\nIn place of the model that it was made from, for the same inputs and classes, where an "
        "even accuracy over classes matters. Decide by the table above: it says what each class gained and lost. "
        "`patch.safetensors` turns the original weights into these and back, bit for bit: `hessian-surgery apply`, "
        "`hessian-surgery revert`.",
        f"## Limits\n\n{_limits(run)}",
        f"## How it was made\n\n{_making(run)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(run: Run, title: str) -> str:
    """The YAML metadata: tags and a model-index with a result for all images and for each class."""
    after = run.findings.heldout.metrics()[1]
    data = str(run.config["inputs"].get("data", run.config["inputs"].get("heldout_data", "held-out images")))
    metrics: list[tuple[str, str, float]] = [
        ("accuracy", "accuracy", after.accuracy),
        ("balanced_accuracy", "balanced accuracy", after.balanced_accuracy),
        ("accuracy", "worst class accuracy", after.worst),
        ("standard_deviation", "standard deviation of the class accuracies", after.sigma),
    ]
    metrics += [
        ("accuracy", f"accuracy of class {' '.join(name.split())}", value)
        for name, value in zip(run.classes, after.per_class, strict=True)
    ]
    lines = ["---", "library_name: pytorch", "pipeline_tag: image-classification"]
    lines += ["tags:", "- hessian-surgery", "- class-imbalance", "- image-classification"]
    lines += ["metrics:", "- accuracy", "model-index:", f"- name: {_quoted(title)}", "  results:"]
    lines += ["  - task:", "      type: image-classification", "    dataset:"]
    lines += [f"      name: {_quoted(data)}", f"      type: {_quoted(data)}", "      split: held-out", "    metrics:"]
    for kind, name, value in metrics:
        lines += [f"    - type: {kind}", f"      name: {_quoted(name)}", f"      value: {value:.6f}"]
    return "\n".join([*lines, "---"])


def _acceptance(run: Run) -> str:
    found: dict[str, Any] | None = run.result.get("acceptance")
    if found is None:
        return ""
    if not found["failed"]:
        return "## Acceptance\n\nEvery acceptance criterion is met on the held-out images."
    failed = "\n".join(f"- {plain(line)}" for line in found["failed"])
    return f"## Acceptance\n\n**Not accepted.** Criteria that are not met on the held-out images:\n\n{failed}"


def _limits(run: Run) -> str:
    tests = run.findings.tests
    lines = [
        "Rebalancing moves accuracy from class to class: what some classes gain, others may lose.",
        f"All figures are from {len(run.findings.heldout.labels):,} held-out images of the same source. On images that "
        "differ from these, nothing is known.",
        "The patch is for these weights only; a model that is trained on needs a new one.",
        f"It changes probabilities as well: the calibration error goes from {100 * tests.calibration_error[0]:.1f} % "
        f"to {100 * tests.calibration_error[1]:.1f} %.",
    ]
    return "\n".join(f"- {line}" for line in (*lines, *map(plain, run.findings.warnings)))


def _making(run: Run) -> str:
    inputs, environment = run.config["inputs"], run.result["environment"]
    lines = [f"- seed: {run.result['seed']}"]
    lines += [f"- {key}: {plain(str(value))}" for key, value in environment.items()]
    lines += [f"- SHA-256, {key}: `{value}`" for key, value in run.hashes.items()]
    if {"data", "calibration_data"} & inputs.keys():
        command = command_line("operate", inputs)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
        lines += ["", f"{fence}sh", command, fence]
    return "\n".join(lines)


def _quoted(value: str) -> str:
    """A string that YAML reads as it is: JSON's form, less what YAML forbids."""
    written = json.dumps(writable(value), ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", written)
