"""Sphinx settings of the documentation. `make docs` builds it into site/; a warning is an error."""

import re
from importlib.metadata import version as installed_version
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.util import logging
from sphinx.util.typing import stringify_annotation
from sphinx.writers.html5 import HTML5Translator

from hessian_surgery.data.labelled import Data
from hessian_surgery.types import Array

project = "Hessian Surgery"
release = installed_version("hessian-surgery")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
highlight_language = "none"

# GitHub shows the same files: use its anchors, and its dollars for equations.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Hessian Surgery"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
html_math_renderer = "mathml"  # made at build time: a page asks no server for anything

default_role = "py:obj"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has them
napoleon_use_rtype = False
python_maximum_signature_line_length = 90

CODE = re.compile(r"(`[^`]*`)")
LETTER = re.compile(r"(: \w)\.$")
INPUTS = "~hessian_surgery.data.batches.Inputs"
# How autodoc writes out Inputs, a recursive type, level by level.
LEVEL = re.compile(rf"(?:~torch\.)?Tensor \| tuple\[(Inputs|{INPUTS}), \.\.\.\] \| list\[\1\] \| dict\[str, \1\]")


def as_mathml(latex: str, display: str, where: nodes.Node) -> str:
    """Convert an equation to MathML; warn about a command that the converter does not know."""
    found = convert(latex, display=display)
    if unknown := re.findall(r"\\[A-Za-z]+|>&<", found):
        logging.getLogger(__name__).warning("equation: %s is not known", unknown[0], location=where)
    return found


def inline_equation(writer: HTML5Translator, node: nodes.math) -> None:
    """Write $…$."""
    writer.body.append(as_mathml(node.astext(), "inline", node))
    raise nodes.SkipNode


def block_equation(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write $$…$$ in its own box, which scrolls on a narrow screen."""
    writer.body.append(f'<div class="equation">{as_mathml(node.astext(), "block", node)}</div>')
    raise nodes.SkipNode


def keep_bars(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Escape |, * and a single letter with a full stop: in docstrings only `code` is markup."""
    for i, line in enumerate(lines):
        line = LETTER.sub(r"\1\\.", line)
        parts = CODE.split(line)
        parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def shorten(
    app: Sphinx, what: str, name: str, thing: object, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Show signatures as they stand in the code."""
    return named(signature), named(returned)


def named(text: str | None) -> str | None:
    """Put the code's own names for types back into a signature."""
    if text is None:
        return None
    while (shorter := LEVEL.sub(INPUTS, text)) != text:
        text = shorter
    data = LEVEL.sub(INPUTS, stringify_annotation(Data, "smart"))
    text = text.replace(data, "~hessian_surgery.data.labelled.Data")
    text = text.replace(stringify_annotation(Array, "smart"), "~numpy.ndarray")
    return re.sub(r"<function (\w+)>", r"\1", text.replace("<factory>", "..."))


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    for field in PyObject.doc_field_types:
        if field.name == "variable":  # of a dataclass
            field.label = "Fields"
    app.add_html_math_renderer("mathml", (inline_equation, None), (block_equation, None))
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", keep_bars, priority=100)  # before napoleon adds markup
