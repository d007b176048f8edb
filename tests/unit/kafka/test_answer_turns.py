"""Long answers of all connections take turns, and share the memory."""

from collections import deque
from collections.abc import Callable

import pytest

from appliance.loop_turns import LoopTurns
from appliance.units import KIB, MIB
from compat.kafka.network.answer_turns import AnswerTurns
from compat.kafka.network.limits import SMALL_BYTES, MemoryBudget
from compat.kafka.protocol.pieces import PieceWriter
from compat.kafka.protocol.slices import SLICE_WORK, SlicedAnswer, Steps, Wait

LIMIT_BYTES = 4 * MIB
ITEM = bytes(32 * KIB)


class Loop:
    """An event loop that only calls back."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def call_soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def turn(self) -> bool:
        """Do what was due at the begin of the turn; return whether there was anything."""
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        return bool(self._calls)


class Server:
    """Connections with long answers; their clients read when the test says so."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.budget: MemoryBudget[str] = MemoryBudget(LIMIT_BYTES)
        self.turns: AnswerTurns[str] = AnswerTurns(
            LoopTurns(self.loop), self.budget, self._do_slice
        )
        self.served: list[str] = []
        self.complete: dict[str, int] = {}
        """Bytes of the answers that are complete and not sent, by connection."""
        self.peak_bytes = 0

    def ask(self, name: str, size: int, *, waits: bool = False) -> SlicedAnswer:
        """Ask for an answer of some size, which may wait for something in the middle."""
        writer = PieceWriter()

        def work() -> Steps[None]:
            for number in range(size // len(ITEM)):
                writer.raw(ITEM)
                yield len(ITEM)
                if waits and number == 20:
                    yield Wait(lambda then: None)

        answer = SlicedAnswer(
            work(), writer, list, lambda: 0, lambda each: self.turns.add(name, each)
        )
        answer.when_complete(lambda pieces: self.complete.update({name: sum(map(len, pieces))}))
        self.turns.add(name, answer)
        return answer

    def _do_slice(self, name: str, answer: SlicedAnswer) -> None:
        self.served.append(name)
        answer.step()
        self.note(name, self.complete.get(name, answer.held_bytes))

    def note(self, name: str, held_bytes: int) -> None:
        self.budget.update(name, held_bytes, is_large=False)
        self.turns.note_memory(name, held_bytes)
        self.peak_bytes = max(self.peak_bytes, self.budget.total_bytes)

    def send(self, name: str) -> None:
        """The client reads its answer."""
        del self.complete[name]
        self.note(name, 0)

    def close(self, name: str) -> None:
        self.budget.forget(name)
        self.turns.forget(name)

    def run(self) -> None:
        """Turn until nothing is to be done."""
        while self.loop.turn():
            pass


def test_answers_take_turns_a_slice_each() -> None:
    server = Server()
    for name in "abc":
        server.ask(name, 8 * SLICE_WORK // 8)
    server.ask("d", SLICE_WORK // 2)
    server.loop.turn()
    assert server.served == ["a"]
    server.run()
    assert server.served[:4] == ["a", "b", "c", "d"]
    assert set(server.complete) == set("abcd")
    assert server.turns.slice_count == len(server.served)


@pytest.mark.parametrize("count", [10, 100])
def test_all_together_hold_the_limit_and_one_answer(count: int) -> None:
    """One always comes to its end, and when it is sent the next one does."""
    server = Server()
    size = 2 * LIMIT_BYTES
    names = [f"{number}" for number in range(count)]
    for name in names:
        server.ask(name, size)
    for _ in names:
        server.run()
        assert len(server.complete) == 1
        (name,) = server.complete
        server.send(name)
    server.run()
    assert server.complete == {}
    assert server.turns.waiting_count == 0
    small = count * (SMALL_BYTES + SLICE_WORK)
    assert LIMIT_BYTES + size / 2 < server.peak_bytes <= LIMIT_BYTES + size + small


def test_a_closed_connection_makes_room_at_once() -> None:
    server = Server()
    answers = {name: server.ask(name, 2 * LIMIT_BYTES) for name in "abcd"}
    server.run()
    (ahead,) = server.complete
    for name in "abcd":
        if name != ahead:
            answers[name].abandon()
            assert answers[name].held_bytes == 0
            server.close(name)
    assert server.turns.waiting_count == 0
    server.close(ahead)
    assert server.budget.total_bytes == 0
    server.ask("e", 2 * LIMIT_BYTES)
    server.run()
    assert "e" in server.complete


def test_one_that_waits_for_something_else_lets_others_go_ahead() -> None:
    """It may wait for its group for minutes."""
    server = Server()
    server.note("other", 2 * LIMIT_BYTES)
    server.ask("a", 2 * LIMIT_BYTES, waits=True)
    server.ask("b", 2 * LIMIT_BYTES)
    server.run()
    assert set(server.complete) == {"b"}


def test_small_answers_need_no_room() -> None:
    server = Server()
    server.note("other", 2 * LIMIT_BYTES)
    server.ask("a", 2 * LIMIT_BYTES)
    server.ask("b", SMALL_BYTES)
    server.ask("c", SMALL_BYTES)
    server.run()
    assert {"b", "c"} <= set(server.complete)
