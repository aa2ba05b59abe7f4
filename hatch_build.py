"""The README as a package index shows it: pictures and links with whole addresses, or their text where none is known.

An index has no `docs/` folder beside the page, so relative links break there. Where the package is built by a workflow the
repository is known (`GITHUB_REPOSITORY`); elsewhere a picture becomes its description.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def readable(text: str, repository: str, version: str) -> str:
    """The README for an index.

    >>> readable("![A table](docs/a.png) and [docs](docs/faq.md)", "", "1.0")
    '*A table* and docs'
    >>> readable("![A table](docs/a.png)", "someone/sparring", "1.0")
    '![A table](https://raw.githubusercontent.com/someone/sparring/v1.0/docs/a.png)'
    """
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub(r"*\1*", text))
    text = PICTURE.sub(rf"![\1](https://raw.githubusercontent.com/{repository}/v{version}/\2)", text)
    return LINK.sub(rf"[\1](https://github.com/{repository}/blob/v{version}/\2)", text)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme` and, where it is known, the address of the project."""

    def update(self, metadata: dict) -> None:
        root = Path(self.root)
        repository = os.environ.get("GITHUB_REPOSITORY", "")
        version = re.search(r'^__version__ = "(.+)"', (root / "src/sparring/__init__.py").read_text(), re.MULTILINE)[1]
        text = readable((root / "README.md").read_text(), repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository:
            metadata["urls"] = {"Repository": f"https://github.com/{repository}"}
