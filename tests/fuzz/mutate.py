"""Hostile inputs: damaged bytes, and JSON whose values were replaced."""

import json
import resource
import sys
from copy import deepcopy
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hessian_surgery as hs
from hessian_surgery.plain_text import HIDDEN

# Inputs per reader, in `make test` and in `make test-full`, and so many of one draw.
FEW, MANY, AT_ONCE = 1_000, 20_000, 50
# Memory that no input may take beyond what it needs.
ROOM = 1_000_000_000
SHORT = (b"", b"\x00", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"NaN", b"-1", b"1e999", b'"', b"{", b"[" * 2000)
ESCAPES = "\x1b]0;owned\x07\x9b31m\u202e\n<script>alert(1)</script>|`$x^2$\ud800"
VALUES = (
    None, True, False, 0, -1, 2**31, 2**63, 10**400, 0.5, -1e308, 1e308, float("nan"), float("inf"), "", "x", ESCAPES,
    "y" * 3000, [], [[]], {}, [None], [1], ["a"], {"a": 1}, {ESCAPES: ESCAPES}, [[0.5] * 3] * 3, [0.1] * 500,
)  # fmt: skip


def damaged(content: bytes, draw: Random) -> bytes:
    """The same bytes with one to four changes."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        size = len(data)
        at = draw.randrange(size) if size else 0
        # Headers are short and matter most.
        at = min(at, draw.choice((at, at, 8, 64, 512)))
        end = min(size, at + draw.choice((1, 2, 8, 100, 5000)))
        match draw.randrange(7):
            case 0 if size:
                data[at] ^= 1 << draw.randrange(8)
            case 1 if size:
                data[at] = draw.randrange(256)
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end]
            case 4:
                data[at:end] = draw.choice(SHORT)
            case 5:
                del data[at if draw.random() < 0.3 else size - draw.randint(0, min(16, size)) :]
            case 6:
                data[at:at] = draw.randbytes(draw.choice((1, 4, 32)))
    return bytes(data)


def replaced(content: object, draw: Random) -> object:
    """The same JSON with one to three values replaced, dropped or doubled."""
    whole = deepcopy(content)
    for _ in range(draw.randint(1, 3)):
        holder, key = _place(whole, draw)
        if holder is None:
            return draw.choice(VALUES)
        match draw.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(deepcopy(holder[key]))
            case 2 if isinstance(holder, dict):
                holder[ESCAPES] = deepcopy(holder[key])
            case 3 if isinstance(holder[key], float):
                holder[key] = holder[key] * draw.choice((-1, 10, 1e6, 1e-300))
            case 4 if isinstance(holder[key], str):
                holder[key] += ESCAPES
            case _:
                holder[key] = deepcopy(draw.choice(VALUES))
    return whole


def _place(whole: object, draw: Random) -> tuple[object, object]:
    """A random place in a tree: what holds it, and its key."""
    holder, key, here = None, None, whole
    while isinstance(here, dict | list) and here:
        if holder is not None and draw.random() < 0.2:
            break
        holder = here
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        here = here[key]
    return holder, key


def damaged_json(content: object, draw: Random) -> bytes:
    """JSON with other values; now and then with other bytes."""
    if draw.random() < 0.3:
        return damaged(json.dumps(content).encode(), draw)
    return json.dumps(replaced(content, draw)).encode("utf-8", "surrogatepass")


def check_line(text: str) -> None:
    """What a person sees: one to three short lines, and no control character."""
    assert text.strip(), "an empty message"
    assert len(text) <= 500, text
    assert len(text.splitlines()) <= 3, text
    assert not HIDDEN.search(text.replace("\n", "")), ascii(text)


def survives(call: object, *arguments: object) -> bool:
    """Whether a call accepts its input; if not, it must say why in one line."""
    try:
        call(*arguments)
    except hs.InputError as error:
        check_line(str(error))
        return False
    return True


def fuzz(total: int, attack: object) -> None:
    """Call `attack(draw)` so many times, each with its own draws; memory must not grow much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @settings(
        max_examples=total // AT_ONCE, deadline=None, database=None, derandomize=True, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.integers(0, 2**63))
    def attacks(seed: int) -> None:
        draw = Random(seed)
        for _ in range(AT_ONCE):
            attack(draw)

    attacks()
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert sys.platform != "linux" or grown < ROOM, grown


def times() -> object:
    """Run a test with few inputs, and in `make test-full` with many."""
    many = pytest.param(MANY, marks=pytest.mark.full)
    return pytest.mark.parametrize("total", [FEW, many], ids=["few", "many"])


def put(path: Path, content: bytes) -> Path:
    """Write a file; return its path."""
    path.write_bytes(content)
    return path
