"""How `make docs` builds the site: with the tree of the repository, so that relative links work in both."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from typer.testing import CliRunner

from torch_linformer import __version__
from torch_linformer.cli.app import app as linformer

project = "torch-linformer"
author = "the torch-linformer authors"
release = __version__

root_doc = "docs/index"
include_patterns = ["docs/**", "benchmarks/results/**", "*.md"]
exclude_patterns = [".*", "README.md", "build", "dist", "runs", "site", "src", "tests"]
templates_path = ["_templates"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 3  # as in the repository: links to headings are checked
myst_fence_as_directive = ["math"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more
napoleon_numpy_docstring = False

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|transformers|huggingface_hub|matplotlib|collections|pathlib|typing)[.].*")]

copybutton_prompt_text = "$ "  # of commands that are shown with what they print
html_theme = "furo"
html_title = "torch-linformer"
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"


def setup(app: Sphinx) -> None:
    """Formulas become MathML while the site is built: a page loads no script for them. Help comes from the commands."""
    app.connect("source-read", add_help)
    app.add_html_math_renderer("mathml", (mathml("inline"), None), (mathml("block"), None))


def add_help(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to the page of commands what each of them says of itself."""
    if name == "docs/commands":
        source[0] += "".join(
            f"\n## linformer {command}\n\n```text\n{help_of(command)}```\n" for command in command_names()
        )


def command_names() -> list[str]:
    """The commands, in the order in which `linformer --help` has them."""
    return [each.name or "" for each in linformer.registered_commands]


def help_of(command: str) -> str:
    """What a command prints for ``--help``."""
    said = CliRunner().invoke(
        linformer, [command, "--help"], prog_name="linformer", terminal_width=88, env={"COLUMNS": "88"}
    )
    if said.exit_code:
        raise RuntimeError(f"linformer {command} --help ended with {said.exit_code}: {said.output}")
    return said.output.lstrip("\n")


def mathml(display: str) -> Any:
    """The function that writes a formula into a page."""

    def write(translator: Any, node: nodes.Element) -> None:
        formula = convert(node.astext(), display=display)
        wide = f'<div style="overflow-x: auto">{formula}</div>'  # wider than a phone
        translator.body.append(wide if display == "block" else formula)
        raise nodes.SkipNode

    return write
