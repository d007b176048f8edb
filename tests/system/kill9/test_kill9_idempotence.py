"""Idempotent producers of three clients through kill -9: no duplicate, no gap, in order.

Each client retries by its own rules. It sends numbers, one after another, into a partition of its
own while the broker is killed; at the end the partition holds just these numbers.
"""

import gc
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.kill9.idempotent_senders import (
    LIMIT_S,
    Sender,
    by_aiokafka,
    by_confluent,
    by_kafka_python,
    read_partition,
)
from tests.system.kill9.workload import create_topics

KILL_COUNT: Final = 3
COUNT_MIN: Final = 500

# kafka-python leaves the sockets of lost connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That the broker is away is what this is about; and a record of it would keep the sockets."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


def kill_under(senders: list[Sender], appliance: ApplianceProcess, rng: random.Random) -> None:
    for sender in senders:
        sender.start()
    for _ in range(KILL_COUNT):
        time.sleep(rng.uniform(0.3, 1.0))
        appliance.kill()
        appliance.start()
    deadline_s = time.monotonic() + LIMIT_S
    while min(sender.count for sender in senders) < COUNT_MIN and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for sender in senders:
        sender.stop()


def test_idempotent_producers_leave_no_duplicate_and_no_gap(tmp_path: Path) -> None:
    """With async flush, where a kill meets more that is not on the disk; test_kill9 has both."""
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    appliance = ApplianceProcess(tmp_path / "data", ["--flush", "async"])
    try:
        appliance.start()
        create_topics(appliance.kafka)
        clients = (by_confluent, by_kafka_python, by_aiokafka)
        senders = [Sender(client(appliance.kafka, index)) for index, client in enumerate(clients)]
        kill_under(senders, appliance, random.Random(seed))
        for index, sender in enumerate(senders):
            assert sender.error is None, f"{sender.name}: {sender.error!r}"
            assert sender.count >= COUNT_MIN
            values = read_partition(appliance.kafka, index)
            assert values == list(range(sender.count)), sender.name
        appliance.stop()
    except BaseException:
        sys.stderr.write(f"seed {seed}; {appliance.said()}\n")
        raise
    finally:
        appliance.close()
