"""`hessian-surgery demo`: train a small net on digits and operate on it."""

from functools import partial

from hessian_surgery.cli.folders import DEMO_MARK, check_demo_folder
from hessian_surgery.cli.inputs import OpenedModel, digits_net
from hessian_surgery.cli.operate import operate_on, show_outcome
from hessian_surgery.cli.run_options import DemoOptions
from hessian_surgery.files import claimed, write_text
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.ranks import present
from hessian_surgery.report.write_report import PAGE
from hessian_surgery.weights.checkpoint import read_checkpoint
from hessian_surgery.weights.tensorfile import save_tensors


def demo(options: DemoOptions) -> None:
    """Train a small net on long-tailed, noisy digits and operate on it, in seconds."""
    out = options.out
    with claimed(out, partial(check_demo_folder, out)):
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
    if present().writes:
        show_outcome(outcome, out, options.as_json)
