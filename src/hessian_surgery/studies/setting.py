"""What the studies share: a finder of spikes, data to measure on, progress in parts."""

import logging

from torch import Tensor, nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch, make_finder
from hessian_surgery.data.checks import require_images
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.parameters import parameter_space, refuse_half_precision
from hessian_surgery.types import Progress

LOG = logging.getLogger(__name__)
# How the studies seek spikes by default: on the paper's number of images.
SEARCH = SpikeSearch(hessian_samples=128)
# What a progress bar counts to: parts of a study count in different units.
WHOLE = 1000


def spike_rows(spectrum: Spectrum) -> Tensor:
    """The spikes (K, p) where and as the weights' vectors are; a spectrum may keep them elsewhere, or rounded."""
    return spectrum.vectors.to(spectrum.space.device, spectrum.space.dtype)


def open_finder(
    model: nn.Module | Classifier, training_data: Data, search: SpikeSearch, parameters: str, seed: int
) -> SpikeFinder:
    """A finder whose batch is drawn once from the training data.

    Raises:
        InputError: it would not fit into memory; the message says what would.
    """
    classifier = as_classifier(model)
    space = parameter_space(classifier.module, parameters)
    refuse_half_precision(space)
    finder = make_finder(classifier, space, as_labelled(training_data), search, seed=seed)
    LOG.info(finder.describe())
    return finder


def open_measured(model: nn.Module | Classifier, data: Data, argument: str) -> LabelledSet:
    """Data that accuracies can be measured on: every class has images, and the model answers to them."""
    classifier = as_classifier(model)
    labelled = as_labelled(data)
    require_images(labelled.labels, labelled.classes, argument)
    labelled = labelled.resident(classifier.device)
    check_classifier(classifier, labelled)
    return labelled


def part_of(progress: Progress | None, part: int, parts: int) -> Progress:
    """The progress of part number `part` (from 0) of `parts` equal ones, told as progress of the whole."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(round(WHOLE * (part + done / total) / parts), WHOLE)

    return report
