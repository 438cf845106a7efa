"""`hessian-surgery demo`: train a small net on digits and operate on it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hessian_surgery.cli.folders import DEMO_MARK, check_demo_folder
from hessian_surgery.cli.inputs import OpenedModel, digits_net
from hessian_surgery.cli.operate import operate_on, show_outcome
from hessian_surgery.cli.options import Json, Seed
from hessian_surgery.files import claimed, write_text
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.tensorfile import save_tensors


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of `demo`."""

    out: Annotated[Path, typer.Option(help="Run folder; it replaces an earlier demo there.")] = Path("runs/demo")
    seed: Seed = 0
    as_json: Json = False


def demo(options: DemoOptions) -> None:
    """Train a small net on long-tailed, noisy digits and operate on it, in seconds."""
    out = options.out
    with claimed(out):
        check_demo_folder(out)
        net, parts = digits_net(options.seed)
        for earlier in ("result.json", "history.jsonl", PAGE):
            (out / earlier).unlink(missing_ok=True)
        write_text(out / DEMO_MARK, "Written by hessian-surgery demo; the next demo replaces this folder's contents.\n")
        save_tensors(out / "base.safetensors", net.state_dict())
        opened = OpenedModel(net, parts, read_checkpoint(out / "base.safetensors"), {})
        inputs = {
            "model": "smallnet",
            "checkpoint": f"{out / 'base.safetensors'}",
            "data": "digits",
            "out": f"{out}",
            "seed": f"{options.seed}",
        }
        outcome = operate_on(opened, SurgeryConfig(seed=options.seed), out, inputs)
    show_outcome(outcome, out, options.as_json)
