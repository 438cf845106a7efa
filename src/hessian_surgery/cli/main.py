"""The command line: parse, call, print. Exit 0 done, 2 bad input (one clear line), 3 not accepted, 1 other."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hessian_surgery import __version__
from hessian_surgery.cli import options as option
from hessian_surgery.cli.comparing import METHODS_HELP, compare_given
from hessian_surgery.cli.inputs import (
    DEMO_MARK,
    Opened,
    check_demo_folder,
    digits_net,
    open_given,
    whole_numbers,
)
from hessian_surgery.cli.laboratory import conduct, find_study, study_options
from hessian_surgery.cli.operating import diagnose_given, operate_given, operate_on, show_outcome
from hessian_surgery.cli.output import notes
from hessian_surgery.cli.predicting import predict_given
from hessian_surgery.cli.reporting import report_given
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed, write_text
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.report.card import model_card
from hessian_surgery.report.run import load_run
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.studies.predictors import METHOD
from hessian_surgery.studies.zoo import RECIPES
from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.patching import apply_patch, revert_patch
from hessian_surgery.weights.tensorfile import save_tensors

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"hessian-surgery {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Lift the weak classes of a trained classifier by a small step in weight space, and protect the strong ones."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Run folder; an earlier demo there is replaced.")] = Path("runs/demo"),
    seed: option.Seed = 0,
    as_json: option.Json = False,
) -> None:
    """Train a small net on long-tailed, noisy digits and operate on it, in seconds."""
    net, parts = digits_net(seed)
    with claimed(out):
        check_demo_folder(out)
        for earlier in ("result.json", "history.jsonl", PAGE):
            (out / earlier).unlink(missing_ok=True)
        write_text(out / DEMO_MARK, "Written by hessian-surgery demo; the next demo replaces this folder's contents.\n")
        save_tensors(out / "base.safetensors", net.state_dict())
        opened = Opened(net, parts, read_checkpoint(out / "base.safetensors"), {})
        inputs = {"model": "smallnet", "checkpoint": f"{out / 'base.safetensors'}", "data": "digits", "out": f"{out}"}
        outcome = operate_on(opened, SurgeryConfig(seed=seed), out, inputs | {"seed": f"{seed}"})
    show_outcome(outcome, out, as_json)


@app.command()
def operate(
    model: option.Model,
    checkpoint: option.CheckpointFile = None,
    data: option.DataSource = None,
    training_data: option.TrainingData = None,
    calibration_data: option.CalibrationData = None,
    heldout_data: option.HeldoutData = None,
    preset: option.Preset = "default",
    out: option.Out = Path("runs/operate"),
    resume: option.Resume = False,
    seed: option.Seed = 0,
    device: option.Device = None,
    as_json: option.Json = False,
    dry_run: option.DryRun = False,
    image_size: option.ImageSize = None,
    mean: option.Mean = None,
    std: option.Std = None,
    iterations: option.Iterations = None,
    phases: option.Phases = None,
    spikes: option.Spikes = None,
    lanczos_steps: option.LanczosSteps = None,
    hessian_samples: option.HessianSamples = None,
    micro_batch: option.MicroBatch = None,
    basis: option.Basis = None,
    precision: option.Precision = None,
    basis_memory: option.BasisMemory = None,
    loss: option.Loss = None,
    batch_size: option.BatchSize = None,
    parameters: option.Parameters = None,
    sensitivity: option.Sensitivity = None,
    amplitude: option.Amplitude = None,
    control: option.Control = None,
    bound: option.Bound = None,
    exponent: option.Exponent = None,
    target: option.Target = None,
    protect: option.Protect = None,
    max_drop: option.MaxDrop = None,
    budget: option.Budget = None,
    directions: option.Directions = None,
    accept: option.Accept = None,
    figures: option.Figures = None,
) -> None:
    """Operate on a trained classifier and write the patched model, the patch and the evidence."""
    operate_given(locals())


@app.command()
def diagnose(
    model: option.Model,
    checkpoint: option.CheckpointFile = None,
    data: option.DataSource = None,
    training_data: option.TrainingData = None,
    calibration_data: option.CalibrationData = None,
    heldout_data: option.HeldoutData = None,
    preset: option.Preset = "default",
    seed: option.Seed = 0,
    device: option.Device = None,
    as_json: option.Json = False,
    dry_run: option.DryRun = False,
    image_size: option.ImageSize = None,
    mean: option.Mean = None,
    std: option.Std = None,
    spikes: option.Spikes = None,
    lanczos_steps: option.LanczosSteps = None,
    hessian_samples: option.HessianSamples = None,
    micro_batch: option.MicroBatch = None,
    basis: option.Basis = None,
    precision: option.Precision = None,
    basis_memory: option.BasisMemory = None,
    loss: option.Loss = None,
    batch_size: option.BatchSize = None,
    parameters: option.Parameters = None,
    sensitivity: option.Sensitivity = None,
    epsilon: option.Epsilon = None,
    out: Annotated[Path | None, typer.Option(help="Keep report.html and diagnosis.json here.")] = None,
    figures: option.Figures = None,
) -> None:
    """Say whether there is anything to gain by operating on a classifier; changes nothing."""
    diagnose_given(locals())


@app.command()
def spectrum(
    model: option.Model,
    checkpoint: option.CheckpointFile = None,
    data: option.DataSource = None,
    training_data: option.TrainingData = None,
    out: option.Folder = Path("runs/spectrum"),
    seed: option.Seed = 0,
    device: option.Device = None,
    as_json: option.Json = False,
    image_size: option.ImageSize = None,
    mean: option.Mean = None,
    std: option.Std = None,
    operator: Annotated[str | None, typer.Option(help="hessian or gauss-newton.")] = None,
    spikes: option.Spikes = None,
    lanczos_steps: option.LanczosSteps = None,
    tolerance: option.Tolerance = None,
    density: Annotated[bool, typer.Option(help="The density of all eigenvalues too.")] = True,
    density_steps: Annotated[int | None, typer.Option(help="Lanczos steps per probe of the density.")] = None,
    probes: Annotated[int | None, typer.Option(help="Probes of the density.")] = None,
    hessian_samples: option.HessianSamples = None,
    micro_batch: option.MicroBatch = None,
    basis: option.Basis = None,
    precision: option.Precision = None,
    basis_memory: option.BasisMemory = None,
    loss: option.Loss = None,
    parameters: option.Parameters = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Write the eigenvectors as well.")] = False,
) -> None:
    """Leading eigenvalues with residuals, and the spectral density, of a classifier's loss curvature."""
    given = locals() | {"calibration_data": None, "heldout_data": None}
    options = study_options(given, "operator", "density", "density_steps", "probes")
    result = conduct("spectrum", open_given(given, find_study("spectrum").needs), options, out, as_json)
    if vectors:
        result.save_vectors(out / "vectors.safetensors")


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="stability, bulk-walk, linearization or effective-rank.")],
    model: option.Model,
    checkpoint: option.CheckpointFile = None,
    data: option.DataSource = None,
    training_data: option.TrainingData = None,
    calibration_data: option.CalibrationData = None,
    heldout_data: option.HeldoutData = None,
    out: option.Folder = Path("runs/study"),
    seed: option.Seed = 0,
    device: option.Device = None,
    as_json: option.Json = False,
    image_size: option.ImageSize = None,
    mean: option.Mean = None,
    std: option.Std = None,
    spikes: option.Spikes = None,
    lanczos_steps: option.LanczosSteps = None,
    tolerance: option.Tolerance = None,
    hessian_samples: option.HessianSamples = None,
    micro_batch: option.MicroBatch = None,
    basis: option.Basis = None,
    precision: option.Precision = None,
    basis_memory: option.BasisMemory = None,
    loss: option.Loss = None,
    parameters: option.Parameters = None,
    epsilon: option.Epsilon = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a walk; the fixed m of stability.")] = None,
    length: Annotated[float | None, typer.Option(help="Length of a walk's step.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Batch sizes of stability, such as 64,128,256.")] = None,
) -> None:
    """Run one of the paper's experiments on a classifier; its weights are left as they were."""
    given = locals() | {"sizes": sizes and whole_numbers("sizes", sizes)}
    opened = open_given(given, find_study(name).needs)
    conduct(name, opened, study_options(given, "epsilon", "steps", "length", "sizes"), out, as_json)


