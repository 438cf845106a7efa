"""Finished runs of several kinds for tests of reports, and a front as `operate` predicts one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hessian_surgery as hs
from hessian_surgery.data.sources import Parts
from hessian_surgery.operation.outcome import Outcome
from hessian_surgery.report.run import Run, run_of

# Names that would break a page that trusted them.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> ' & &amp;",
    "emoji 🦊👩‍🔬",
    "חתול שחור",
    "قط أسود \u202e reversed",
    "a very long name " * 12,
    "two\nlines\tand a tab",
    "$x^2$ and $",
    "-->]]>{{ 7*7 }}`${1}`",
    "javascript:alert(1)\u2028\x00",
)


def renamed(parts: Parts, names: tuple[str, ...]) -> Parts:
    """The same images with other class names."""
    return Parts(*(replace(part, classes=names) for part in (parts.training, parts.calibration, parts.heldout)))


def hundred_classes() -> tuple[nn.Module, dict[str, hs.LabelledSet]]:
    """A small net on a hundred clusters, some wide, with six images of each in every part."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(100, 24, generator=generator)
    width = torch.linspace(0.5, 1.3, 100)

    def draw() -> tuple[Tensor, Tensor]:
        labels = torch.arange(100).repeat(6)
        return centres[labels] + width[labels][:, None] * torch.randn(len(labels), 24, generator=generator), labels

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 100))
    inputs, labels = draw()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    names = [f"class {i:02d}" for i in range(100)]
    parts = {"training_data": (inputs, labels), "calibration_data": draw(), "heldout_data": draw()}
    return net, {part: hs.as_labelled(pair, classes=names) for part, pair in parts.items()}


def make_run(outcome: Outcome, inputs: dict[str, Any]) -> Run:
    """The run of a finished operation."""
    return run_of(outcome, outcome.patch(), inputs)


def save_run(outcome: Outcome, folder: Path, inputs: dict[str, Any]) -> None:
    """Write the folder of a finished operation."""
    outcome.save(folder, None, inputs)


def made_up_front(result: dict[str, Any]) -> dict[str, Any]:
    """A front as `result.json` holds it: a real run's class accuracies drawn towards their mean."""
    base = np.array(result["before"]["heldout"]["per_class"])
    count = np.array(result["before"]["heldout"]["count"])
    points = []
    for objective, strength in (("sigma", 1.0), ("worst", 0.8)):
        for k, budget in enumerate((0.0, 0.001, 0.002, 0.005, 0.01, 0.02)):
            rate = np.clip(base + (base.mean() - base) * strength * (0.5 + 0.1 * k), 0.01, 0.99)
            half = 2 * np.sqrt(rate * (1 - rate) / count)
            points.append(
                {
                    "objective": objective,
                    "budget": budget,
                    "accuracy": float(rate @ count / count.sum()),
                    "sigma": float(rate.std()),
                    "per_class": rate.tolist(),
                    "low": np.clip(rate - half, 0, 1).tolist(),
                    "high": np.clip(rate + half, 0, 1).tolist(),
                }
            )
    protected = [result["classes"].index(name) for name in result["choices"]["protected"]]
    accuracy = result["before"]["heldout"]["accuracy"]
    start = {"accuracy": accuracy, "sigma": float(base.std()), "per_class": base.tolist()}
    return {"protected": protected, "base": start, "points": points}


def give_front(folder: Path) -> None:
    """Put a made-up front into a run folder, and write its page again."""
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"front": made_up_front(result)}))
    hs.write_report(folder)
