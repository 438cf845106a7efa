import pytest

from hessian_surgery.comparison.terms import describe_terms, terms_sentence
from hessian_surgery.operation.config import SurgeryConfig

BY_DEFAULT = "may lose as much as σ (at most 10 pp), or what chance may show if that is more."


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({}, f"a lower σ; classes above the mean accuracy {BY_DEFAULT}"),
        ({"strong_above": 0.9}, f"a lower σ; classes above an accuracy of 90 % {BY_DEFAULT}"),
        ({"targets": {"ant": 0.8}}, f"ant at 80 %; classes above the mean accuracy that have no target {BY_DEFAULT}"),
        ({"target": "worst", "protect": ("ant", "bee")}, f"a better worst class; ant, bee {BY_DEFAULT}"),
        ({"protect": ("ant",), "max_drop": 0.005}, "a lower σ; ant may lose 0.5 pp each."),
    ],
)
def test_the_terms_in_words(terms, sentence):
    assert terms_sentence(SurgeryConfig(**terms)) == f"Every post-hoc method aims at {sentence}"


def test_the_terms_as_plain_values():
    found = describe_terms(SurgeryConfig(targets={"ant": 0.8}, strong_above=0.9))
    assert (found["strong_above"], found["protect"], found["targets"]) == (0.9, None, {"ant": 0.8})
    assert found["note"].endswith("about σ alone; the advice is about the targets' shortfall.")
    assert describe_terms(SurgeryConfig())["note"] == ""
