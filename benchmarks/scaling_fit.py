"""What each stage of an operation costs, as a sum of a few terms with fitted coefficients.

Each term counts some work, by the sizes of a point. Its coefficient is what a unit of this work
takes on one machine: seconds, or bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hessian_surgery.directions.class_gradients import TRAINING_IMAGES
from hessian_surgery.directions.family import MICRO
from hessian_surgery.evidence.leading_outputs import LEADING
from hessian_surgery.evidence.resampled_pairs import RESAMPLES as EVIDENCE_RESAMPLES
from hessian_surgery.operation.choice import RESAMPLES
from hessian_surgery.operation.coefficient_fit import PRICES, SHARES
from hessian_surgery.operation.crossfit import FOLDS
from hessian_surgery.operation.minimize import EVALUATIONS

Sizes = Mapping[str, int]
Term = Callable[[Sizes], float]

FITS = FOLDS * len(PRICES)
# Steps that are chosen from: of biases, and of all directions.
STEPS = 2 * len(PRICES) * len(SHARES)
FLOAT = 4


def _drawn(at: Sizes) -> int:
    """Images that class gradients are taken over; as many again of calibration images."""
    once = min(at["training"], max(TRAINING_IMAGES, at["classes"]))
    return once * (1 + (at["directions"] > min(at["classes"], 20)))


def _outputs(at: Sizes) -> int:
    """Logits of an image that are modelled, L."""
    return min(LEADING, at["classes"])


def _passes(count: Callable[[Sizes], float]) -> dict[str, Term]:
    """Forward passes over the calibration images: their arithmetic, and their logits."""
    return {
        "arithmetic of forward passes": lambda at: count(at) * at["calibration"] * at["flops"],
        "logits of forward passes": lambda at: count(at) * at["calibration"] * at["classes"],
    }


FIXED: dict[str, Term] = {"fixed": lambda at: 1.0}
PLAN: dict[str, Term] = (
    FIXED
    | _passes(lambda at: len(PRICES))
    | {
        "images in the fits": lambda at: FITS * EVALUATIONS * at["calibration"],
        "products in the fits": lambda at: FITS * EVALUATIONS * at["calibration"] * _outputs(at) * at["directions"],
        "resampled accuracies": lambda at: RESAMPLES * STEPS * at["classes"],
    }
)

SECONDS: dict[str, dict[str, Term]] = {
    "directions": FIXED
    | _passes(lambda at: at["directions"] + 1)
    | {
        "arithmetic of gradients": lambda at: _drawn(at) * at["flops"],
        "weights": lambda at: (at["directions"] + _drawn(at) / MICRO) * at["weights"],
        "pairs of classes": lambda at: at["classes"] ** 2,
    },
    "plan": PLAN,
    "front": PLAN,
    "measure": FIXED | _passes(lambda at: 1),
    "rest": FIXED
    | {
        "arithmetic of forward passes": lambda at: (at["calibration"] + at["heldout"]) * at["flops"],
        "images": lambda at: at["calibration"] + at["heldout"] + at["training"],
        "logits": lambda at: (at["calibration"] + at["heldout"]) * at["classes"],
        "resampled accuracies": lambda at: EVIDENCE_RESAMPLES * at["classes"],
    },
}
BYTES: dict[str, dict[str, Term]] = {
    "bytes": FIXED
    | {
        "directions": lambda at: FLOAT * at["directions"] * at["weights"],
        "images": lambda at: at["calibration"] + at["heldout"],
        "logits": lambda at: FLOAT * at["calibration"] * at["classes"],
        "logits in the fits": lambda at: FLOAT * FITS * at["calibration"] * _outputs(at),
        "resampled accuracies": lambda at: FLOAT * RESAMPLES * STEPS * at["classes"],
    },
}
STAGES = SECONDS | BYTES


def measured(row: Mapping[str, Any], stage: str) -> float:
    """What a row of the results has for a stage: seconds, or bytes."""
    return float(row[stage] if stage in BYTES else row["seconds"][stage])


def took_part(row: Mapping[str, Any], stage: str) -> bool:
    """Whether a stage had anything to do: no step is measured if none is proposed."""
    return stage != "measure" or bool(row["accepted"])


def fit(rows: Sequence[Mapping[str, Any]], stage: str) -> dict[str, float]:
    """Coefficients of a stage's terms, none negative, that make relative errors small."""
    terms = STAGES[stage]
    rows = [row for row in rows if took_part(row, stage)]
    wanted = np.array([measured(row, stage) for row in rows])
    work = np.array([[term(row["sizes"]) for term in terms.values()] for row in rows], dtype=np.float64)
    unit = work.max(axis=0)
    found, _ = nnls(work / unit / wanted[:, None], np.ones(len(rows)))
    return dict(zip(terms, (found / unit).tolist(), strict=True))


def predict(coefficients: Mapping[str, float], stage: str, sizes: Sizes) -> float:
    """What a stage takes at other sizes."""
    return sum(coefficients[name] * term(sizes) for name, term in STAGES[stage].items())


def predict_total(fits: Mapping[str, Mapping[str, float]], sizes: Sizes) -> float:
    """Seconds of all stages but the front, which is asked for apart."""
    return sum(predict(fits[stage], stage, sizes) for stage in SECONDS if stage != "front")


def total(row: Mapping[str, Any]) -> float:
    """Measured seconds of all stages but the front."""
    return sum(seconds for stage, seconds in row["seconds"].items() if stage != "front")


def errors_left_out(rows: Sequence[Mapping[str, Any]], number: int) -> dict[str, float]:
    """Relative error of each stage's prediction for one row, fitted to the others."""
    others = [row for i, row in enumerate(rows) if i != number]
    row = rows[number]
    fits = {stage: fit(others, stage) for stage in STAGES}
    found = {
        stage: predict(fits[stage], stage, row["sizes"]) / measured(row, stage) - 1
        for stage in STAGES
        if took_part(row, stage)
    }
    return {"total": predict_total(fits, row["sizes"]) / total(row) - 1} | found


def growth(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How time and memory grow with the classes alone, as shares of how C · log C grows."""
    found = []
    for few in rows:
        larger = [row for row in rows if _differs_in_classes(few["sizes"], row["sizes"])]
        if not larger:
            continue
        many = min(larger, key=lambda row: row["sizes"]["classes"])
        counts = [row["sizes"]["classes"] for row in (few, many)]
        allowed = counts[1] * np.log(counts[1]) / (counts[0] * np.log(counts[0]))
        found.append(
            {
                "from": counts[0],
                "to": counts[1],
                "images": few["sizes"]["images"],
                "width": few["sizes"]["width"],
                "C log C": float(allowed),
                "seconds": total(many) / total(few),
                "bytes": many["bytes"] / few["bytes"],
            }
        )
    return found


def _differs_in_classes(few: Sizes, many: Sizes) -> bool:
    """Whether two points differ in nothing but the second having more classes."""
    same = all(few[name] == many[name] for name in ("images", "width"))
    return same and few["classes"] < many["classes"]
