"""A small world that tells bAbI stories: tasks 1, 2 and 3, in the format and with the statistics of the published files.

Four people walk between six places and carry three things. Everyone and everything starts somewhere the story does not
tell. After every second sentence a question is asked if one of the last five sentences gives rise to it, until five
questions have been asked. The rules below were inferred from the published files, which they reproduce: every published
question of tasks 2 and 3 is one that `_where` or `_before` would ask, with the same supporting lines.
"""

from dataclasses import dataclass, field

import numpy as np

from .stories import Line, Story

PEOPLE = ("Daniel", "John", "Mary", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
MOVES = ("journeyed", "moved", "travelled", "went", "went back")
GETS = ("got", "grabbed", "picked up", "took")
DROPS = ("discarded", "dropped", "left", "put down")
THERE = {2: {"get": 1.0, "drop": 0.2}, 3: {"get": 0.2, "drop": 0.2}}  # how often "there" ends the sentence
RECENT = 5
QUESTIONS = 5


@dataclass
class _Thing:
    """Where a thing is, and what the story told of it."""

    place: str
    holder: str = ""
    event: int = 0  # line of the last get or drop
    settled: tuple[str, int] = ("", 0)  # where it was dropped and the line that told its carrier's place
    trip: list[tuple[str, int]] = field(
        default_factory=list
    )  # places its last carrier went to with it, and their lines


@dataclass
class _World:
    """The hidden state, and the story told so far."""

    random: np.random.Generator
    task: int
    places: dict[str, str] = field(default_factory=dict)
    told: dict[str, tuple[str, int]] = field(default_factory=dict)  # a person's place as told, and the line
    things: dict[str, _Thing] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    recent: list[str] = field(default_factory=list)  # who (task 1) or what (tasks 2, 3) each fact is about

    def pick(self, options: "tuple[str, ...] | list[str]") -> str:
        return options[int(self.random.integers(len(options)))]

    def act(self) -> None:
        """Tell one fact: a random person does a random thing; what cannot be done is drawn again from the start."""
        while True:
            who = self.pick(PEOPLE)
            what = "move" if self.task == 1 else self.pick(("move", "get", "drop"))
            if what == "move":
                where = self.pick(PLACES)
                if where != self.places[who]:
                    return self._move(who, where)
                continue
            here, held = self.places[who], who if what == "drop" else ""
            options = [n for n, t in self.things.items() if t.holder == held and (held or t.place == here)]
            if options:
                return self._handle(who, what, self.pick(options))

    def _move(self, who: str, where: str) -> None:
        number = len(self.lines) + 1
        self.lines.append(Line(f"{who} {self.pick(MOVES)} to the {where}."))
        self.recent.append(who if self.task == 1 else "")
        self.places[who], self.told[who] = where, (where, number)
        for thing in self.things.values():
            if thing.holder == who:
                thing.place = where
                thing.trip.append((where, number))

    def _handle(self, who: str, what: str, name: str) -> None:
        there = " there" if self.random.random() < THERE[self.task][what] else ""
        thing = self.things[name]
        thing.event = len(self.lines) + 1
        self.lines.append(Line(f"{who} {self.pick(GETS if what == 'get' else DROPS)} the {name}{there}."))
        self.recent.append(name)
        if what == "get":
            thing.holder, thing.trip = who, []
        else:
            thing.holder, thing.settled = "", self.told.get(who, ("", 0))

    def ask(self) -> bool:
        """Ask about something one of the last facts is about, if it can be answered."""
        options = [
            line for name in self.recent[-RECENT:] if name for line in [self._question(name)] if line is not None
        ]
        if options:
            self.lines.append(options[int(self.random.integers(len(options)))])
        return bool(options)

    def _question(self, name: str) -> Line | None:
        if self.task == 1:
            place, number = self.told[name]
            return Line(f"Where is {name}?", place, (number,))
        return self._where(name) if self.task == 2 else self._before(name)

    def _where(self, name: str) -> Line | None:
        """Task 2: the get or drop, then the line that tells where it was carried or dropped."""
        thing = self.things[name]
        place, number = thing.settled if not thing.holder else thing.trip[-1] if thing.trip else ("", 0)
        return Line(f"Where is the {name}?", place, (thing.event, number)) if place else None

    def _before(self, name: str) -> Line | None:
        """Task 3: one of the places it was carried to, and the one before it on the same trip."""
        trip = self.things[name].trip
        last = {place: i for i, (place, _) in enumerate(trip) if i}  # a place counts by its last visit
        if not last:
            return None
        place = self.pick([place for place, _ in trip if place in last])  # twice visited, twice as likely
        here, before = trip[last[place]], trip[last[place] - 1]
        supports = (self.things[name].event, here[1], before[1])
        return Line(f"Where was the {name} before the {place}?", before[0], supports)


def tell(task: int, random: np.random.Generator) -> Story:
    """One story with five questions.

    Example:
        >>> story = tell(1, np.random.default_rng(0))
        >>> len(story), sum(bool(line.answer) for line in story)
        (15, 5)

    Args:
        task: 1, 2 or 3.
        random: The source of chance.
    """
    if task not in (1, 2, 3):
        raise ValueError(f"task is {task}; stories are told for 1, 2 and 3")
    world = _World(random, task)
    world.places = {who: world.pick(PLACES) for who in PEOPLE}
    world.things = {name: _Thing(world.pick(PLACES)) for name in THINGS}
    asked = 0
    while asked < QUESTIONS:
        world.act()
        world.act()
        asked += world.ask()
    return tuple(world.lines)


def generate(task: int, questions: int = 1000, seed: int = 0) -> list[Story]:
    """Stories that hold this many questions between them, five each.

    Example:
        >>> stories = generate(2, questions=10)
        >>> len(stories), stories == generate(2, questions=10), stories == generate(2, questions=10, seed=1)
        (2, True, False)

    Args:
        task: 1, 2 or 3.
        questions: How many; a multiple of five, as in the published files.
        seed: The same seed tells the same stories.
    """
    if questions < QUESTIONS or questions % QUESTIONS:
        raise ValueError(f"questions is {questions}; it must be a positive multiple of {QUESTIONS}")
    random = np.random.default_rng([seed, task])
    return [tell(task, random) for _ in range(questions // QUESTIONS)]
