"""Shows the examples in docstrings as code: fences every run of `>>>` lines and their output."""

import griffe


def fenced(text: str) -> str:
    """Markdown with code fences around doctest blocks.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nThat is all.").count("```")
    2
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>>"):
            lines.append(line[: len(line) - len(line.lstrip())] + "```pycon")
            inside, indent = True, line[: len(line) - len(line.lstrip())]
        elif inside and not line.strip():
            lines.append(indent + "```")
            inside = False
        lines.append(line)
    if inside:
        lines.append(indent + "```")
    return "\n".join(lines)


class FenceDoctests(griffe.Extension):
    """Applied by mkdocstrings to every object it shows."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
