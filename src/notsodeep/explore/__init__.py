"""The explorer: one self-contained page on which the theory moves with the sliders; nothing is fetched.

Every ES module becomes a function that returns its exports, in the order in which they need each other. The modules
keep to a plain form that two expressions can read: ``import { a, b } from "./other.js";`` and ``export`` before a
declaration.
"""

from __future__ import annotations

import re
from importlib import resources

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\s+(\w+))", re.MULTILINE)


def page() -> str:
    """Return the whole page as text."""
    from .. import __version__

    text = _read("page.html").replace("{{version}}", __version__).replace("{{style}}", _read("style.css"))
    return text.replace("{{script}}", "\n".join(_bundle("app", {}).values()))


def _bundle(name: str, scripts: dict[str, str]) -> dict[str, str]:
    """Add a module to the scripts, after those that it imports; a circle of imports ends in a RecursionError."""
    source = _read("js", f"{name}.js")
    for found in _IMPORT.finditer(source):
        if found[2] not in scripts:
            _bundle(found[2], scripts)
    exports = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(_as_constants, source))
    # the text stands inside a script element, which must not end early
    scripts[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();".replace("</", "<\\/")
    return scripts


def _as_constants(found: re.Match[str]) -> str:
    """Return an import as constants: ``a as b`` of an import is ``a: b`` of a record."""
    names = re.sub(r"(\w+) as (\w+)", r"\1: \2", found[1])
    return f"const {{{names}}} = module_{found[2]};\n"


def _read(*path: str) -> str:
    return resources.files(__package__).joinpath(*path).read_text(encoding="utf-8")
