"""What consumers of a Key_Shared subscription may see: the judge of the storm, without any I/O.

The judge is told what clients do and get, in the order in which they do. A message is

* `held` by the consumer that has got it, until it acknowledges, refuses or leaves;
* `done` once it is acknowledged; `maybe` when the connection broke before it was known whether the
  acknowledgement had arrived;
* `loose` before it was ever delivered, and after its consumer refused it or left.

A delivery is right when every earlier message of the key is done, maybe, or held by the same
consumer, and no other consumer holds anything of the key. What is on its way is no false alarm:
a broker that keeps the order sends nothing of a key to another consumer before the acknowledgement
or the end of the first has reached it, and that was told to the judge earlier.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Message = tuple[int, int]  # key, number within the key


NOBODY = 0


@dataclass
class _Key:
    sent: int = 0
    open: dict[int, int] = field(default_factory=dict)  # number -> who holds it, or NOBODY
    maybe: set[int] = field(default_factory=set)


class Judge:
    """Collects what was wrong in `problems`. Consumers are numbers from 1."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.deliveries = 0
        self.open = 0  # messages that are not acknowledged
        self._keys: dict[int, _Key] = defaultdict(_Key)
        self._held: dict[int, set[Message]] = defaultdict(set)
        # What was said and is not known to have arrived -> after how many questions it was said.
        self._unsure: dict[int, dict[Message, int]] = defaultdict(dict)
        self._refusing: dict[int, dict[Message, int]] = defaultdict(dict)
        self._asked: dict[int, int] = defaultdict(int)
        self._answered: dict[int, int] = defaultdict(int)

    def sent(self, key: int) -> int:
        """The next message of a key is published; its number."""
        state = self._keys[key]
        state.open[state.sent] = NOBODY
        state.sent += 1
        self.open += 1
        return state.sent - 1

    def held_by(self, consumer: int) -> set[Message]:
        """What a consumer has, and has neither acknowledged nor refused."""
        return self._held[consumer] - self._refusing[consumer].keys()

    def delivered(self, consumer: int, key: int, number: int) -> None:
        """A consumer got a message."""
        state = self._keys[key]
        where = f"key {key}: {number} to consumer {consumer}"
        self.deliveries += 1
        if number in state.maybe:
            state.maybe.discard(number)
            state.open[number] = NOBODY
            self.open += 1
        if number not in state.open:
            self.problems.append(f"{where}, which is acknowledged")
            return
        holder = state.open[number]
        if (key, number) in self._refusing[holder]:
            # It came again before its refusal is known to have arrived; perhaps to another one.
            del self._refusing[holder][key, number]
            self._held[holder].discard((key, number))
        elif holder != NOBODY:
            self.problems.append(f"{where}, while {holder} has it")
        state.open[number] = NOBODY
        others = {
            each
            for other, each in state.open.items()
            if each not in (NOBODY, consumer) and (key, other) not in self._refusing[each]
        }
        if others:
            self.problems.append(f"{where}, while {sorted(others)} have others of the key")
        # Whether another one's refusal has arrived or not: nothing may come before its message.
        missing = [
            earlier
            for earlier, each in state.open.items()
            if earlier < number
            and (each == NOBODY or (each != consumer and (key, earlier) in self._refusing[each]))
        ]
        if missing:
            self.problems.append(f"{where}, before {sorted(missing)[:5]}")
        state.open[number] = consumer
        self._held[consumer].add((key, number))

    def acknowledged(self, consumer: int, messages: list[Message]) -> None:
        """A consumer acknowledges what it holds; whether that arrives is not known yet."""
        for key, number in messages:
            del self._keys[key].open[number]
            self.open -= 1
            self._held[consumer].discard((key, number))
            self._unsure[consumer][key, number] = self._asked[consumer]

    def refused(self, consumer: int, messages: list[Message]) -> None:
        """A negative acknowledgement; until it has arrived, more of the key may be on its way."""
        asked = self._asked[consumer]
        self._refusing[consumer].update(dict.fromkeys(messages, asked))

    def asks(self, consumer: int) -> None:
        """A consumer asks for an answer (PING) after what it has said so far."""
        self._asked[consumer] += 1

    def answered(self, consumer: int) -> None:
        """The next answer came: what was said before that question has arrived."""
        self._answered[consumer] += 1
        count = self._answered[consumer]
        for said in (self._unsure[consumer], self._refusing[consumer]):
            for message in [each for each, asked in said.items() if asked < count]:
                del said[message]
                if said is self._refusing[consumer]:
                    self._held[consumer].discard(message)
                    self._keys[message[0]].open[message[1]] = NOBODY

    def left(self, consumer: int, sure: bool) -> None:
        """A consumer is closed, or (not sure) its connection is cut."""
        self._refusing.pop(consumer, None)
        for key, number in self._held.pop(consumer, set()):
            self._keys[key].open[number] = NOBODY
        for key, number in self._unsure.pop(consumer, {}):
            if not sure:
                self._keys[key].maybe.add(number)
