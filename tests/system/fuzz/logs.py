"""Damaged files: `python -m tests.system.fuzz.sanitized tests.system.fuzz.logs --seed N --cases N`.

A broker that was fuzzed stops, some bytes of its files are changed, and another one starts on them.
It may refuse to, by a declared error; else it must serve whoever comes. If the CRC of a changed
frame is put right, which no accident does, memory must still be safe.
"""

import argparse
import gc
import random
import sys
from contextlib import suppress
from typing import Final

from _core.bytes.layout import (
    AT_CRC,
    AT_HELD_SIZE,
    AT_SIZE,
    AT_TABLES_SIZE,
    AT_VISIBLE_SIZE,
    FRAME_HEADER_SIZE,
)
from appliance.errors import LatermqError
from compat.tables.schema import TABLE_NAMES
from tests.support.clients.wire_client import WireClient
from tests.support.harness.broker_harness import BrokerHarness
from tests.support.harness.tables import rows_of
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.values.raw_batch import CRC_START, Raw, calc_crc32c, make_batch
from tests.system.fuzz.generate import CaseMaker
from tests.system.fuzz.harness import GOOD_TOPIC, Harness, check

COUNTS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF)
WEEK_MS: Final = 7 * 24 * 3600 * 1000


def frames_of(log: bytes) -> list[tuple[int, int]]:
    """Position and size of each frame of a segment."""
    found = []
    start = 0
    while start + FRAME_HEADER_SIZE <= len(log):
        size = number_at(log, start + AT_SIZE)
        if log[start : start + 2] != b"LM" or not FRAME_HEADER_SIZE <= size <= len(log) - start:
            break
        found.append((start, size))
        start += size
    return found


def number_at(data: bytes | bytearray, pos: int) -> int:
    """An int32."""
    return int.from_bytes(data[pos : pos + 4], "big", signed=True)


def with_right_crc(frame: bytes) -> bytes:
    """The frame with the CRC that its header asks for, if its sizes lead anywhere."""
    tables, visible, held = (
        max(number_at(frame, at), 0) for at in (AT_TABLES_SIZE, AT_VISIBLE_SIZE, AT_HELD_SIZE)
    )
    body = FRAME_HEADER_SIZE + tables
    covered = frame[:AT_CRC] + frame[FRAME_HEADER_SIZE:body]
    covered += frame[body : body + min(visible, CRC_START)]
    covered += frame[body + visible : body + visible + min(held, CRC_START)]
    crc = calc_crc32c(covered).to_bytes(4, "big")
    return frame[:AT_CRC] + crc + frame[FRAME_HEADER_SIZE:]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The same size with some bytes changed."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        pos = rng.randrange(len(out))
        match rng.randrange(4):
            case 0:
                out[pos] ^= 1 << rng.randrange(8)
            case 1:
                out[pos] = rng.choice(COUNTS)
            case 2:
                out[pos : pos + 4] = rng.randbytes(len(out[pos : pos + 4]))
            case _:
                end = min(pos + rng.choice((8, 100, 4096)), len(out))
                out[pos:end] = bytes(end - pos)
    return bytes(out)


def damage(rng: random.Random, disk: SimFileSystem) -> bool:
    """Change files; whether a CRC was put right."""
    files = {path: content for path, content in disk.files().items() if content}
    logs = [path for path in files if path.parent.name == "commitlog"]
    path = rng.choice(logs) if rng.random() < 0.8 else rng.choice(sorted(files))
    frames = frames_of(files[path])
    if path not in logs or not frames or rng.random() < 0.2:
        disk.open(path).pwritev([damaged(rng, files[path])], 0)
        return False
    is_crc_fixed = rng.random() < 0.6
    for _ in range(rng.choice((1, 1, 3))):
        start, size = rng.choice(frames)
        frame = files[path][start : start + size]
        # The head of a frame decides more than its records do.
        head = rng.choice((FRAME_HEADER_SIZE, min(size, FRAME_HEADER_SIZE + 100), size))
        frame = damaged(rng, frame[:head]) + frame[head:]
        disk.open(path).pwritev([with_right_crc(frame) if is_crc_fixed else frame], start)
    return is_crc_fixed


def use(target: BrokerHarness) -> None:
    """Do all that a broker does."""
    client = WireClient(target)
    for topic in list(target.broker.topics.all()):
        for partition in topic.partitions:
            client.fetch(topic.name, partition.index, partition.start_offset)
    target.pass_ms(WEEK_MS)
    while target.deliver_once().has_more:
        pass
    target.flush()
    target.housekeep()
    if target.broker.topics.find(GOOD_TOPIC) is not None:
        answer = client.produce(GOOD_TOPIC, 0, make_batch([Raw(b"the good client's")]))
        check(answer.error_code == 0, f"the good client is refused: {answer}")


def read_tables(rng: random.Random, disk: SimFileSystem) -> None:
    """Read all tables, as Spark does."""
    for table in TABLE_NAMES:
        with suppress(LatermqError):
            verifies = rng.random() < 0.5
            rows_of(disk, table, fails_on_loss=False, verifies=verifies)


def run_one(seed: str) -> None:
    """Make a log, damage it, read it, start on it and use it."""
    rng = random.Random(seed)
    maker = CaseMaker(rng)
    harness = Harness(is_sync=True)
    for _ in range(2):
        harness.play(maker.make())
    harness.target.flush()
    disk = harness.target.disk.crashed("kept", rng)
    is_crc_fixed = damage(rng, disk)
    try:
        read_tables(rng, disk)
        target = BrokerHarness(disk, harness.target.clock, harness.target.config)
    except LatermqError:
        return
    except Exception:
        if is_crc_fixed:
            return
        raise
    try:
        use(target)
        use(target.restart())
    except Exception:
        # A frame that lies with a right CRC was not written by us: any end will do that is one.
        if not is_crc_fixed:
            raise


def main() -> int:
    """Run cases; an error ends it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=200)
    chosen = parser.parse_args()
    gc.freeze()
    for number in range(chosen.cases):
        # The last one printed is the one that ended the process.
        sys.stderr.write(f"logs: {chosen.seed} {number}\n")
        run_one(f"{chosen.seed} {number}")
        if number % 10 == 0:
            gc.collect()
    sys.stderr.write(f"logs: {chosen.cases} cases, nothing found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
