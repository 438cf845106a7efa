"""The rules of items about how classes respond to spikes, on numbers made by hand."""

import numpy as np
import pytest

from hessian_surgery.reproduce.items import bulk_walk, sensitivity_matrix


def verdict(item, found, start, dataset="cifar10"):
    """The verdict of the one row whose label starts so."""
    rows = item.rows({dataset: found} if isinstance(found, list) else found)
    (chosen,) = [row.verdict for row in rows if row.label.startswith(start)]
    return chosen


def track(**changes):
    content = {
        "displacement": [0.0, 2.0],
        "relative_displacement": 2.0,
        "loss": [0.5295, 0.5293],
        "accuracy": [84.98, 84.96],
        "lambda_max": [645.4, 636.4],
        "class_change": [0.0, 0.2],
        "alignment": 0.99995,
        "alignment_after": 0.9999,
        "walls": 0,
    }
    return content | changes


def walks(random=None, spike=None, **bulk):
    far = {"loss": [0.5, 0.9], "class_change": [0.0, 5.0]}
    return {"bulk": track(**bulk), "spike": track(**(spike or far)), "random": track(**(random or far))}


def test_table_6_agrees_with_itself():
    rows = bulk_walk.rows({"cifar10": [walks(), walks()]})
    papers = [row.mean == pytest.approx(row.paper) for row in rows if row.verdict == "not comparable" and row.paper]
    assert papers == [True] * 7
    assert [row.verdict for row in rows if row.verdict != "not comparable"] == ["reproduced"] * 6


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"loss": [0.5295, 0.5284]}, "change of the loss, bulk"),
        ({"class_change": [0.0, 0.6]}, "largest change of a class on the way"),
        ({"alignment": 0.9998}, "what is missing"),
        ({"relative_displacement": 0.049}, "relative displacement"),
        ({"random": {"loss": [0.5, 0.5003]}}, "change of the loss, random"),
        ({"spike": {"class_change": [0.0, 0.1]}}, "largest change of a class, 5 steps inside"),
    ],
)
def test_what_is_said_of_walks_can_be_refuted(change, label):
    found = [walks(**change), walks(**change) if "random" in change else walks()]
    assert verdict(bulk_walk, found, label) == "not reproduced"


CLASSES = ("cat", "dog", "frog", "airplane", "horse", "deer")
ACCURACY = np.array([0.6, 0.7, 0.9, 0.9, 0.9, 0.9])


def responses(matrix, noise=0.01, accuracy=ACCURACY, classes=CLASSES):
    matrix = np.array(matrix)
    drawn = matrix + noise * np.random.default_rng(0).standard_normal((400, *matrix.shape))
    named = {"classes": list(classes), "eigenvalues": [556.0, 300.0, 200.0, 100.0][: len(matrix)]}
    found = sensitivity_matrix.findings(matrix, drawn, accuracy, classes)
    return named | {"sensitivity": matrix.tolist(), "accuracy": accuracy.tolist()} | found


STRUCTURED = [
    [-3.7, -2.0, 0.5, 1.2, 1.6, 0.1],
    [1.0, -2.7, 0.1, 0.1, 0.1, 1.9],
    [2.0, -2.0, 0.1, 0.1, 0.1, 0.1],
    [2.6, -2.9, 0.1, 0.1, 0.1, 0.1],
]


def test_structure_that_is_there_is_found():
    rows = sensitivity_matrix.rows({"cifar10": [responses(STRUCTURED)]})
    assert [row.verdict for row in rows if row.verdict != "not comparable"] == ["reproduced"] * 4
    entries = {row.label: row.mean for row in rows if row.label.startswith("S of")}
    # Turned so that cat has the paper's sign.
    assert entries["S of spike 1, cat"] == 3.7
    assert entries["S of spike 1, airplane"] == -1.2
    assert entries["S of spike 2, deer"] == 1.9
    assert len(entries) == 9
    assert next(row.mean for row in rows if row.label.startswith("spikes that move")) == 3


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (responses(np.abs(STRUCTURED)), "spike 1: largest entry of the other sign"),
        (responses(STRUCTURED, noise=5.0), "spike 1: largest entry of the other sign"),
        (responses(np.array(STRUCTURED)[:, ::-1]), "spike 1: of the two weakest"),
        (responses(np.array(STRUCTURED)[:, ::-1]), "correlation of a class's error"),
        (responses(STRUCTURED, noise=5.0), "correlation of a class's error"),
        (responses(np.abs(STRUCTURED)), "cosine of the columns of cat and dog"),
        (responses(STRUCTURED, noise=5.0), "cosine of the columns of cat and dog"),
    ],
)
def test_structure_that_is_not_there_or_is_noise_is_refuted(found, label):
    assert verdict(sensitivity_matrix, [found], label) == "not reproduced"


def test_without_cat_and_dog_the_two_weakest_are_compared():
    found = responses(STRUCTURED, classes=tuple("012345"), accuracy=ACCURACY[::-1].copy())
    assert found["coupled"]["classes"] == ["5", "4"]
    rows = sensitivity_matrix.rows({"cifar10": [found]})
    assert not [row for row in rows if row.label.startswith("S of")]


def test_noise_is_taken_off_the_size_of_a_column():
    matrix = np.array([[3.0, 0.0], [4.0, 0.0]])
    assert sensitivity_matrix.column_sizes(matrix) == pytest.approx([12.5**0.5, 0])
    assert sensitivity_matrix.column_sizes(matrix, np.full((2, 2), 3.5)) == pytest.approx([3, 0])


def test_a_spikes_sign_does_not_matter():
    turned = np.array(STRUCTURED)
    turned[1] *= -1
    first, second = responses(STRUCTURED), responses(turned)
    for key in ("error_size", "coupled"):
        assert first[key]["value"] == pytest.approx(second[key]["value"])
    assert sensitivity_matrix.opposition([1.0, 4.0, -2.0]) == 0.5
    assert sensitivity_matrix.opposition([-1.0, -4.0, 2.0]) == 0.5
    assert sensitivity_matrix.opposition([1.0, 2.0]) == 0.0
