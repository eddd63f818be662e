"""The explorer: one self-contained page on which the theory moves with the sliders.

>>> from notsodeep.explore import page
>>> page().startswith("<!doctype html>")
True

One HTML file is made out of the page, its style and its modules: nothing is fetched when it is opened.

Every ES module becomes a function that returns its exports, in the order in which they need each other. The modules
keep to a plain form that a few expressions can read: ``import { a, b } from "./other.js";`` and ``export`` before a
declaration.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable

from ..errors import NotSoDeepError

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\s+(\w+))", re.MULTILINE)


def page() -> str:
    """The whole page as text."""
    from .. import __version__

    home = _home()
    parts = {"style": _read(home / "style.css"), "script": bundle("app"), "version": __version__}
    text = _read(home / "page.html")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def bundle(entry: str) -> str:
    """The module ``entry`` with all that it imports, as one script."""
    done: list[str] = []
    _visit(entry, done, ())
    return "\n".join(_wrapped(name) for name in done)


def _visit(name: str, done: list[str], path: tuple[str, ...]) -> None:
    if name in path:
        raise NotSoDeepError(f"the page's modules import each other in a circle: {' -> '.join([*path, name])}")
    if name in done:
        return
    for match in _IMPORT.finditer(_module(name)):
        _visit(match[2], done, (*path, name))
    done.append(name)


def _wrapped(name: str) -> str:
    source = _module(name)
    exports = _EXPORT.findall(source)
    body = _EXPORT.sub("", _IMPORT.sub(lambda m: f"const {{{_renamed(m[1])}}} = module_{m[2]};\n", source))
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise NotSoDeepError(f"{name}.js has an import or export that the bundler does not know")
    # the text stands inside a script element, which must not end early
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();".replace("</", "<\\/")


def _renamed(names: str) -> str:
    """``a as b`` of an import is ``a: b`` of a record."""
    return re.sub(r"(\w+) as (\w+)", r"\1: \2", names)


def _home() -> Traversable:
    return resources.files(__package__)


def _module(name: str) -> str:
    return _read(_home() / "js" / f"{name}.js")


def _read(file: Traversable) -> str:
    return file.read_text(encoding="utf-8")
