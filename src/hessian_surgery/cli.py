"""The command line: parse, call, print. Exit 0 done, 2 bad input (one clear line), 1 anything else."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from hessian_surgery import __version__
from hessian_surgery.console.inputs import (
    DEMO_MARK,
    InputOptions,
    Opened,
    check_demo_folder,
    check_folder,
    choose_config,
    open_inputs,
    whole_numbers,
)
from hessian_surgery.console.laboratory import find_study, run_study, study_options, write_study
from hessian_surgery.console.progress import TerminalObserver
from hessian_surgery.console.tables import describe_choices, print_cost, print_diagnosis, print_findings
from hessian_surgery.data.sources import SPECS, open_data
from hessian_surgery.errors import InputError
from hessian_surgery.files import claimed, write_text
from hessian_surgery.models.checkpoint import read_checkpoint
from hessian_surgery.models.patching import apply_patch, revert_patch
from hessian_surgery.models.small import train_smallnet
from hessian_surgery.report.markdown import to_markdown
from hessian_surgery.surgery.config import SurgeryConfig
from hessian_surgery.surgery.cost import estimate_cost
from hessian_surgery.surgery.diagnosis import diagnose as run_diagnosis
from hessian_surgery.surgery.operate import operate as run_operation
from hessian_surgery.surgery.outcome import Outcome, load_findings
from hessian_surgery.tensorfile import save_tensors

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Option(help="resnet18, resnet34, resnet50, smallnet, or package.module:factory.")]
CheckpointFile = Annotated[Path | None, typer.Option("--checkpoint", help="Weights: .safetensors, .pt or .pth.")]
DataSource = Annotated[str | None, typer.Option("--data", help=f"{SPECS}.")]
HessianData = Annotated[str | None, typer.Option(help="Training images for the Hessian, instead of --data's.")]
SensitivityData = Annotated[
    str | None, typer.Option(help="Images to decide on, instead of half of --data's test part.")
]
HeldoutData = Annotated[str | None, typer.Option(help="Images to report on, instead of half of --data's test part.")]
Preset = Annotated[
    str, typer.Option(help="default, paper, paper:cifar100, paper:isic, paper:isic/focal, paper:isic/class-balanced.")
]
Out = Annotated[Path, typer.Option(help="Run folder to write; it must not hold another run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out, if there is one.")]
Seed = Annotated[int, typer.Option(help="Fixes every random draw.", min=0)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; by default cuda where there is one.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")]
ImageSize = Annotated[int | None, typer.Option(help="Resize images to this side in pixels.", min=1)]
Mean = Annotated[str | None, typer.Option(help="Channel means, such as 0.49,0.48,0.45; else the checkpoint's.")]
Std = Annotated[str | None, typer.Option(help="Channel standard deviations; else the checkpoint's.")]
Iterations = Annotated[int | None, typer.Option(help="T, rounds of the loop, in each phase.")]
Phases = Annotated[int | None, typer.Option(help="Sequential deflated surgery: each phase takes the next K spikes.")]
Basis = Annotated[str | None, typer.Option(help="Where the Lanczos basis is: auto, device, host or disk (TMPDIR).")]
Precision = Annotated[str | None, typer.Option(help="How it is kept: auto, full or bfloat16.")]
BasisMemory = Annotated[float | None, typer.Option(help="GB that it may take; fewer vectors are kept, more restarts.")]
Loss = Annotated[str | None, typer.Option(help="cross-entropy, focal or class-balanced.")]
Tolerance = Annotated[float | None, typer.Option(help="Relative residual at which a spike has converged.")]
Epsilon = Annotated[float | None, typer.Option(help="Amplitude of the probe.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder for the JSON and the figure.")]
Spikes = Annotated[int | None, typer.Option(help="K; by default one fewer than the classes.")]
LanczosSteps = Annotated[int | None, typer.Option(help="m, exactly; by default until the spikes converge.")]
HessianSamples = Annotated[int | None, typer.Option(help="n, images in the Hessian batch.")]
MicroBatch = Annotated[int | None, typer.Option(help="Stream the Hessian batch in parts of this size: less memory.")]
BatchSize = Annotated[int | None, typer.Option(help="Images per forward pass.")]
Parameters = Annotated[str | None, typer.Option(help="Glob over the weights that may move, such as 'layer4.*'.")]
Amplitude = Annotated[float | None, typer.Option(help="First step's length; by default from the curvature.")]
Control = Annotated[str | None, typer.Option(help="Amplitude control: adam or gamma.")]
Bound = Annotated[str | None, typer.Option(help="ball, or box (per spike, for eigenvalues far apart).")]
Exponent = Annotated[str | None, typer.Option(help="p of the class-error weights, or auto for the p-rule.")]
Target = Annotated[str | None, typer.Option(help="sigma, or worst (the worst class).")]


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
    """Lift the weak classes of a trained classifier along the spikes of its loss Hessian."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Run folder; an earlier demo there is replaced.")] = Path("runs/demo"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Train a small net on long-tailed, noisy digits and operate on it, in seconds."""
    parts = open_data("digits", seed)
    _notes().print(f"training a small net on {len(parts.hessian)} long-tailed, noisy digits", highlight=False)
    net = train_smallnet(parts.hessian, seed)
    with claimed(out):
        check_demo_folder(out)
        for earlier in ("result.json", "history.jsonl"):
            (out / earlier).unlink(missing_ok=True)
        write_text(out / DEMO_MARK, "Written by hessian-surgery demo; the next demo replaces this folder's contents.\n")
        save_tensors(out / "base.safetensors", net.state_dict())
        opened = Opened(net, parts, read_checkpoint(out / "base.safetensors"), {"data": "digits", "model": "smallnet"})
        outcome = _operate(opened, SurgeryConfig(seed=seed), out, resume=False)
    _show(outcome, out, as_json)


@app.command()
def operate(
    model: Model,
    checkpoint: CheckpointFile = None,
    data: DataSource = None,
    hessian_data: HessianData = None,
    sensitivity_data: SensitivityData = None,
    heldout_data: HeldoutData = None,
    preset: Preset = "default",
    out: Out = Path("runs/operate"),
    resume: Resume = False,
    seed: Seed = 0,
    device: Device = None,
    as_json: Json = False,
    dry_run: DryRun = False,
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    iterations: Iterations = None,
    phases: Phases = None,
    spikes: Spikes = None,
    lanczos_steps: LanczosSteps = None,
    hessian_samples: HessianSamples = None,
    micro_batch: MicroBatch = None,
    basis: Basis = None,
    precision: Precision = None,
    basis_memory: BasisMemory = None,
    loss: Loss = None,
    batch_size: BatchSize = None,
    parameters: Parameters = None,
    amplitude: Amplitude = None,
    control: Control = None,
    bound: Bound = None,
    exponent: Exponent = None,
    target: Target = None,
) -> None:
    """Operate on a trained classifier and write the patched model, the patch and the evidence."""
    given = locals()
    config = _config(given)
    if dry_run:
        _show_cost(_open(given), config, as_json)
        return
    check_folder(out, resume)
    opened = _open(given)
    with claimed(out):
        check_folder(out, resume)
        outcome = _operate(opened, config, out, resume)
    _show(outcome, out, as_json)


@app.command()
def diagnose(
    model: Model,
    checkpoint: CheckpointFile = None,
    data: DataSource = None,
    hessian_data: HessianData = None,
    sensitivity_data: SensitivityData = None,
    heldout_data: HeldoutData = None,
    preset: Preset = "default",
    seed: Seed = 0,
    device: Device = None,
    as_json: Json = False,
    dry_run: DryRun = False,
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    spikes: Spikes = None,
    lanczos_steps: LanczosSteps = None,
    hessian_samples: HessianSamples = None,
    micro_batch: MicroBatch = None,
    basis: Basis = None,
    precision: Precision = None,
    basis_memory: BasisMemory = None,
    loss: Loss = None,
    batch_size: BatchSize = None,
    parameters: Parameters = None,
    epsilon: Epsilon = None,
) -> None:
    """Say whether a classifier is worth operating on; changes and writes nothing."""
    given = locals()
    config = _config(given | {"iterations": 1})
    opened = _open(given)
    if dry_run:
        _show_cost(opened, config, as_json)
        return
    with TerminalObserver(_notes(), 1, opened.remarks) as observer:
        found = run_diagnosis(
            opened.model,
            hessian_data=opened.parts.hessian,
            sensitivity_data=opened.parts.sensitivity,
            config=config,
            epsilon=epsilon,
            observer=observer,
        )
    if as_json:
        _print_json(found.as_dict())
    else:
        print_diagnosis(Console(), found)


@app.command()
def spectrum(
    model: Model,
    checkpoint: CheckpointFile = None,
    data: DataSource = None,
    hessian_data: HessianData = None,
    out: Folder = Path("runs/spectrum"),
    seed: Seed = 0,
    device: Device = None,
    as_json: Json = False,
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    operator: Annotated[str | None, typer.Option(help="hessian or gauss-newton.")] = None,
    spikes: Spikes = None,
    lanczos_steps: LanczosSteps = None,
    tolerance: Tolerance = None,
    density: Annotated[bool, typer.Option(help="The density of all eigenvalues too.")] = True,
    density_steps: Annotated[int | None, typer.Option(help="Lanczos steps per probe of the density.")] = None,
    probes: Annotated[int | None, typer.Option(help="Probes of the density.")] = None,
    hessian_samples: HessianSamples = None,
    micro_batch: MicroBatch = None,
    basis: Basis = None,
    precision: Precision = None,
    basis_memory: BasisMemory = None,
    loss: Loss = None,
    parameters: Parameters = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Write the eigenvectors as well.")] = False,
) -> None:
    """Leading eigenvalues with residuals, and the spectral density, of a classifier's loss curvature."""
    given = locals() | {"sensitivity_data": None, "heldout_data": None}
    options = study_options(given, "operator", "density", "density_steps", "probes")
    result = _study("spectrum", _open(given), options, out, as_json)
    if vectors:
        result.save_vectors(out / "vectors.safetensors")


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="stability, bulk-walk, linearization or effective-rank.")],
    model: Model,
    checkpoint: CheckpointFile = None,
    data: DataSource = None,
    hessian_data: HessianData = None,
    sensitivity_data: SensitivityData = None,
    heldout_data: HeldoutData = None,
    out: Folder = Path("runs/study"),
    seed: Seed = 0,
    device: Device = None,
    as_json: Json = False,
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    spikes: Spikes = None,
    lanczos_steps: LanczosSteps = None,
    tolerance: Tolerance = None,
    hessian_samples: HessianSamples = None,
    micro_batch: MicroBatch = None,
    basis: Basis = None,
    precision: Precision = None,
    basis_memory: BasisMemory = None,
    loss: Loss = None,
    parameters: Parameters = None,
    epsilon: Epsilon = None,
    steps: Annotated[int | None, typer.Option(help="Steps of a walk; the fixed m of stability.")] = None,
    length: Annotated[float | None, typer.Option(help="Length of a walk's step.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Batch sizes of stability, such as 64,128,256.")] = None,
) -> None:
    """Run one of the paper's experiments on a classifier; its weights are left as they were."""
    given = locals() | {"sizes": sizes and whole_numbers("sizes", sizes)}
    find_study(name)
    _study(name, _open(given), study_options(given, "epsilon", "steps", "length", "sizes"), out, as_json)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown instead of a table for the terminal.")] = False,
    as_json: Json = False,
) -> None:
    """Show a finished run, every statistic made again from the answers to each image."""
    findings = load_findings(run)
    if as_json:
        _print_json({"verdict": vars(findings.verdict), "tests": findings.tests.as_dict()})
    elif markdown:
        print(to_markdown(findings), end="")
    else:
        print_findings(Console(), findings)


