"""Sphinx: the pages, one reference page per public name, the gallery, and tables drawn from the JSON in results/."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pages  # noqa: E402

import notsodeep  # noqa: E402
from notsodeep.explore import stored_page  # noqa: E402
from notsodeep.explore.controls import STORED  # noqa: E402

project = "notsodeep"
author = "The notsodeep developers"
copyright = f"2026, {author}; MIT licence"  # the footer of every page
version = release = notsodeep.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
html_math_renderer = "mathml"  # browsers draw it themselves: no script, nothing fetched
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_generated", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5"]
html_theme = "furo"
html_title = "notsodeep"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 80
python_display_short_literal_types = True
napoleon_numpy_docstring = True
napoleon_use_param = False
napoleon_use_rtype = False  # "array of shape (n, m)" is no link
suppress_warnings = ["ref.python", "config.cache"]  # p and n are attributes of several classes, not meant as links
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "pages.Story",
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1e9,  # no times: they are those of whichever machine built the page
    "write_computation_times": False,
    "thumbnail_size": (480, 330),
    "capture_repr": (),
}
log = logging.getLogger(__name__)


def escape_bars(app, what, name, obj, options, lines):
    """|x| is a norm in these docstrings, not a substitution."""
    quoted = [part.replace("|", "\\|") if i % 2 == 0 else part for i, part in enumerate("\n".join(lines).split("``"))]
    lines[:] = "``".join(quoted).split("\n")


COLON = "\ue000"  # stands for a colon while napoleon reads


def hide_colons(app, what, name, obj, options, lines):
    """Napoleon reads ``word: rest`` in the first line of an attribute as its type."""
    if what in ("attribute", "property") and lines:
        lines[0] = lines[0].replace(":", COLON)


def show_colons(app, what, name, obj, options, lines):
    lines[:] = [line.replace(COLON, ":") for line in lines]


def add_raises(app, what, name, obj, options, lines):
    """Functions that check their arguments say so."""
    if what == "function" and "Raises" not in lines and getattr(obj, "__wrapped__", None):
        at = next((i for i, line in enumerate(lines) if line == "Examples"), len(lines))
        lines[at:at] = [
            "Raises",
            "------",
            "InvalidInputError",
            "    If an argument has a wrong type, shape or range.",
            "",
        ]


def skip_routing(app, what, name, obj, skip, options):
    """Methods that scikit-learn adds to every estimator are described there."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


# an accent with a subscript, which the converter would set below the letter
ACCENTED = re.compile(
    r"<munderover>\s*(<mi[^>]*>[^<]*</mi>)((?:(?!munderover).)*?)"
    r"(<mo stretchy=\"false\">[\u02c9\u02c6\u02d9\u02dc]</mo>)\s*</munderover>",
    re.DOTALL,
)


def mathml(tex: str, block: bool) -> str:
    """LaTeX as MathML, by the converter of docutils; a MathError says what it cannot set."""
    if re.search(r"\\t?frac\s*[^{\s]", tex):  # \frac12 would be drawn as 12 over whatever follows
        raise MathError("write \\frac{1}{2} with braces")
    plain = re.sub(r"\\rm\s+(\w+)", r"\\mathrm{\1}", tex).replace("\\dots", "\\ldots").replace("\\texttt", "\\mathrm")
    return ACCENTED.sub(r'<msub><mover accent="true">\1\3</mover>\2</msub>', tex2mathml(plain.strip(), as_block=block))


def set_math(self, node, block: bool, frame: str) -> None:
    """What cannot be set is a warning, and warnings stop the build."""
    try:
        self.body.append(frame.format(mathml(node.astext(), block)))
    except MathError as error:
        log.warning("this formula cannot be set: %s (%s)", node.astext(), error, location=node)
    raise nodes.SkipNode


def visit_math(self, node):
    set_math(self, node, False, "{}")


def visit_displaymath(self, node):
    set_math(self, node, True, '<div class="math" style="overflow-x: auto">{}</div>')


def read_source(app, docname, source):
    """Pages are plain Markdown for a code host; here they get their tables, and the index its tables of contents."""
    source[0] = pages.for_sphinx(docname, source[0])


def write_explorer(app, error):
    """Store the numbers of the explorer beside the pages, which takes minutes."""
    if error is None:
        stops = {"activation": ("relu",)} if app.config.explorer == "start" else STORED
        (Path(app.outdir) / "explorer.html").write_text(stored_page(stops), "utf-8")


def setup(app):
    """MathML instead of scripts; docstrings; generated pages before anything is read."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.connect("autodoc-process-docstring", hide_colons, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", show_colons, priority=900)  # after it
    app.connect("autodoc-process-docstring", add_raises, priority=100)
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("autodoc-skip-member", skip_routing)
    app.connect("source-read", read_source)
    app.connect("builder-inited", lambda _: pages.reference(HERE / "api"))
    app.add_config_value("explorer", "all", "html")  # "start": the first stop of every control alone, for a quick build
    app.connect("build-finished", write_explorer)
