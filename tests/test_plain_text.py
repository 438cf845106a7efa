import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hessian_surgery as hs
from hessian_surgery.plain_text import HIDDEN, LONGEST, in_json, lines, message, one_line, reason

# Surrogates too: names of files may hold bytes that are no UTF-8.
ANY = st.text(st.characters())


@given(ANY)
def test_one_line_has_no_hidden_character_and_settles(text):
    shown = one_line(text)
    assert not HIDDEN.search(shown)
    assert len(shown.splitlines()) <= 1
    assert one_line(shown) == shown
    shown.encode()
    assert "\n" in lines("a\nb")
    assert not HIDDEN.search(lines(text).replace("\n", ""))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("חתול 👩‍🔬 σ", "חתול 👩‍🔬 σ"),
    ],
)
def test_what_is_written_out(text, shown):
    assert one_line(text) == shown


@given(st.dictionaries(ANY, ANY))
def test_json_reads_back_the_same_and_can_be_written(content):
    written = in_json(json.dumps(content, ensure_ascii=False))
    assert json.loads(written) == content
    assert not HIDDEN.search(written)
    written.encode()


def test_a_message_is_short_and_keeps_its_end():
    text = message("start " + 3000 * "x" + "; give another")
    assert len(text) == LONGEST
    assert text.startswith("start ")
    assert text.endswith("; give another")
    assert str(hs.InputError("a\x1b\nb")) == "a\\x1b b"
    assert reason(KeyError("a")) == "it lacks 'a'"
    assert reason(OSError(28, "No space left")) == "No space left"
    assert reason(ValueError()) == "ValueError"
