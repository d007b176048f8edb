"""Few clients at a time, and only those that read fast, have much unsent in the kernel."""

from appliance.units import NS_PER_MS
from compat.kafka.network.unsent_bounds import (
    FAST_NS,
    KEPT_NS,
    UNSENT_BYTES,
    WIDE_COUNT_MAX,
    WIDE_UNSENT_BYTES,
    UnsentBounds,
)


class Server:
    """The bounds of connections, as the kernel has them."""

    def __init__(self) -> None:
        self.bounds: dict[str, int] = {}
        self.set_count = 0
        self.unsent: UnsentBounds[str] = UnsentBounds(self._set)

    def _set(self, member: str, size: int) -> None:
        self.bounds[member] = size
        self.set_count += 1

    def drain(self, member: str, ended_ns: int, took_ns: int = NS_PER_MS) -> None:
        self.unsent.note_drained(member, ended_ns - took_ns, ended_ns)

    @property
    def wide(self) -> set[str]:
        return {name for name, size in self.bounds.items() if size == WIDE_UNSENT_BYTES}


def test_who_reads_fast_gets_the_larger_bound_once() -> None:
    server = Server()
    for now_ns in range(0, 10 * FAST_NS, FAST_NS):
        server.drain("a", now_ns)
    assert server.bounds == {"a": WIDE_UNSENT_BYTES}
    assert server.set_count == 1


def test_who_reads_slowly_does_not_get_it_and_loses_it() -> None:
    server = Server()
    server.drain("a", 0, FAST_NS + 1)
    assert not server.bounds
    server.drain("a", 0, FAST_NS)
    server.drain("a", 0, FAST_NS + 1)
    assert server.bounds == {"a": UNSENT_BYTES}


def test_only_so_many_have_it_and_one_that_no_longer_reads_fast_gives_way() -> None:
    server = Server()
    for i in range(WIDE_COUNT_MAX):
        server.drain(f"c{i}", i)
    server.drain("late", KEPT_NS - 1)
    assert len(server.wide) == WIDE_COUNT_MAX
    assert "late" not in server.bounds
    server.drain("c0", KEPT_NS)
    server.drain("late", KEPT_NS + 1)
    # c0 was found to read fast again; c1 has not been for the longest time.
    assert server.wide == {f"c{i}" for i in range(WIDE_COUNT_MAX) if i != 1} | {"late"}
    assert server.bounds["c1"] == UNSENT_BYTES


def test_a_closed_connection_leaves_its_place() -> None:
    server = Server()
    for i in range(WIDE_COUNT_MAX):
        server.drain(f"c{i}", i)
    server.unsent.forget("c3")
    server.unsent.forget("never seen")
    server.drain("new", WIDE_COUNT_MAX)
    assert server.bounds["new"] == WIDE_UNSENT_BYTES
    # The socket of a closed connection is not touched.
    assert UNSENT_BYTES not in server.bounds.values()
