"""`compare` as a command: the model and all its images, progress, the table, and the files."""

import copy
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hessian_surgery.baselines.edits import apply_edits
from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import FROM_LOGITS, POSTHOC
from hessian_surgery.baselines.subject import load_logits
from hessian_surgery.cli.inputs import (
    Opened,
    check_comparison_folder,
    choose_config,
    choose_device,
    digits_net,
    make_folder,
    numbers,
    open_given,
    recorded_options,
)
from hessian_surgery.cli.output import notes, print_json, print_notes
from hessian_surgery.cli.progress import BarObserver
from hessian_surgery.comparison.advice import Advice, advise
from hessian_surgery.comparison.describing import table, to_markdown
from hessian_surgery.comparison.drawing import draw
from hessian_surgery.comparison.entries import DEFAULT, WHOLE
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.harness import compare, compare_logits
from hessian_surgery.comparison.protocol import BUDGETS, Protocol
from hessian_surgery.data.labelled import LabelledSet, together
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed, write_json, write_text
from hessian_surgery.operation.operate import environment, stored_state
from hessian_surgery.report.comparison_page import comparison_page
from hessian_surgery.report.figure_files import save_figures
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.weights.patch import make_patch
from hessian_surgery.weights.tensorfile import save_tensors

METHODS_HELP = f"Some of {', '.join((*POSTHOC, *WHOLE, *FINETUNES))}, or chains such as focal+surgery, by commas."


def compare_given(given: dict[str, Any]) -> None:
    """Compare what a command's options ask for, write the files and show the table."""
    started, out = time.perf_counter(), given["out"]
    if given["logits"] is not None and (given["model"] or given["checkpoint"] or given["data"]):
        raise InputError("logits: they stand in for a model and its data; leave out --model, --checkpoint and --data")
    if out is not None:
        check_comparison_folder(out)
    protocol = choose_protocol(given, FROM_LOGITS if given["logits"] else DEFAULT)
    make_folder(given["figures"], "figures")
    with claimed(out) if out else nullcontext():
        try:
            fronts, opened = _compare(given, protocol)
        except KeyboardInterrupt:
            print_notes(["interrupted" + (f"; the same command goes on with the trainings in {out}" if out else "")])
            raise
        content = fronts_dict(fronts, protocol, recorded_options(given), time.perf_counter() - started)
        content["hashes"] = opened.hashes if opened else {}
        if out is not None:
            write_fronts(out, fronts, content)
            patched = write_advised(out, fronts, opened, advise(fronts)) if opened else "no patch: there is no model"
            print_notes((patched, f"folder: {out}", f"report: {out / PAGE}"))
    if given["as_json"]:
        print_json(content)
    else:
        print_fronts(Console(), fronts)
    if given["figures"]:
        save_figures(given["figures"], {"front": draw(fronts)})


def _compare(given: dict[str, Any], protocol: Protocol) -> tuple[Fronts, Opened | None]:
    """The comparison, and the model unless there are only logits."""
    if given["logits"] is not None:
        subject = load_logits(given["logits"])
        with BarObserver(notes()) as observer:
            return compare_logits(subject, protocol, observer), None
    config = choose_config(given)
    opened, images = open_patient(given)
    print_notes(opened.remarks)
    with BarObserver(notes()) as observer:
        fronts = compare(
            opened.model,
            data=images,
            training_data=opened.parts.training,
            protocol=protocol,
            config=config,
            folder=given["out"],
            observer=observer,
        )
    return fronts, opened


def open_patient(given: dict[str, Any]) -> tuple[Opened, LabelledSet]:
    """The model and all its labelled images; for digits without a model the demo's net is trained."""
    if given["model"] is None:
        if given["data"] != "digits" or given["checkpoint"] is not None:
            raise InputError("model: missing; give --model and --checkpoint, or --data digits alone for the demo's net")
        device = choose_device(given["device"])
        net, parts = digits_net(given["seed"])
        opened = Opened(net.to(device), parts, None, {"data": "digits"})
    else:
        opened = open_given(given)
    return opened, together(opened.parts.calibration, opened.parts.heldout)


def choose_protocol(given: dict[str, Any], methods: tuple[str, ...]) -> Protocol:
    """The protocol that a command's options ask for; budgets come in percentage points."""
    if given["methods"] is not None:
        methods = tuple(name.strip() for name in given["methods"].split(","))
    points = None if given["budgets"] is None else numbers("budgets", given["budgets"])
    if points is not None and not all(0 <= point < 100 for point in points):
        raise InputError(f"budgets: got {given['budgets']}; give percentage points of accuracy from 0 to below 100")
    budgets = BUDGETS if points is None else tuple(point / 100 for point in points)
    return Protocol(methods, given["splits"], budgets, given["epochs"], given["seed"], given["part"])


def fronts_dict(fronts: Fronts, protocol: Protocol, given: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What `compare --json` prints: fractions, not percent."""
    return {
        "schema_version": 1,
        **fronts.as_dict(),
        "seed": protocol.seed,
        "part": protocol.part,
        "budgets": list(protocol.budgets),
        "advice": vars(advise(fronts)),
        "inputs": given,
        "seconds": seconds,
        "environment": environment(fronts.subject.logits.device),
    }


def print_fronts(console: Console, fronts: Fronts) -> None:
    """The table and the advice."""
    shown = Table(box=None, pad_edge=False)
    base = {name: 100 * value for name, value in fronts.base.items()}
    console.print(
        f"As it is, on held-out halves: accuracy {base['accuracy']:.2f} %, σ {base['sigma']:.2f} pp, worst class "
        f"{base['worst']:.1f} %. Budgets hold on the halves that were fitted to; all in percentage points.\n",
        highlight=False,
    )
    for title in ("method", "budget", "Δ acc", "σ", "worst", "σ against class bias"):
        shown.add_column(title, justify="left" if title in ("method", "σ against class bias") else "right")
    for method, budget, change, sigma, worst, _, against in table(fronts):
        shown.add_row(method, budget, change, sigma, worst, escape(against))
    console.print(shown, highlight=False)
    console.print(f"\n{advise(fronts).sentence}", highlight=False, markup=False)


def write_fronts(folder: Path, fronts: Fronts, content: dict[str, Any]) -> None:
    """Write the table, the figure, the page, the logits, every prediction and, last, `compare.json`."""
    save_figures(folder, {"front": draw(fronts)})
    write_text(folder / PAGE, comparison_page(content))
    write_text(folder / "compare.md", to_markdown(fronts))
    fronts.subject.save_logits(folder / "logits.safetensors")
    save_tensors(folder / "predictions.safetensors", {**fronts.predicted, "labels": fronts.subject.labels})
    write_json(folder / "compare.json", content)


def write_advised(folder: Path, fronts: Fronts, opened: Opened, advice: Advice) -> str:
    """Write the patch of the advised method, as fitted on the first split; says what was done."""
    edits = fronts.edits.get(advice.method)
    if not edits:
        return f"no patch: {advice.method} is no edit of this checkpoint"
    source, module = opened.checkpoint, copy.deepcopy(opened.model)
    dtypes = source.dtypes if source else None
    try:
        apply_edits(module, fronts.subject.head, edits)
    except InputError as reason:
        return f"no patch of {advice.method}: {reason}"
    file, header = (source.sha256, source.header) if source else ("", "")
    patch = make_patch(stored_state(opened.model, dtypes), stored_state(module, dtypes), file, header)
    patch.save(folder / "patch.safetensors")
    return f"patch.safetensors: {advice.method}, as fitted on the first split"
