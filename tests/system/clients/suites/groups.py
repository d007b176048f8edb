"""The features of consumer groups, once for all libraries in Python and kcat."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests.system.clients.suites.library import Consumer, Described, Library
from tests.system.clients.suites.using import (
    create_and_send,
    receive,
    send_values,
    values_of,
    wait_until,
)

SESSION_TIMEOUT_MS: Final = 6_000
"""With it come heartbeats each second: members learn of a rebalance soon."""

METADATA: Final = "sp\u00e4ter \u2713"


@contextmanager
def joined(
    library: Library, group: str, on_change: Callable[..., None] | None = None, **how: Any
) -> Iterator[Consumer]:
    """A member that a thread of its own polls: one thread would let two of them wait in turns."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            consumer.poll(0.1)

    with library.consuming(group, **how) as consumer:
        consumer.subscribe(group, **({} if on_change is None else {"on_change": on_change}))
        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield consumer
        finally:
            is_over.set()
            thread.join()


def wait_for_shares(count: int, *members: Consumer) -> None:
    wait_until(
        lambda: all(len(member.share()) == count for member in members),
        f"every member has {count} partitions",
    )


def share_out(library: Library, name: str, **how: Any) -> None:
    """One member has all partitions, then shares them with a second, which leaves again."""
    library.create(name, 4)
    how["session_timeout_ms"] = SESSION_TIMEOUT_MS
    with joined(library, name, **how) as first:
        wait_for_shares(4, first)
        with joined(library, name, **how) as second:
            wait_for_shares(2, first, second)
            assert first.share() | second.share() == {0, 1, 2, 3}
        wait_for_shares(4, first)


def receive_in_group(library: Library, name: str, count: int) -> list[bytes]:
    """Read as the only member, which commits by itself when it is closed."""
    with library.consuming(name) as consumer:
        consumer.subscribe(name)
        return values_of(receive(consumer, count))


def empty_group(library: Library, name: str) -> None:
    """A topic with records, and a group that has read them and left."""
    create_and_send(library, name, b"one", b"two", b"three")
    assert receive_in_group(library, name, 3) == [b"one", b"two", b"three"]


def subscribe(library: Library, name: str) -> None:
    library.create(name, 3)
    for partition in range(3):
        send_values(library, name, b"%d" % partition, partition=partition)
    assert sorted(receive_in_group(library, name, 3)) == [b"0", b"1", b"2"]


def commit(library: Library, name: str) -> None:
    library.create(name, 2)
    with library.consuming(name, auto_commits=False) as consumer:
        consumer.assign(name, {0: None, 1: None})
        consumer.commit(name, {0: 5}, METADATA)
        assert (consumer.committed(name, 0), consumer.committed(name, 1)) == (5, None)
    ((place, (offset, metadata)),) = library.group_offsets(name).items()
    assert (place, offset) == ((name, 0), 5)
    assert metadata in (None, METADATA)


def resume(library: Library, name: str) -> None:
    empty_group(library, name)
    send_values(library, name, b"four")
    assert receive_in_group(library, name, 1) == [b"four"]


def rebalance(library: Library, name: str) -> None:
    share_out(library, name)


def cooperative(library: Library, name: str) -> None:
    share_out(library, name, is_cooperative=True)


def static_member(library: Library, name: str) -> None:
    """One that comes back takes nothing from the others.

    A rebalance that was under way before it left may still reach the others, hence the attempts.
    """
    library.create(name, 4)
    changes: list[str] = []

    def note(kind: str, _: object) -> None:
        changes.append(kind)

    def revocations_of_a_return() -> int:
        before = changes.count("revoked")
        with joined(library, name, instance="second") as second:
            wait_for_shares(2, first, second)
            assert second.share() == had
        return changes.count("revoked") - before

    with joined(library, name, note, instance="first") as first:
        with joined(library, name, instance="second") as second:
            wait_for_shares(2, first, second)
            had = second.share()
        assert any(revocations_of_a_return() == 0 for _ in range(3))


def list_groups(library: Library, name: str) -> None:
    library.create(name)
    with joined(library, name) as consumer:
        wait_for_shares(1, consumer)
        assert library.list_groups()[name].lower() in ("stable", "consumer")


def describe_group(library: Library, name: str) -> None:
    library.create(name)
    with joined(library, name, client_id="me") as consumer:
        wait_for_shares(1, consumer)
        shown = library.describe_group(name)
    assigned = None if shown.assigned is None else (name, (0,))
    assert shown == Described("stable", library.assignor, "me", "/127.0.0.1", assigned)


def set_offsets(library: Library, name: str) -> None:
    empty_group(library, name)
    library.set_offset(name, name, 1)
    assert receive_in_group(library, name, 2) == [b"two", b"three"]


def delete_offsets(library: Library, name: str) -> None:
    empty_group(library, name)
    assert library.group_offsets(name)[name, 0][0] == 3
    library.delete_offset(name, name)
    assert not library.group_offsets(name)


def delete_group(library: Library, name: str) -> None:
    empty_group(library, name)
    library.delete_group(name)
    assert name not in library.list_groups()


_FEATURES: Final = (
    *(subscribe, commit, resume, rebalance, static_member, cooperative, list_groups),
    *(describe_group, set_offsets, delete_offsets, delete_group),
)
GROUP_FEATURES: Final = {function.__name__: function for function in _FEATURES}
