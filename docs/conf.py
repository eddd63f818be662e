"""Sphinx: the pages, the API from docstrings, and tables drawn from the JSON in results/."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import pages  # noqa: E402

import notsodeep  # noqa: E402

project = "notsodeep"
author = "the notsodeep authors"
version = release = notsodeep.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "notsodeep"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = True
napoleon_use_param = False
suppress_warnings = ["ref.python"]  # p and n are attributes of several classes; they are not meant as links


def escape_bars(app, what, name, obj, options, lines):
    """|x| is a norm in these docstrings, not a substitution."""
    quoted = [part.replace("|", "\\|") if i % 2 == 0 else part for i, part in enumerate("\n".join(lines).split("``"))]
    lines[:] = "``".join(quoted).split("\n")


def setup(app):
    """Write the generated pages before anything is read."""
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("builder-inited", lambda _: pages.write_all(HERE, HERE.parent / "results"))
