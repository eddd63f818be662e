"""The README as the package page shows it: there, links into the repository need its address.

``PROJECT_URL`` holds the address (``make package PROJECT_URL=https://...``). Without it, links become plain words and
pictures their captions, so that nothing on the page leads nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Writes the README and the address of the project into the metadata."""

    def update(self, metadata: dict) -> None:
        """Fill in what pyproject.toml calls dynamic."""
        text, url = (Path(self.root) / "README.md").read_text(encoding="utf-8"), os.environ.get("PROJECT_URL", "")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_package_page(text, url.rstrip("/"))}
        metadata["urls"] = {"Source": url} if url else {}


def for_package_page(text: str, url: str) -> str:
    """Return the README with links that work away from the repository."""

    def link(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not url:
            return f"*{words}*" if picture else words
        return f"{picture}[{words}]({url}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(link, text)