@app.command()
def apply(
    base: Annotated[Path, typer.Argument(help="The file that the patch was made for.")],
    patch: Annotated[Path, typer.Argument(help="patch.safetensors of a run.")],
    out: Annotated[Path, typer.Option(help="The patched file to write.")],
) -> None:
    """Patch a checkpoint file."""
    apply_patch(base, patch, out)
    _notes().print(f"patched file: {out}", highlight=False)


@app.command()
def revert(
    patched: Annotated[Path, typer.Argument(help="A patched file.")],
    patch: Annotated[Path, typer.Argument(help="patch.safetensors of a run.")],
    out: Annotated[Path, typer.Option(help="The original file to write.")],
) -> None:
    """Get the original checkpoint file back, byte for byte."""
    revert_patch(patched, patch, out)
    _notes().print(f"original file: {out}", highlight=False)


def main() -> None:
    """Run the command line; bad input ends in one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        _notes().print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _config(given: dict[str, Any]) -> SurgeryConfig:
    names = SurgeryConfig.__dataclass_fields__.keys() - {"seed"}
    return choose_config(given["preset"], given["seed"], **{name: given[name] for name in names & given.keys()})


def _open(given: dict[str, Any]) -> Opened:
    names = InputOptions.__dataclass_fields__.keys()
    return open_inputs(InputOptions(**{name: given[name] for name in names}), given["seed"])


def _operate(opened: Opened, config: SurgeryConfig, folder: Path, resume: bool) -> Outcome:
    checkpoint, parts = opened.checkpoint, opened.parts
    sizes = f"deciding on {len(parts.sensitivity)} sensitivity images, reporting on {len(parts.heldout)} held-out ones"
    try:
        with TerminalObserver(_notes(), config.rounds, (*opened.remarks, sizes)) as terminal:
            outcome = run_operation(
                opened.model,
                hessian_data=parts.hessian,
                sensitivity_data=parts.sensitivity,
                heldout_data=parts.heldout,
                config=config,
                stored_as=checkpoint.dtypes if checkpoint else None,
                folder=folder,
                resume=resume,
                observer=terminal,
            )
    except KeyboardInterrupt:
        _notes().print(
            "interrupted; the same command with --resume goes on from the last finished iteration", soft_wrap=True
        )
        raise
    outcome.save(folder, checkpoint, opened.given)
    return outcome


def _study(name: str, opened: Opened, options: dict[str, Any], folder: Path, as_json: bool) -> Any:
    for remark in opened.remarks:
        _notes().print(remark, highlight=False, markup=False, soft_wrap=True)
    result = run_study(name, opened, options, _notes())
    content = write_study(name, result, opened, options["seed"], folder)
    if as_json:
        _print_json(content)
    else:
        print(find_study(name).module.describe(result))
    _notes().print(f"{name}.json and {name}.svg: {folder}", highlight=False)
    return result


def _show(outcome: Outcome, folder: Path, as_json: bool) -> None:
    if as_json:
        _print_json(outcome.as_dict())
    else:
        print_findings(Console(), outcome.findings)
        _notes().print(describe_choices(outcome.choices), highlight=False)
    _notes().print(f"run folder: {folder}", highlight=False)


def _show_cost(opened: Opened, config: SurgeryConfig, as_json: bool) -> None:
    cost = estimate_cost(opened.classifier, opened.parts.hessian, opened.parts.sensitivity, config)
    if as_json:
        _print_json(cost.as_dict())
    else:
        print_cost(Console(), cost)
        for remark in opened.remarks:
            _notes().print(remark, highlight=False, markup=False, soft_wrap=True)


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, ensure_ascii=False))


def _notes() -> Console:
    """Where progress and remarks go: stderr, so that stdout holds results only."""
    return Console(stderr=True)
