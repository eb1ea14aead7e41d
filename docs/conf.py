"""How the pages become a site: `make docs`, without the internet.

The source folder is the repository, so that links between pages, examples and the README are the same on the
site and in the repository.
"""

import importlib.metadata
import re
from typing import Any

project = "Everstep"
author = "The Everstep authors"
copyright = author  # noqa: A001 -- Sphinx asks for this name
release = importlib.metadata.version("everstep")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**.md",
    "examples/*/README.md",
    "tests/histories/README.md",
]
suppress_warnings = [
    # The README and the changelog open with headings of their own level.
    "myst.header",
    # Folders are links in the repository.
    "myst.xref_missing_folder",
]

myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "fieldlist"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Docstrings write code in single backticks, as Markdown does.
default_role = "literal"

# Blocks without a language are output or diagrams.
highlight_language = "none"

html_theme = "furo"
# Diagrams are up to 100 characters wide.
html_theme_options = {"light_css_variables": {"code-font-size": "0.78em"}}
html_title = "Everstep"
html_copy_source = False
html_show_sourcelink = False
html_static_path: list[str] = []


def escape_stars(_app: Any, _what: str, _name: str, _object: object, _options: Any, lines: list[str]) -> None:
    """Show stars in docstrings as they are, such as those of file patterns."""
    lines[:] = ["".join(map(_escape, re.split(r"(`+[^`]*`+)", line))) for line in lines]


def _escape(part: str) -> str:
    return part if part.startswith("`") else part.replace("*", r"\*")


def setup(app: Any) -> None:
    """Register the change before napoleon reads sections."""
    app.connect("autodoc-process-docstring", escape_stars, priority=400)
