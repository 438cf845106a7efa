"""Table 9: training after surgery, with and without projection off the spikes."""

from collections.abc import Sequence

from hessian_surgery.baselines.finetune import choose_finetune
from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import predict
from hessian_surgery.paper.presets import paper_config
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.loop_runs import loop_run, loop_weights
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench

# Table 9, in percent; surgery is the γ-decay run of table 4.
PAPER = {
    "after surgery": {"cat": 76.1, "dog": 74.9, "accuracy": 84.7, "sigma": 5.52},
    "bulk": {"cat": 71.0, "dog": 71.5, "accuracy": 85.1, "sigma": 7.53},
    "finetune": {"cat": 69.2, "dog": 68.2, "accuracy": 84.9, "sigma": 8.64},
}
LABELS = {"after surgery": "after surgery", "bulk": "then projected training", "finetune": "then plain training"}
OTHER = "another network than the paper's"


def measure(bench: Workbench, split: int) -> Measured:
    """Train on from the loop's end point, once: fine-tunes are not made for every split."""
    config = paper_config("cifar10", control="gamma")
    surgery = loop_run(bench, split, config)
    weights = loop_weights(bench, split, config)
    heldout = bench.parts(split).heldout
    found = {"classes": surgery["classes"], "before": surgery["before"], "after surgery": surgery["after"]}
    for name in ("bulk", "finetune"):
        module = bench.model()
        training = choose_finetune(name, bench.parts(split).training)
        module.load_state_dict(bench.finetuned(f"surgery-{name}-split-{split}", weights, training))
        predicted = predict(as_classifier(module), heldout)
        found[name] = compute_metrics(predicted, heldout.labels, len(heldout.classes)).as_dict()
    return found


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Accuracies and σ; both trainings undo surgery, the projected one less."""
    runs = measured["cifar10"]
    found = []
    for name, paper in PAPER.items():
        label = LABELS[name]
        for key, unit in (("accuracy", "%"), ("sigma", "pp")):
            shown = "σ" if key == "sigma" else key
            ours = [100 * run[name][key] for run in runs]
            found.append(shown_row(f"{label}: {shown}", unit, paper[key], ours, OTHER))
        for own in ("cat", "dog"):
            places = [run["classes"].index(own) for run in runs if own in run["classes"]]
            ours = [100 * run[name]["per_class"][place] for run, place in zip(runs, places, strict=False)]
            found += [shown_row(f"{label}: {own}", "%", paper[own], ours, OTHER)] if ours else []
    return [*found, *_claims(runs)]


def _claims(runs: Sequence[Measured]) -> list[Row]:
    def gap(one: str, other: str, key: str = "sigma") -> list[float]:
        return [100 * (run[one][key] - run[other][key]) for run in runs]

    def above(label: str, paper: float, ours: list[float]) -> Row:
        return claim_row(label, "pp", paper, ours, min(ours) > 0, "above 0 on every split")

    return [
        above("projected training raises σ again, by", 2.01, gap("bulk", "after surgery")),
        above("plain training raises σ again, by", 3.12, gap("finetune", "after surgery")),
        above("plain training raises σ by more than projected training, by", 1.11, gap("finetune", "bulk")),
        above("projected training raises accuracy, by", 0.4, gap("bulk", "after surgery", "accuracy")),
        above("plain training raises accuracy, by", 0.2, gap("finetune", "after surgery", "accuracy")),
    ]


ITEM = Item("bulk-finetune", ("cifar10",), measure, rows, splits=1, trains=True)