@app.command()
def compare(
    model: option.OptionalModel = None,
    checkpoint: option.CheckpointFile = None,
    data: option.DataSource = None,
    training_data: option.TrainingData = None,
    calibration_data: option.CalibrationData = None,
    heldout_data: option.HeldoutData = None,
    logits: Annotated[Path | None, typer.Option(help="Cached logits instead of a model: .safetensors.")] = None,
    methods: Annotated[str | None, typer.Option(help=METHODS_HELP)] = None,
    splits: Annotated[int, typer.Option(help="How often the images are halved anew.")] = 5,
    budgets: Annotated[str | None, typer.Option(help="Accuracy to give up, in pp; 0,0.2,0.5,1 by default.")] = None,
    epochs: Annotated[int, typer.Option(help="Of each training that a method begins or ends with.")] = 15,
    part: Annotated[
        str,
        typer.Option(help="all; development, inside one fixed half; final, judged on the other half."),
    ] = "all",
    out: Annotated[Path | None, typer.Option(help="Keep table, figure, logits, predictions and patch here.")] = None,
    preset: option.Preset = "default",
    seed: option.Seed = 0,
    device: option.Device = None,
    as_json: option.Json = False,
    image_size: option.ImageSize = None,
    mean: option.Mean = None,
    std: option.Std = None,
    spikes: option.Spikes = None,
    lanczos_steps: option.LanczosSteps = None,
    hessian_samples: option.HessianSamples = None,
    micro_batch: option.MicroBatch = None,
    basis: option.Basis = None,
    precision: option.Precision = None,
    basis_memory: option.BasisMemory = None,
    loss: option.Loss = None,
    batch_size: option.BatchSize = None,
    parameters: option.Parameters = None,
    figures: option.Figures = None,
) -> None:
    """Put surgery and its rivals on one front, at equal accuracy with error bars, and say which to use."""
    compare_given(locals())


