"""From a study's arguments to what it works with: a finder of spikes, and calibration data."""

import logging
from dataclasses import replace

from torch import nn

from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch, make_finder
from hessian_surgery.data.checks import require_images
from hessian_surgery.data.labelled import Data, LabelledSet, as_part
from hessian_surgery.model.classifier import Classifier, as_classifier
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.parameters import parameter_space, refuse_half_precision

LOG = logging.getLogger(__name__)
# How studies seek spikes by default: on the paper's number of images.
SEARCH = SpikeSearch(hessian_samples=128)


def open_finder(
    model: nn.Module | Classifier, training_data: Data, search: SpikeSearch, parameters: str, seed: int
) -> SpikeFinder:
    """Make a finder whose Hessian batch is drawn from the training data.

    Args:
        model: the trained classifier.
        training_data: images that the model was trained on.
        search: how spikes are sought.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch and the start vectors.

    Raises:
        InputError: it would not fit into memory; the message says what would.
    """
    classifier = as_classifier(model)
    space = parameter_space(classifier.module, parameters)
    refuse_half_precision(space)
    # A study looks at one batch. After an exact number of steps all K pairs count, as in the paper.
    search = replace(search, redraw_hessian=False, signs="all" if search.lanczos_steps else search.signs)
    finder = make_finder(classifier, space, as_part(training_data, "training_data"), search, seed=seed)
    LOG.info(finder.describe())
    return finder


def open_calibration_data(model: nn.Module | Classifier, data: Data) -> LabelledSet:
    """Bring calibration data to the model's device, and check that accuracies can be measured.

    Raises:
        InputError: a class has no images, or the model cannot take them.
    """
    classifier = as_classifier(model)
    labelled = as_part(data, "calibration_data")
    require_images(labelled.labels, labelled.classes, "calibration_data")
    labelled = labelled.resident(classifier.device)
    check_classifier(classifier, labelled)
    return labelled
