"""Text that only shows itself: what a terminal, a page or a figure could act on is written out."""

import json
import re

# Control characters, marks that turn or hide text, and what UTF-8 cannot hold.
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# Letters of a message at most, and of the end of it that is kept: the end says what to do.
LONGEST = 480
ENDING = 160


def visible(text: str) -> str:
    r"""Write out every character that would not show itself, as `\x1b` or `\u202e`."""
    return HIDDEN.sub(_written, text)


def one_line(text: str) -> str:
    """The same on one line: a space takes the place of line ends, tabs and runs of spaces."""
    return visible(" ".join(text.split()))


def message(text: str, longest: int = LONGEST) -> str:
    """One line of at most so many letters, without the middle of a longer one."""
    whole = one_line(text)
    if len(whole) <= longest:
        return whole
    return f"{whole[: longest - ENDING - 3]} … {whole[-ENDING:]}"


def lines(text: str) -> str:
    """The same for a text of several lines, which keeps its line ends and nothing else."""
    return "\n".join(visible(line) for line in text.split("\n"))


def in_json(text: str) -> str:
    """JSON as text whose strings write out the same characters, by JSON's own escapes."""
    return HIDDEN.sub(lambda found: found.group() if found.group() == "\n" else json.dumps(found.group())[1:-1], text)


def reason(error: BaseException) -> str:
    """Why something failed: the first line of an error, or its kind if it says nothing."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, KeyError):
        return f"it lacks {said}"
    return said[:200] or type(error).__name__


def _written(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
