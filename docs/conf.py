"""Sphinx: the pages, the API from docstrings, and tables drawn from the JSON in results/."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pages  # noqa: E402

import notsodeep  # noqa: E402
from notsodeep.explore import page  # noqa: E402

project = "notsodeep"
author = "the notsodeep authors"
version = release = notsodeep.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_math_renderer = "mathml"  # browsers draw it themselves: no script, nothing fetched
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


def skip_routing(app, what, name, obj, skip, options):
    """Methods that scikit-learn adds to every estimator are described there."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def mathml(tex: str, block: bool) -> str:
    """LaTeX as MathML, by the converter of docutils; what it does not know is spelled out, or shown as it is."""
    if re.search(r"\\t?frac\s*[^{\s]", tex):  # \frac12 would be drawn as 12 over whatever follows
        raise ValueError(f"write \\frac{{1}}{{2}} with braces: {tex}")
    plain = re.sub(r"\\rm\s+(\w+)", r"\\mathrm{\1}", tex).replace("\\dots", "\\ldots").replace("\\texttt", "\\mathrm")
    try:
        return tex2mathml(plain.strip(), as_block=block)
    except MathError:
        return f"<code>{html.escape(tex.strip())}</code>"


def visit_math(self, node):
    self.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_displaymath(self, node):
    self.body.append(f'<div class="math" style="overflow-x: auto">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def setup(app):
    """MathML instead of scripts; bars in docstrings; generated pages before anything is read."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-skip-member", skip_routing)
    app.connect("builder-inited", lambda _: pages.write_all(HERE, HERE.parent / "results"))
    app.connect("build-finished", lambda app, _: (Path(app.outdir) / "explorer.html").write_text(page(), "utf-8"))
