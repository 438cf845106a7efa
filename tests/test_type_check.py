from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessian_surgery as hs
from hessian_surgery.type_check import built, fault, require_types


class Inner(TypedDict):
    name: str
    pair: tuple[float, float]


class Outer(TypedDict):
    inner: list[Inner]
    maybe: int | None
    kind: Literal["a", "b"]
    more: NotRequired[dict[str, float]]


GOOD = {"inner": [{"name": "x", "pair": [1, 2.5]}], "maybe": None, "kind": "a", "unknown": object}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"more": {"a": 1}}, None),
        ({"kind": "c"}, "kind is 'c'; it must be one of a, b"),
        ({"maybe": 1.5}, "maybe is 1.5; it must be a whole number or nothing"),
        ({"maybe": True}, "maybe is True; it must be a whole number or nothing"),
        ({"maybe": 2**63}, "maybe is too large a number; it must be a whole number or nothing"),
        ({"inner": [{"name": "x", "pair": [1]}]}, "inner[0].pair has 1 values, not 2"),
        ({"inner": [{"name": "x", "pair": [1, float("nan")]}]}, "inner[0].pair[1] is nan; it must be a finite number"),
        ({"inner": [{"pair": [1, 2]}]}, "inner[0].name is missing"),
        ({"inner": {}}, "inner is a dict; it must be a list"),
        ({"inner": [1]}, "inner[0] is 1; it must be an object"),
        ({"more": {"a": "b"}}, "more.a is 'b'; it must be a finite number"),
        ({"more": []}, "more is a list; it must be an object"),
    ],
)
def test_where_a_value_does_not_fit(change, words):
    assert fault(GOOD | change, Outer) == words


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_value_gets_an_answer(value):
    for hint in (Outer, int, list[Inner], dict[str, Any], float | None, tuple[int, ...]):
        found = fault(value, hint)
        assert found is None or found


@dataclass(frozen=True)
class Record:
    count: int
    names: tuple[str, ...] = ()
    share: float = 0.5


def test_records_are_built_from_plain_values_and_checked():
    assert built(Record, {"count": 1, "names": ["a"]}) == Record(1, ["a"])
    for content, words in (
        ({"count": "1"}, "count is '1'"),
        ({}, "count"),
        ({"count": 1, "x": 2}, "x"),
        ([], "a list"),
    ):
        with pytest.raises(TypeError, match=words):
            built(Record, content)
    record = Record(np.int64(3), ["a"], np.float32(0.25))
    require_types(record)
    assert type(record.count) is int
    assert type(record.share) is float
    for wrong, words in (
        (Record(1.5), "count: got 1.5; it must be a whole number"),
        (Record(1, "ab"), "names: got 'ab'; it must be a list"),
        (Record(1, (), float("inf")), "share: got inf; it must be a finite number"),
        (Record(1, (), None), "share: got None; it must be a finite number"),
    ):
        with pytest.raises(hs.InputError, match=words):
            require_types(wrong)