@app.command()
def predictors(
    model: Annotated[str | None, typer.Option("--model", help="One of your own instead of the zoo.")] = None,
    checkpoint: option.CheckpointFile = None,
    data: Annotated[str | None, typer.Option(help="Of the model, or to train the zoo on; digits by default.")] = None,
    diagnosis: Annotated[list[Path] | None, typer.Option(help="What diagnose --json printed of a model.")] = None,
    comparison: Annotated[list[Path] | None, typer.Option(help="What compare --json printed of it.")] = None,
    earlier: Annotated[list[Path] | None, typer.Option("--with", help="A predictors.json of other models.")] = None,
    method: Annotated[str, typer.Option(help="Whose gain: an entry of compare.")] = METHOD,
    nets: Annotated[int, typer.Option(help="How many of the zoo's nets to train; 0 for none.")] = len(RECIPES),
    per_class: Annotated[int | None, typer.Option(help="At most so many images of a class.", min=2)] = None,
    splits: Annotated[int, typer.Option(help="How often the images are halved anew.")] = 5,
    out: option.Folder = Path("runs/predictors"),
    seed: option.Seed = 0,
    device: option.Device = None,
    as_json: option.Json = False,
    image_size: option.ImageSize = None,
    mean: option.Mean = None,
    std: option.Std = None,
    loss: option.Loss = None,
) -> None:
    """Hold what diagnose finds against the gain that compare finds, over many models."""
    predict_given(locals())


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of a table for the terminal.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Write report.html again.")] = False,
    comparison: Annotated[
        Path | None, typer.Option("--compare", help="With --html: a comparison's folder, whose front is shown as well.")
    ] = None,
    figures: option.Figures = None,
    as_json: option.Json = False,
) -> None:
    """Show a finished run, every statistic made again from the answers to each image."""
    report_given(locals())


@app.command()
def card(run: Annotated[Path, typer.Argument(help="A finished run's folder.")]) -> None:
    """Print a model card for the patched model, in Hugging Face's format."""
    print(model_card(load_run(run)), end="")


@app.command()
def apply(
    base: Annotated[Path, typer.Argument(help="The file that the patch was made for.")],
    patch: Annotated[Path, typer.Argument(help="patch.safetensors of a run.")],
    out: Annotated[Path, typer.Option(help="The patched file to write.")],
) -> None:
    """Patch a checkpoint file."""
    apply_patch(base, patch, out)
    notes().print(f"patched file: {out}", highlight=False)


@app.command()
def revert(
    patched: Annotated[Path, typer.Argument(help="A patched file.")],
    patch: Annotated[Path, typer.Argument(help="patch.safetensors of a run.")],
    out: Annotated[Path, typer.Option(help="The original file to write.")],
) -> None:
    """Get the original checkpoint file back, byte for byte."""
    revert_patch(patched, patch, out)
    notes().print(f"original file: {out}", highlight=False)


def main() -> None:
    """Run the command line; bad input ends in one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        notes().print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
