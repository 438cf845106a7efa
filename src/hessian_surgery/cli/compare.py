"""`hessian-surgery compare`: compare the operation with simpler methods."""

import copy
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from hessian_surgery.baselines.model_edits import apply_edits
from hessian_surgery.baselines.outputs import load_logits
from hessian_surgery.baselines.posthoc import FROM_LOGITS
from hessian_surgery.cli.compare_options import CompareOptions
from hessian_surgery.cli.configs import choose_config, refuse_unused
from hessian_surgery.cli.folders import Output, make_folder, writing
from hessian_surgery.cli.inputs import OpenedModel, choose_device, digits_net, open_model, recorded_options
from hessian_surgery.cli.output import notes, print_json, print_notes, results
from hessian_surgery.cli.tables import print_fronts, print_seconds
from hessian_surgery.comparison.advice import Advice, advise
from hessian_surgery.comparison.compare import compare as compare_model
from hessian_surgery.comparison.compare import compare_logits, open_compared
from hessian_surgery.comparison.entries import DEFAULT, OPERATIONS
from hessian_surgery.comparison.expected import expected_comparison
from hessian_surgery.comparison.figure import draw_fronts
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.protocol import BUDGETS, Protocol
from hessian_surgery.comparison.saved_fronts import KEPT, LAST, fronts_content, write_fronts
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import join_sets
from hessian_surgery.errors import InputError
from hessian_surgery.operation.config import OperationConfig, as_surgery
from hessian_surgery.operation.progress import ShownProgress
from hessian_surgery.paper.config import LoopConfig
from hessian_surgery.parse_numbers import parse_amounts
from hessian_surgery.report.figure_files import save_figures
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.weights.checkpoint import stored_state
from hessian_surgery.weights.patch import patch_of

PATCH = "patch.safetensors"
OUTPUT = Output("comparison", (LAST,), kept=KEPT)


def compare(options: CompareOptions) -> None:
    """Compare the operation with simpler methods at equal accuracy, and advise which to use."""
    started = time.perf_counter()
    out = options.out
    if options.logits is not None and (options.model or options.checkpoint or options.data):
        raise InputError(
            f"logits: got {options.logits}, which replaces model and data; leave out --model, --checkpoint and --data"
        )
    protocol = choose_protocol(options)
    if options.dry_run:
        show_seconds(options, protocol)
        return
    if out is not None:
        OUTPUT.check(out)
    make_folder(options.figures, "figures")
    with writing(out, OUTPUT) if out else nullcontext():
        try:
            fronts, opened = _compare(options, protocol)
        except KeyboardInterrupt as stop:
            stop.args = (f"interrupted; the same command goes on in {out}",) if out else ()
            raise
        content = fronts_content(fronts, recorded_options(options))
        content |= {"seconds": time.perf_counter() - started}
        content["hashes"] |= opened.hashes if opened else {}
        if out is not None:
            (out / PATCH).unlink(missing_ok=True)  # a run that was killed may have advised another method
            patched = write_advised(out, fronts, opened, advise(fronts)) if opened else "no patch: there is no model"
            write_fronts(out, fronts, content)
            print_notes((patched, f"folder: {out}", f"report: {out / PAGE}"))
    if options.as_json:
        print_json(content)
    else:
        print_fronts(results(), fronts)
    if options.figures:
        save_figures(options.figures, {"front": draw_fronts(fronts)})


def show_seconds(options: CompareOptions, protocol: Protocol) -> None:
    """Show what each stage of the comparison would take, from a short trial of its passes."""
    if options.logits is not None:
        raise InputError(f"logits: got {options.logits}, from which little has to be computed; leave out --dry-run")
    config = _choose(options)
    opened, images = open_with_images(options)
    model = open_compared(opened.model, images, opened.parts.training, config)
    splits = protocol.make_splits(images)
    with ShownProgress(notes()) as bar:
        stages = expected_comparison(model, protocol, splits, as_surgery(config), partial(bar.stage, "trial"))
    if options.as_json:
        rows = [{"name": stage.name, "seconds": stage.seconds} for stage in stages]
        print_json({"stages": rows, "seconds": sum(stage.seconds for stage in stages)})
    else:
        print_seconds(results(), stages)
        print_notes(opened.remarks)


def _choose(options: CompareOptions) -> OperationConfig:
    """The configuration; a loop's preset refuses the options that it has no use for."""
    config = choose_config(options)
    if isinstance(config, LoopConfig):
        refuse_unused(options, config)
    return config


def _compare(options: CompareOptions, protocol: Protocol) -> tuple[Fronts, OpenedModel | None]:
    """Run the comparison; return it with the model, or None if there are only logits."""
    config = _choose(options)
    if options.logits is not None:
        outputs = load_logits(options.logits)
        with ShownProgress(notes()) as observer:
            return compare_logits(outputs, protocol, observer, as_surgery(config)), None
    opened, images = open_with_images(options)
    with ShownProgress(notes(), opened.remarks) as observer:
        fronts = compare_model(
            opened.model,
            data=images,
            training_data=opened.parts.training,
            protocol=protocol,
            config=config,
            folder=options.out,
            observer=observer,
        )
    return fronts, opened


def open_with_images(options: CompareOptions) -> tuple[OpenedModel, LabelledSet]:
    """Open the model and join its labelled images; digits without a model mean the demo's net."""
    if options.model is None:
        if options.data != "digits" or options.checkpoint is not None:
            raise InputError("model: missing; give --model and --checkpoint, or only --data digits for the demo's net")
        device = choose_device(options.device)
        net, parts = digits_net(options.seed)
        opened = OpenedModel(net.to(device), parts, None, {"data": "digits"})
    else:
        opened = open_model(options)
    return opened, join_sets(opened.parts.calibration, opened.parts.heldout)


def choose_protocol(options: CompareOptions) -> Protocol:
    """Return the protocol that the options ask for."""
    methods = FROM_LOGITS if options.logits else DEFAULT if options.preset == "default" else (*DEFAULT, "loop")
    if options.methods is not None:
        methods = tuple(name.strip() for name in options.methods.split(","))
    budgets = BUDGETS if options.budgets is None else parse_amounts("budgets", options.budgets)
    return Protocol(methods, options.splits, budgets, options.epochs, options.seed, options.part)  # type: ignore[arg-type]


def _why_none(method: str) -> str:
    """Why the advised method leaves no patch."""
    if method == "nothing":
        return "the model is best left as it is"
    if method in OPERATIONS:
        return (
            f"hessian-surgery operate --directions {OPERATIONS[method]} makes it, with the same model and data "
            "and the same options: budget, target and limits"
        )
    return f"{method} changes more than the head's logits"


def write_advised(folder: Path, fronts: Fronts, opened: OpenedModel, advice: Advice) -> str:
    """Write a patch of the advised method, as fitted on the first split; return a note on it."""
    edits = fronts.edits.get(advice.method)
    if not edits:
        return f"no patch: {_why_none(advice.method)}"
    source = opened.checkpoint
    module = copy.deepcopy(opened.model)
    dtypes = source.dtypes if source else None
    try:
        apply_edits(module, fronts.outputs.head, edits)
    except InputError as reason:
        return f"no patch of {advice.method}: {reason}"
    patch = patch_of(source, stored_state(opened.model, dtypes), stored_state(module, dtypes))
    patch.save(folder / PATCH)
    return f"{PATCH}: {advice.method}, as fitted on the first split"
