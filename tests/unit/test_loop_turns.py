"""The work of the event loop takes turns, and who asks for little comes first."""

from collections import deque
from collections.abc import Callable

import pytest

from appliance.loop_share import (
    ADDRESS_SHARE,
    DEBT_MAX_NS,
    PIECE_NS,
    SHARE,
    AddressShares,
    LoopShare,
)
from appliance.loop_turns import (
    LIGHT_NS,
    SHARED_TURN_NS,
    SHARED_WORK_BYTES,
    SHORT_NS,
    TURN_NS,
    TURN_WORK_BYTES,
    WORKED_NS,
    LoopTurns,
)
from appliance.units import NS_PER_MS
from compat.kafka.network.read_pace import ReadPace


class Loop:
    """An event loop that only calls back."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None], /) -> None:
        self._calls.append(callback)

    def turn(self) -> bool:
        """Do what was due at the begin of the turn; return whether there is more."""
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        return bool(self._calls)


class Work:
    """Pieces of work that note what they take, and when they ran."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.turns = LoopTurns(self.loop)
        self.done: list[str] = []

    def ask(
        self, name: str, took_ns: int = TURN_NS, *, is_light: bool = False, address: str = ""
    ) -> None:
        def step() -> None:
            self.done.append(name)
            self.turns.spend(took_ns)

        self.turns.ask(step, is_light=is_light, address=address)

    def turn(self) -> list[str]:
        """Return what one turn of the loop did."""
        self.done.clear()
        self.loop.turn()
        return list(self.done)


def test_one_heavy_piece_runs_in_each_turn() -> None:
    work = Work()
    for name in "abc":
        work.ask(name)
    assert [work.turn() for _ in range(4)] == [["a"], ["b"], ["c"], []]
    assert work.turns.turn_count == 3


