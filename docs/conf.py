"""How `make docs` builds the site: with the tree of the repository, so that relative links work in both."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

from torch_linformer import __version__

project = "torch-linformer"
author = "the torch-linformer authors"
release = __version__

root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/results/**", "*.md"]
exclude_patterns = [".*", "README.md", "build", "dist", "runs", "site", "src", "tests"]
templates_path = ["_templates"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3  # as in the repository: links to headings are checked
myst_fence_as_directive = ["math"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
napoleon_numpy_docstring = False

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|transformers|matplotlib|collections|typing)[.].*")]

html_theme = "furo"
html_title = "torch-linformer"
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"


def setup(app: Sphinx) -> None:
    """Formulas become MathML while the site is built: a page loads no script for them."""
    app.add_html_math_renderer("mathml", (mathml("inline"), None), (mathml("block"), None))


def mathml(display: str) -> Any:
    """The function that writes a formula into a page."""

    def write(translator: Any, node: nodes.Element) -> None:
        formula = convert(node.astext(), display=display)
        wide = f'<div style="overflow-x: auto">{formula}</div>'  # wider than a phone
        translator.body.append(wide if display == "block" else formula)
        raise nodes.SkipNode

    return write
