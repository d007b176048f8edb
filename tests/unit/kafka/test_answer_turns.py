"""Long answers of all connections take turns, and share the memory."""

from collections import deque
from collections.abc import Callable

import pytest

from appliance.loop_turns import LoopTurns
from appliance.units import KIB, MIB
from compat.kafka.network.answer_turns import AHEAD_MAX, AnswerTurns
from compat.kafka.network.limits import SMALL_BYTES
from compat.kafka.network.memory_budget import MemoryBudget
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
        self._waiting: list[Callable[[], None]] = []
        self.complete: dict[str, int] = {}
        """Bytes of the answers that are complete and not sent, by connection."""
        self.peak_bytes = 0

    def ask(
        self,
        name: str,
        size: int,
        *,
        waits_for: str = "",
        address: str = "a",
        garbage: int = 0,
    ) -> SlicedAnswer:
        """Ask for an answer of some size, which may wait for something in the middle.

        Its request has so much `garbage` in many items.
        """
        writer = PieceWriter()
        items = {"items": [bytes(100) for _ in range(garbage // 100)]} if garbage else None

        def work() -> Steps[None]:
            for number in range(size // len(ITEM)):
                writer.raw(ITEM)
                yield len(ITEM)
                if waits_for and number == 20:
                    yield Wait(self._waiting.append, is_for_clients=waits_for == "clients")

        answer = SlicedAnswer(
            work(),
            writer,
            list,
            lambda: 0,
            lambda each: self.turns.add(name, address, each),
            held_bytes=garbage,
            left=items,
        )
        answer.when_complete(lambda pieces: self.complete.update({name: sum(map(len, pieces))}))
        self.turns.add(name, address, answer)
        return answer

    def _do_slice(self, name: str, answer: SlicedAnswer) -> None:
        self.served.append(name)
        answer.step()
        self.note(name, self.complete.get(name, answer.held_bytes))

    def note(self, name: str, held_bytes: int) -> None:
        self.budget.update(name, held_bytes, "a", is_large=False)
        self.turns.note_memory(name, held_bytes)
        self.peak_bytes = max(self.peak_bytes, self.budget.total_bytes)

    def reach(self) -> None:
        """What answers wait for has happened."""
        for go_on in self._waiting:
            go_on()
        self._waiting.clear()
        self.run()

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
    assert not server.turns.has_waiting
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
    assert not server.turns.has_waiting
    server.close(ahead)
    assert server.budget.total_bytes == 0
    server.ask("e", 2 * LIMIT_BYTES)
    server.run()
    assert "e" in server.complete


def test_what_is_left_of_an_abandoned_answer_counts_until_it_is_freed() -> None:
    """It is freed in slices: else those of the next connections would come on top."""
    server = Server()
    answers = [server.ask(name, 2 * LIMIT_BYTES, garbage=MIB) for name in "ab"]
    server.loop.turn()
    assert server.turns.garbage_bytes == 0
    server.close("a")
    answers[0].abandon()
    assert server.turns.garbage_bytes == MIB
    seen = set()
    server.close("b")
    answers[1].abandon()
    while server.loop.turn():
        seen.add(server.turns.garbage_bytes)
    assert {2 * MIB, MIB} <= seen
    assert [each.garbage_bytes for each in answers] == [0, 0]
    assert server.turns.garbage_bytes == 0
    assert server.turns.slice_count > 4


def test_one_that_waits_for_other_clients_lets_others_go_ahead() -> None:
    """It may wait for its group for minutes."""
    server = Server()
    server.note("other", 2 * LIMIT_BYTES)
    server.ask("a", 2 * LIMIT_BYTES, waits_for="clients")
    server.ask("b", 2 * LIMIT_BYTES)
    server.run()
    assert set(server.complete) == {"b"}


def test_one_that_waits_for_the_broker_stays_ahead() -> None:
    """It keeps its memory, and so would each that goes ahead after it."""
    server = Server()
    server.note("other", 2 * LIMIT_BYTES)
    server.ask("a", 2 * LIMIT_BYTES, waits_for="thread")
    server.ask("b", 2 * LIMIT_BYTES)
    server.run()
    assert set(server.complete) == set()
    server.reach()
    assert set(server.complete) == {"a"}
    server.send("a")
    server.run()
    assert set(server.complete) == {"b"}


def test_one_of_each_address_goes_ahead() -> None:
    """Else a client that reads nothing would keep those of other machines waiting."""
    server = Server()
    server.note("other", 2 * LIMIT_BYTES)
    addresses = [f"{number}" for number in range(AHEAD_MAX + 2)]
    for address in addresses:
        for name in "xyz":
            server.ask(name + address, 2 * LIMIT_BYTES, address=address)
    server.run()
    assert set(server.complete) == {f"x{number}" for number in range(AHEAD_MAX)}
    server.send("x1")
    server.run()
    assert f"x{AHEAD_MAX}" in server.complete, "an address of which none went ahead comes first"
    assert "y1" not in server.complete


def test_small_answers_need_no_room() -> None:
    server = Server()
    server.note("other", 2 * LIMIT_BYTES)
    server.ask("a", 2 * LIMIT_BYTES)
    server.ask("b", SMALL_BYTES)
    server.ask("c", SMALL_BYTES)
    server.run()
    assert {"b", "c"} <= set(server.complete)
