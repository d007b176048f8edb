"""A member of a consumer group in a process of its own, which may be asked to leave or be killed.

`python -m tests.system.clients.suites.member LIBRARY ADDRESS GROUP TOPIC` reads, says what it got,
commits that, and says so; on SIGTERM it leaves the group. What it says are the lines of
group_history, each written by one call before the next thing is done, so that a kill loses none
that counts.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

from tests.system.clients.delayed import Received
from tests.system.clients.suites.library import RefusedError
from tests.system.clients.suites.using import library_of

SESSION_TIMEOUT_MS: Final = 3_000

_stopped: list[int] = []


def say(kind: str, rows: Iterable[tuple[int, int, str]]) -> None:
    """Write one line for each row of partition, offset and value."""
    now_ns = time.monotonic_ns()  # the same clock in all processes
    text = "".join(f"{kind} {now_ns} {row[0]} {row[1]} {row[2]}\n" for row in rows)
    os.write(1, text.encode())


def say_partitions(kind: str, partitions: Iterable[int]) -> None:
    say(kind, [(partition, -1, "-") for partition in partitions])


def say_records(records: Sequence[Received]) -> None:
    say("got", [(one.partition, one.offset, one.value.decode()) for one in records])


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, _: _stopped.append(number))
    client, address, group, topic = sys.argv[1:]
    library = library_of(client, address)
    how = {"auto_commits": False, "session_timeout_ms": SESSION_TIMEOUT_MS}
    with library.consuming(group, **how) as consumer:
        consumer.subscribe(topic, say_partitions, say_records)
        while not _stopped:
            # Records of one partition come in order: the last one counts.
            offsets = {one.partition: one.offset + 1 for one in consumer.poll(0.1, 100)}
            if not offsets:
                continue
            try:
                consumer.commit(topic, offsets)
            except RefusedError:
                continue  # a rebalance: whoever gets the partition gets these records again
            say("committed", [(*one, "-") for one in offsets.items()])


if __name__ == "__main__":
    main()
