"""Draw docs/demo.svg, the picture in the README: what `hessian-surgery demo` prints. Run from the
project's root.
"""

import io

from rich.console import Console

import hessian_surgery as hs
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.data.sources import open_data
from hessian_surgery.model.smallnet import train_smallnet
from hessian_surgery.operation.progress import ShownProgress

console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
parts = open_data("digits", seed=0)
net = train_smallnet(parts.training, seed=0)
config = hs.SurgeryConfig()
console.print("[bold]$ hessian-surgery demo[/]")
terminal = ShownProgress(console)
outcome = hs.operate(
    net,
    training_data=parts.training,
    calibration_data=parts.calibration,
    heldout_data=parts.heldout,
    config=config,
)
for record in outcome.iterations:
    terminal.iteration(record)
print_findings(console, outcome.findings)
console.save_svg("docs/demo.svg", title="hessian-surgery")
