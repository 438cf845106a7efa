"""Runs of the loop made by hand, in the form of `loop_run`."""

import itertools

import numpy as np

CLASSES = ["cat", "dog", "ship"]


def metrics(per_class):
    return {
        "per_class": list(per_class),
        "accuracy": float(np.mean(per_class)),
        "balanced_accuracy": float(np.mean(per_class)),
        "sigma": float(np.std(per_class)),
        "worst": min(per_class),
        "count": [100] * len(per_class),
    }


def record(before, after, accepted=True, alpha_max=0.02):
    kept = after if accepted else before
    drop = max(b - a for b, a in zip(before, after, strict=True))
    own = {"accepted": accepted, "alpha_max": alpha_max, "candidate_sigma": float(np.std(after)), "max_drop": drop}
    return own | metrics(kept)


def run(states, before=(0.6, 0.7, 0.9), after=(0.7, 0.8, 0.85), change=(-0.03, (-0.05, -0.01)), alphas=None):
    """A run through these class accuracies on calibration images; held-out ones have 100 images."""
    alphas = alphas or [0.02] * len(states)
    pairs = [
        [round(100 * min(b, a)), *_moved(b, a), round(100 * (1 - max(b, a)))]
        for b, a in zip(before, after, strict=True)
    ]
    difference = {"difference": change[0], "interval": list(change[1])}
    figures = ("sigma", "accuracy", "balanced_accuracy", "worst")
    return {
        "classes": CLASSES,
        "before": metrics(before),
        "after": metrics(after),
        "calibration_before": metrics(states[0]),
        "calibration_after": metrics(states[-1]),
        "changes": dict.fromkeys(figures, difference),
        "pairs": pairs,
        "iterations": [
            record(*pair, alpha_max=alpha) for pair, alpha in zip(itertools.pairwise(states), alphas, strict=False)
        ],
    }


def _moved(before, after):
    """How many of 100 images only the network before has right, and only the one after."""
    change = round(100 * (after - before))
    return max(0, -change), max(0, change)


def found(rows, start):
    return next(row for row in rows if row.label.startswith(start))