def test_short_heavy_pieces_share_a_turn() -> None:
    """Each turn polls all sockets: thousands of small requests would take thousands of polls."""
    work = Work()
    for number in range(12):
        work.ask(f"{number}", SHORT_NS // 4)
    work.ask("long")
    work.ask("last", SHORT_NS // 4)
    turns = [work.turn() for _ in range(4)]
    assert turns == [["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8", "9", "10", "11"], ["long"]]
    assert work.turn() == ["last"]


def test_who_goes_on_after_a_turn_has_it_alone() -> None:
    """A piece that noted nothing has not done its work yet."""
    work = Work()
    for name in "ab":
        work.ask(name, 0)
    assert [work.turn() for _ in range(2)] == [["a"], ["b"]]


def test_turn_is_shorter_while_members_that_ask_for_little_are_served() -> None:
    turns, light, heavy = Work().turns, LoopShare(0), LoopShare(0)
    begin_ns = 1_000 * NS_PER_MS
    light.spend(begin_ns, begin_ns)
    heavy.spend(begin_ns, begin_ns + 10 * NS_PER_MS)
    turns.note_round(begin_ns, begin_ns, light)
    turns.spend(SHARED_TURN_NS)
    assert turns.is_spent
    turns.note_round(begin_ns, begin_ns + LIGHT_NS - 1, heavy)
    assert turns.is_spent
    turns = Work().turns
    turns.note_round(begin_ns, begin_ns, light)
    turns.note_round(begin_ns + LIGHT_NS, begin_ns + LIGHT_NS, heavy)
    turns.spend(TURN_NS - 1)
    assert not turns.is_spent


def test_who_watches_the_loop_is_called_as_it_works() -> None:
    turns, calls = Work().turns, []
    turns.worked = lambda: calls.append(1)
    for _ in range(10):
        turns.spend(WORKED_NS // 4 + 1)
    assert len(calls) == 2


def test_who_watches_the_loop_is_called_in_each_turn_with_work_that_notes_nothing() -> None:
    work, calls = Work(), []
    work.turns.worked = lambda: calls.append(1)
    for name in "abc":
        work.ask(name, 0)
    for _ in range(4):
        work.turn()
    assert len(calls) == 3


@pytest.mark.parametrize("is_light", [False, True])
def test_addresses_take_turns_however_much_each_asks_for(is_light: bool) -> None:
    work = Work()
    for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
        work.ask(name, is_light=is_light, address=name[0])
    assert [work.turn() for _ in range(6)] == [["a1"], ["b1"], ["c1"], ["a2"], ["b2"], ["a3"]]


def test_light_work_comes_before_heavy_work_that_waited_longer() -> None:
    work = Work()
    for name in "abcd":
        work.ask(name)
    assert work.turn() == ["a"]
    work.ask("light", 10_000, is_light=True)
    assert work.turn() == ["light", "b"]


def test_light_work_that_is_not_light_shares_a_turn_no_more_than_its_time() -> None:
    work = Work()
    for number in range(6):
        work.ask(f"{number}", TURN_NS // 2, is_light=True)
    work.ask("heavy")
    # The heavy piece is not forgotten meanwhile.
    assert work.turn() == ["0", "1", "heavy"]
    assert work.turn() == ["2", "3"]
    assert work.turn() == ["4", "5"]
    assert work.turn() == []


def test_work_that_asks_again_waits_for_a_later_turn() -> None:
    work = Work()

    def again() -> None:
        work.done.append("again")
        if len(work.done) < 10:
            work.turns.ask(again, is_light=True)

    work.turns.ask(again, is_light=True)
    assert work.turn() == ["again"]
    assert work.turn() == ["again"]


def test_work_that_is_no_longer_light_when_it_asks_again_waits_as_well() -> None:
    work = Work()
    work.turns.ask(lambda: work.ask("heavy"), is_light=True)
    assert work.turn() == []
    assert work.turn() == ["heavy"]


def test_error_of_one_member_keeps_nobody_else_waiting() -> None:
    work = Work()

    def fail() -> None:
        raise ValueError("a bug")

    work.turns.ask(fail)
    work.ask("b")
    with pytest.raises(ValueError, match="a bug"):
        work.turn()
    assert work.turn() == ["b"]


def test_turn_is_spent_until_the_next_one_begins() -> None:
    work = Work()
    seen = []
    for _ in range(9):
        seen.append(work.turns.is_spent)
        work.turns.spend(TURN_NS // 8)
    assert seen == [False] * 8 + [True]
    assert not work.loop.turn()
    assert not work.turns.is_spent


def test_little_work_costs_no_callback() -> None:
    """The loop may sleep: what little was done is counted against a later turn."""
    work = Work()
    work.turns.spend(PIECE_NS - 1)
    assert not work.loop._calls
    work.turns.spend(1)
    assert len(work.loop._calls) == 1


def test_new_member_is_not_light() -> None:
    assert not LoopShare(0).is_light


def test_member_that_takes_less_than_its_share_is_light() -> None:
    share = LoopShare(0)
    for ms in range(1, 100):
        share.spend(ms * NS_PER_MS, ms * NS_PER_MS + int(NS_PER_MS * SHARE * 0.9))
    assert share.is_light


def test_member_that_takes_more_than_its_share_is_not_light() -> None:
    share = LoopShare(0)
    for ms in range(1, 100):
        share.spend(ms * NS_PER_MS, ms * NS_PER_MS + int(NS_PER_MS * SHARE * 1.1))
    assert not share.is_light


def test_many_members_of_an_address_that_take_little_each_are_not_light() -> None:
    pace = ReadPace(0, AddressShares().of("10.0.0.1", 0))
    shares = AddressShares()
    paces = [ReadPace(0, shares.of("10.0.0.2", 0)) for _ in range(100)]
    for ms in range(1, 1_000):
        begin_ns = ms * NS_PER_MS
        ended_ns = begin_ns + int(NS_PER_MS * ADDRESS_SHARE * 1.1)
        paces[ms % len(paces)].note_round(begin_ns, ended_ns)
        pace.note_round(begin_ns, begin_ns + 1_000)
    assert pace.is_light
    assert not any(each.is_light for each in paces)


def test_reading_counts_as_what_a_connection_takes() -> None:
    pace = ReadPace(0, AddressShares().of("10.0.0.1", 0))
    for ms in range(1, 100):
        pace.note_read(1, ms * NS_PER_MS, ms * NS_PER_MS + 1_000)
    assert pace.is_light
    pace.note_read(1, 100 * NS_PER_MS, 110 * NS_PER_MS)
    assert not pace.is_light


def test_share_of_an_address_ends_with_its_last_connection() -> None:
    shares = AddressShares()
    share = shares.of("10.0.0.1", 0)
    assert shares.of("10.0.0.1", 1) is share
    assert shares.of("10.0.0.2", 1) is not share
    del share
    assert len(shares) == 0


def test_member_that_was_idle_saved_little_and_its_debt_ends() -> None:
    share = LoopShare(0)
    day_ns = 86_400_000 * NS_PER_MS
    share.spend(day_ns, day_ns + 10 * NS_PER_MS)
    assert not share.is_light
    share.spend(day_ns, day_ns + 10_000 * NS_PER_MS)
    soon_ns = day_ns + int(DEBT_MAX_NS / SHARE) + NS_PER_MS
    share.spend(soon_ns, soon_ns)
    assert share.is_light


def test_a_heavy_member_does_less_in_a_turn_for_a_while_after_a_light_one_was_served() -> None:
    turns, light, heavy = Work().turns, LoopShare(0), LoopShare(0)
    begin_ns = 1_000 * NS_PER_MS
    light.spend(begin_ns, begin_ns + 1)
    heavy.spend(begin_ns, begin_ns + 10 * NS_PER_MS)
    turns.note_round(begin_ns, begin_ns + 10 * NS_PER_MS, heavy)
    now_ns = begin_ns + 20 * NS_PER_MS
    assert turns.work_bytes(now_ns, heavy) == TURN_WORK_BYTES
    turns.note_round(now_ns, now_ns + 1, light)
    assert turns.work_bytes(now_ns + LIGHT_NS, heavy) == SHARED_WORK_BYTES
    assert turns.work_bytes(now_ns + LIGHT_NS, light) == TURN_WORK_BYTES
    assert turns.work_bytes(now_ns + 1 + LIGHT_NS, heavy) == TURN_WORK_BYTES
