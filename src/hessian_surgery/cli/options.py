"""The options that several commands share: their types and what their help says."""

from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.data.sources import SPECS

Model = Annotated[str, typer.Option(help="resnet18, resnet34, resnet50, smallnet, or package.module:factory.")]
OptionalModel = Annotated[str | None, typer.Option("--model", help="As for operate; not needed for digits.")]
CheckpointFile = Annotated[Path | None, typer.Option("--checkpoint", help="Weights: .safetensors, .pt or .pth.")]
DataSource = Annotated[str | None, typer.Option("--data", help=f"{SPECS}.")]
TrainingData = Annotated[str | None, typer.Option(help="Training images for the Hessian, instead of --data's.")]
CalibrationData = Annotated[
    str | None, typer.Option(help="Images to decide on, instead of half of --data's test part.")
]
HeldoutData = Annotated[str | None, typer.Option(help="Images to report on, instead of half of --data's test part.")]
Preset = Annotated[
    str,
    typer.Option(
        help="default, loop (Algorithm 2 with our settings), paper, paper:cifar100, paper:isic, paper:isic/focal, "
        "paper:isic/class-balanced."
    ),
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
Iterations = Annotated[int | None, typer.Option(help="Rounds at most; T of the loop, in each phase.")]
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
Sensitivity = Annotated[str | None, typer.Option(help="How S is found: gradients, or differences (2K passes).")]
Target = Annotated[
    str | None, typer.Option(help="sigma, worst (the worst class), or accuracies to reach: cat=0.8,dog=0.75.")
]
Protect = Annotated[str | None, typer.Option(help="Classes to protect: ship,truck; by default those above the mean.")]
MaxDrop = Annotated[
    float | None,
    typer.Option("--max-drop", help="What a protected class may lose, as a fraction; by default σ, but 0.1 at most."),
]
Budget = Annotated[float | None, typer.Option(help="Accuracy that may be given up, as a fraction; 0.002 by default.")]
Directions = Annotated[
    str | None, typer.Option(help="What to move along, beside biases: class-gradients, spikes or both.")
]
Accept = Annotated[
    Path | None, typer.Option(help="TOML file of criteria to meet on the held-out images; exit 3 where they are not.")
]
Figures = Annotated[Path | None, typer.Option(help="Write every figure there as well, as SVG and PNG.")]
