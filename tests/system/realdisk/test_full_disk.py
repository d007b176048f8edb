"""A full disk: new messages are refused for as long as it is full, due ones still come out."""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError

from appliance.units import MIB
from tests.support.disks.loop_disk import Tmpfs
from tests.support.harness.appliance_process import ApplianceProcess
from tests.system.kill9.rounds import CONFIG
from tests.system.realdisk.load import VALUE_SIZE_BYTES, Fill, read_all

TIMERS = 40
DELAY_MS = 1_500
SMALL_BYTES = 200
ATTEMPTS = 6
LIMIT_S = 180.0

FILLED_TO_THE_LAST_BYTE = """
[disk]
refuse_percent = 100
"""


def test_a_full_disk_refuses_new_messages_delivers_due_ones_and_recovers_without_a_restart(
    make_tmpfs: Callable[[int], Tmpfs], tmp_path: Path
) -> None:
    disk = make_tmpfs(48 * MIB)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG + FILLED_TO_THE_LAST_BYTE)
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    try:
        appliance.start()
        fill = Fill(appliance.kafka, timeout_ms=60_000)
        timers: set[bytes] = set()
        rounds = 0
        for attempt in range(ATTEMPTS):
            # On a slow machine they may be due before the disk is full: then it shows nothing.
            rounds += fill_and_free(appliance, disk.path / "ballast", fill, timers, attempt)
            if rounds == 2:
                break
        assert rounds == 2, "the disk was never full in time"

        served = read_all(appliance.kafka)
        assert set(served) == set(fill.acknowledged.values()) | timers
        assert len(set(served)) == len(served)
        for offset, value in fill.acknowledged.items():
            assert served[offset] == value, f"what was acknowledged at {offset} is gone"
        appliance.stop()
        appliance.start()
        assert read_all(appliance.kafka) == served
        appliance.stop()
        assert "Traceback" not in appliance.stderr_path.read_text()
    finally:
        appliance.close()


def fill_and_free(
    appliance: ApplianceProcess, ballast: Path, fill: Fill, timers: set[bytes], attempt: int
) -> bool:
    """Fill the disk while timers are pending, then make room; False if they were due before."""
    named = {b"timer %d of attempt %d" % (number, attempt) for number in range(TIMERS)}
    for value in sorted(named):
        fill.send_later(value, DELAY_MS << attempt)
    fill.finish()
    assert not fill.errors, "there was room for these"
    timers |= named
    fill_up(ballast)
    for size_bytes in (VALUE_SIZE_BYTES, SMALL_BYTES):
        fill.finish()
        fill.errors.clear()
        while not fill.errors:
            fill.send(size_bytes)
    fill.finish()
    was_in_time = not named & set(read_all(appliance.kafka))

    # Clients get a retriable error, and what is refused is not stored.
    assert set(fill.errors) == {KafkaError.KAFKA_STORAGE_ERROR}
    assert not appliance.has_ended
    # Due messages come out all the same.
    deadline_s = time.monotonic() + LIMIT_S
    while not named <= set(read_all(appliance.kafka)):
        assert time.monotonic() < deadline_s, "due messages do not come out"
        time.sleep(0.2)

    # Once there is room it goes on by itself.
    ballast.unlink()
    count = len(fill.acknowledged)
    while len(fill.acknowledged) < count + 100:
        assert time.monotonic() < deadline_s, "it does not go on"
        fill.send()
    fill.finish()
    fill.errors.clear()
    return was_in_time


def fill_up(path: Path) -> None:
    """Take all the room that a file system has left."""
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
