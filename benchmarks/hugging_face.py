"""σ on held-out data before and after `operate`, on tiny Hugging Face models, over five seeds.

python -m benchmarks.hugging_face [case …]
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import hessian_surgery as hs
from benchmarks.hugging_face_cases import CASES, trained_case
from hessian_surgery.files import write_json
from hessian_surgery.model.evaluation import compute_logits

SEEDS = range(5)
RESULTS = Path(__file__).parent / "results/hugging_face.json"


def run(case: str, seed: int) -> dict[str, Any]:
    """Train, operate, save, load again; figures of the held-out data, as fractions."""
    pretrained, data = trained_case(case, seed)
    parts = pretrained.parts(data, seed)
    outcome = hs.operate(pretrained.model, **parts, config=hs.SurgeryConfig(seed=seed))
    held = parts["heldout_data"]
    with tempfile.TemporaryDirectory() as folder:
        pretrained.save(folder)
        loaded = hs.open_pretrained(folder).model
    after = [compute_logits(hs.Classifier(model), held) for model in (pretrained.model, loaded)]
    before, now = outcome.findings.heldout.metrics()
    return {
        "seed": seed,
        "heldout": len(held),
        "sigma": [before.sigma, now.sigma],
        "worst": [before.worst, now.worst],
        "accuracy": [before.accuracy, now.accuracy],
        "verdict": outcome.verdict.outcome,
        "same_logits": bool(torch.equal(*after)),
    }


def row(case: str, runs: list[dict[str, Any]]) -> str:
    """One line of the table: means over seeds, in percent."""
    cells = []
    for name in ("sigma", "worst", "accuracy"):
        first, last = (100 * sum(run[name][i] for run in runs) / len(runs) for i in (0, 1))
        cells.append(f"{first:.1f} → {last:.1f}")
    fell = sum(run["sigma"][1] < run["sigma"][0] for run in runs)
    same = all(run["same_logits"] for run in runs)
    return f"| {case} | {' | '.join(cells)} | {fell} of {len(runs)} | {'yes' if same else 'NO'} |"


def main(cases: list[str]) -> None:
    """Run every seed of every case; print the table and write the results."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    print("| model | σ pp | worst class % | accuracy % | σ fell | same logits after loading |")
    print("|---|---|---|---|---|---|")
    for case in cases or CASES:
        found[case] = [run(case, seed) for seed in SEEDS]
        print(row(case, found[case]), flush=True)
        write_json(RESULTS, found)


if __name__ == "__main__":
    main(sys.argv[1:])
