"""Small pieces of work that are many at once take turns of the loop."""

from collections import deque
from collections.abc import Callable

import pytest

from appliance.loop_turns import TURN_NS, LoopTurns
from appliance.piece_queue import AT_ONCE_NS, PieceQueue

STEP_NS = AT_ONCE_NS // 4


class Crowd:
    """A queue on a loop that only calls back; each item takes STEP_NS."""

    def __init__(self, at_once_ns: int | None = None) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.turns = LoopTurns(self)
        self.done: list[str] = []
        self.now_ns = 0
        self.work: dict[str, Callable[[], None]] = {}
        self.address_of: dict[str, str] = {}
        self.queue = PieceQueue(
            self.turns,
            lambda step: step(),
            lambda: self.now_ns,
            self._run,
            lambda item: self.address_of.get(item, ""),
            at_once_ns=at_once_ns,
        )

    def call_soon(self, callback: Callable[[], None], /) -> None:
        self.calls.append(callback)

    def _run(self, item: str) -> None:
        self.now_ns += STEP_NS
        self.done.append(item)
        self.work.get(item, lambda: None)()

    def turn(self) -> str:
        """Return what one turn of the loop did."""
        self.done.clear()
        for _ in range(len(self.calls)):
            self.calls.popleft()()
        return "".join(self.done)


def test_a_few_are_done_at_once() -> None:
    crowd = Crowd()
    crowd.queue.add("abc")
    assert crowd.done == [*"abc"]
    assert not crowd.calls, "nothing is left for a later turn"


def test_many_take_turns_in_their_order() -> None:
    crowd = Crowd()
    crowd.queue.add("abcdefghij")
    assert crowd.done == [*"abcd"]
    assert [crowd.turn() for _ in range(3)] == ["efgh", "ij", ""]
    crowd.queue.add("k")
    assert crowd.done == ["k"], "an empty queue does again what it can at once"


def test_what_nobody_waits_for_may_have_less_of_a_turn() -> None:
    crowd = Crowd(2 * STEP_NS)
    crowd.queue.add("abcde")
    assert crowd.done == [*"ab"]
    assert [crowd.turn() for _ in range(3)] == ["cd", "e", ""]


def test_addresses_take_turns() -> None:
    """Who has many items keeps the only one of another address waiting for one of them."""
    crowd = Crowd()
    crowd.address_of = {"y": "192.0.2.1", "z": "192.0.2.2"}
    crowd.queue.add("abcdefgh" + "yz")
    assert crowd.done == [*"ayzb"]
    assert [crowd.turn() for _ in range(3)] == ["cdef", "gh", ""]


def test_what_comes_while_others_wait_is_behind_them() -> None:
    crowd = Crowd()
    crowd.queue.add("abcdef")
    crowd.done.clear()
    crowd.queue.add("gh")
    assert crowd.done == []
    assert crowd.turn() == "efgh"


def test_an_item_that_waits_is_done_once() -> None:
    crowd = Crowd()
    crowd.queue.add("abcdef")
    crowd.queue.add("fef")
    assert (crowd.turn(), crowd.turn()) == ("ef", "")
    crowd.done.clear()
    crowd.queue.add("aa")
    assert crowd.done == ["a"], "and again after it was done"


def test_what_is_added_for_later_waits_for_a_turn() -> None:
    """Many come one by one, so that none of them knows of the others."""
    crowd = Crowd()
    for item in "abcdef":
        crowd.queue.add_later(item)
    assert crowd.done == []
    assert [crowd.turn() for _ in range(3)] == ["abcd", "ef", ""]


def test_an_item_may_add_others() -> None:
    crowd = Crowd()
    crowd.work["a"] = lambda: crowd.queue.add("bcdef")
    crowd.work["f"] = lambda: crowd.queue.add_later("g")
    crowd.queue.add("a")
    assert crowd.done == [*"abcd"]
    assert crowd.turn() == "efg"


def test_pieces_come_before_heavy_work_and_leave_it_its_turn() -> None:
    crowd = Crowd()
    crowd.queue.add("abcdefghijkl")

    def heavy() -> None:
        crowd.done.append("H")
        crowd.turns.spend(TURN_NS)

    crowd.turns.ask(heavy)
    crowd.turns.ask(heavy)
    assert [crowd.turn(), crowd.turn()] == ["efghH", "ijklH"]


def test_their_time_counts_as_work_of_the_turn() -> None:
    crowd = Crowd()
    crowd.queue.add("abc")
    assert not crowd.turns.is_spent
    crowd.queue.add("d")
    assert crowd.turns.is_spent


def test_an_error_of_one_keeps_no_other_waiting() -> None:
    crowd = Crowd()

    def fail() -> None:
        raise ValueError("b")

    crowd.work["b"] = fail
    with pytest.raises(ValueError, match="b"):
        crowd.queue.add("abc")
    assert crowd.turn() == "c"
