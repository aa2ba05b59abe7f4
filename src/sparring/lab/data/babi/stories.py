"""bAbI stories in their native format: read, written, and flattened into questions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..files import Folder, as_folder

KINDS = {1: "single-supporting-fact", 2: "two-supporting-facts", 3: "three-supporting-facts"}
VERSIONS = {"en-10k": "tasks_1-20_v1-2/en-10k", "en": "tasks_1-20_v1-2/en", "v1-1": "tasks_1-20_v1-1/en"}


@dataclass(frozen=True)
class Line:
    """One line of a story: a fact, or a question with its answer and the numbers of the lines that support it."""

    text: str
    answer: str = ""
    supports: tuple[int, ...] = ()


Story = tuple[Line, ...]


@dataclass(frozen=True)
class Question:
    """A question with the facts told before it.

    Args:
        facts: The sentences so far, questions left out.
        text: The question.
        answer: One word.
        supports: Positions in `facts`, in the order of the file.
    """

    facts: tuple[str, ...]
    text: str
    answer: str
    supports: tuple[int, ...]


def parse_stories(lines: Iterable[tuple[int, str]], file: str = "bAbI text") -> list[Story]:
    """Read stories from numbered lines.

    Example:
        >>> text = "1 Mary went to the garden.\\n2 Where is Mary? \\tgarden\\t1"
        >>> parse_stories(enumerate(text.split("\\n"), 1))[0][1]
        Line(text='Where is Mary?', answer='garden', supports=(1,))

    Args:
        lines: `(line number in the file, text)`.
        file: Name for messages.
    """
    stories: list[Story] = []
    story: list[Line] = []
    for number, line in lines:
        if not line.strip():
            continue
        count, _, text = line.partition(" ")
        if count == "1":
            if story:
                stories.append(tuple(story))
            story = []
        if count != str(len(story) + 1):
            raise DataError(f"is numbered {count[:20]!r}, expected {len(story) + 1}", file, number)
        story.append(_line(text, story, file, number))
    if story:
        stories.append(tuple(story))
    if not stories:
        raise DataError("holds no story", file)
    return stories


def _line(text: str, before: list[Line], file: str, number: int) -> Line:
    fields = text.split("\t")
    if not fields[0].strip():
        raise DataError("has a number but no text", file, number)
    if len(fields) == 1:
        return Line(text)
    if len(fields) != 3 or not fields[1]:
        raise DataError("is a question without an answer and its supporting lines", file, number)
    supports = fields[2].split()
    facts = {str(i) for i, line in enumerate(before, 1) if not line.answer}
    if not supports or not facts.issuperset(supports):
        raise DataError(f"names {fields[2][:40]!r} as supporting lines, which are not facts before it", file, number)
    return Line(fields[0].rstrip(), fields[1], tuple(int(i) for i in supports))


def format_stories(stories: Iterable[Story]) -> str:
    """The native text of stories; reading it gives them back.

    Example:
        >>> format_stories([(Line("Mary went to the garden."), Line("Where is Mary?", "garden", (1,)))])
        '1 Mary went to the garden.\\n2 Where is Mary? \\tgarden\\t1\\n'
    """
    out: list[str] = []
    for story in stories:
        for number, line in enumerate(story, 1):
            tail = f" \t{line.answer}\t{' '.join(map(str, line.supports))}" if line.answer else ""
            out.append(f"{number} {line.text}{tail}\n")
    return "".join(out)


def questions(stories: Iterable[Story]) -> Iterator[Question]:
    """Every question of the stories, with the facts told before it."""
    for story in stories:
        facts: list[str] = []
        position: dict[int, int] = {}
        for number, line in enumerate(story, 1):
            if line.answer:
                yield Question(tuple(facts), line.text, line.answer, tuple(position[i] for i in line.supports))
            else:
                position[number] = len(facts)
                facts.append(line.text)


def babi(
    task: int, split: str = "train", data: Folder | str | Path | None = None, version: str = "en-10k"
) -> list[Question]:
    """The questions of task 1, 2 or 3: 10,000 (train, `"en-10k"`) or 1,000 (the others and every test file).

    Args:
        task: 1, 2 or 3 supporting facts.
        split: `"train"` or `"test"`.
        data: The data folder; None for SPARRING_DATA.
        version: `"en-10k"`, `"en"`, or `"v1-1"` for the older `tasks_1-20_v1-1/en`.
    """
    return list(questions(stories(task, split, data, version)))


def stories(
    task: int, split: str = "train", data: Folder | str | Path | None = None, version: str = "en-10k"
) -> list[Story]:
    """The stories of a published file; the arguments are those of `babi`."""
    if task not in KINDS:
        raise DataError(f"bAbI task {task} is not read here; use 1, 2 or 3")
    if split not in ("train", "test"):
        raise DataError(f"babi has no split {split!r}; use 'train' or 'test'")
    if version not in VERSIONS:
        raise DataError(f"babi has no version {version!r}; use one of {', '.join(VERSIONS)}")
    name = f"babi/{VERSIONS[version]}/qa{task}_{KINDS[task]}_{split}.txt"
    return parse_stories(as_folder(data).lines(name), name)
