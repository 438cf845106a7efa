"""The last layer fitted again: class-balanced logistic regression on the model's own features."""

from collections.abc import Iterator

import torch
from torch import Tensor

from hessian_surgery.baselines.model_edits import HeadEdit
from hessian_surgery.data.splits import stratified_folds
from hessian_surgery.errors import InputError
from hessian_surgery.model.head import Head
from hessian_surgery.model.head_fit import fit_head

# Strength of the pull towards the present head, per unit of squared distance.
PULLS = (1e-3, 1e-2, 1e-1, 1.0)
# How far to go from the present head to the fitted one.
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
FOLDS = 2


def refit(head: Head, features: Tensor, labels: Tensor, classes: int) -> Iterator[tuple[HeadEdit, Tensor]]:
    """Yield candidate heads, fitted to features (n, d).

    Features of a trained network can be fitted perfectly, so pull and share must be chosen on
    other images. Each candidate therefore comes with cross-fitted logits (n, C): the logits of
    each fold come from a head that was fitted to the other fold. The next candidate's overwrite
    them.

    Raises:
        InputError: a class has too few images for every fold to have one.
    """
    weight = head.module.weight.detach().to(features)
    bias = torch.zeros(len(weight)).to(features) if head.module.bias is None else head.module.bias.detach().to(features)
    if int(torch.bincount(labels, minlength=classes).min()) < FOLDS:
        raise InputError(f"a refit of the last layer needs {FOLDS} calibration images of each class")
    fold = stratified_folds(labels, FOLDS)
    for pull in PULLS:
        cross_fitted = torch.empty(len(features), len(weight), device=features.device)
        pieces = {}
        for part in range(FOLDS):
            others = fold != part
            pieces[part] = fit_head(features[others], labels[others], weight, bias, pull, classes)
        whole = fit_head(features, labels, weight, bias, pull, classes)
        for share in SHARES:
            for part, (w, b) in pieces.items():
                own = fold == part
                cross_fitted[own] = features[own] @ torch.lerp(weight, w, share).T + torch.lerp(bias, b, share)
            edit = HeadEdit(torch.lerp(weight, whole[0], share), torch.lerp(bias, whole[1], share))
            yield edit, cross_fitted
