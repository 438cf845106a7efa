"""A page: one self-contained HTML file that holds its style and script and loads nothing."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from hessian_surgery.markup import text
from hessian_surgery.version import __version__


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        place: its id, and the text of the link to it.
        title: its heading, plain text.
        body: what is below the heading, HTML.
    """

    place: str
    title: str
    body: str


def make_page(title: str, opening: str, sections: Sequence[Section]) -> str:
    """Make a whole document.

    Args:
        title: plain text, for the window and the first heading.
        opening: the verdict, HTML between the heading and the sections.
        sections: in order.
    """
    style = _asset("page.css")
    script = _asset("page.js")
    # The browser may load nothing, and may use this style and this script only.
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<li><a href="#{s.place}">{s.place.capitalize()}</a></li>' for s in sections)
    body = "".join(
        f'<section id="{s.place}" aria-labelledby="{s.place}-title"><h2 id="{s.place}-title">{text(s.title)}</h2>'
        f"{s.body}</section>\n"
        for s in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f'<header><p class="brand">Hessian Surgery</p><nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f'<main id="main" tabindex="-1">\n<h1>{text(title)}</h1>\n{opening}\n{body}</main>\n'
        f"<footer><p>Written by Hessian Surgery {__version__}. This file needs no network.</p></footer>\n"
        '<p id="said" role="status" aria-live="polite"></p>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


@cache
def _asset(filename: str) -> str:
    return files("hessian_surgery.report").joinpath(filename).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
