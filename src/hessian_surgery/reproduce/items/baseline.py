"""Table 1: class accuracies of the starting network, on all test images."""

from collections.abc import Sequence

from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench

# Accuracy in percent.
PAPER = {
    "airplane": 89.2,
    "automobile": 90.7,
    "bird": 81.7,
    "cat": 68.6,
    "deer": 85.2,
    "dog": 69.0,
    "frog": 90.6,
    "horse": 90.5,
    "ship": 93.1,
    "truck": 89.5,
}
OTHER = "another network: theirs was pretrained on ImageNet, ours is trained from scratch"


def measure(bench: Workbench, split: int) -> Measured:
    """Accuracies of all classes; no split changes them."""
    test = bench.source.part("test", "data")
    classifier = as_classifier(bench.model())
    predictions = compute_logits(classifier, test).argmax(dim=1).cpu()
    return {"classes": list(test.classes)} | compute_metrics(predictions, test.labels, len(test.classes)).as_dict()


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Each class beside the paper's; and which are weakest."""
    found = measured["cifar10"][0]
    accuracy = dict(zip(found["classes"], found["per_class"], strict=True))
    weakest = sorted(accuracy, key=lambda name: accuracy[name])[:2]
    judged = claim_row(
        f"weakest two classes: {', '.join(weakest)}",
        "",
        None,
        [accuracy[name] * 100 for name in weakest],
        set(weakest) == {"cat", "dog"},
        "cat and dog are the weakest two",
    )
    shown = [
        shown_row(name, "%", PAPER.get(name), [100 * value], OTHER, _percent(interval))
        for (name, value), interval in zip(accuracy.items(), found["interval"], strict=True)
    ]
    whole = [
        shown_row("accuracy", "%", 84.9, [100 * found["accuracy"]], OTHER),
        shown_row("σ", "pp", 8.57, [100 * found["sigma"]], OTHER),
    ]
    return [*shown, *whole, judged]


def _percent(interval: Sequence[float]) -> tuple[float, float]:
    return 100 * interval[0], 100 * interval[1]


ITEM = Item("baseline", ("cifar10",), measure, rows, splits=1)
