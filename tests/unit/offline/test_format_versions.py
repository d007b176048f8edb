"""What latermq does with what a newer one wrote: docs/FORMAT.md, "Versions and migration"."""

import random
import re
import struct
from pathlib import Path
from typing import Any, Final

import pytest

from _core.bytes import layout
from _core.bytes.crc32c import crc32c
from _core.log.frames import read_header
from appliance import cli
from appliance.errors import FormatVersionError
from appliance.store import checkpoint
from appliance.store.checkpoint import COPY_SIZE, CRC, SavedState
from appliance.store.keys import key_runs
from appliance.store.paths import DataPaths
from appliance.store.state import snapshot
from tests.support.docs.source_files import ROOT
from tests.support.harness import offline_scenario as scenario
from tests.support.harness.broker_harness import BrokerHarness, Digest
from tests.support.harness.command_line import CommandLine
from tests.support.harness.configs import DATA_DIR
from tests.support.oracles import frames_model as model
from tests.support.simulator.sim_fs import SimFileSystem
from tests.support.simulator.virtual_clock import VirtualClock

PATHS: Final = DataPaths(DATA_DIR)
CONTROL: Final = PATHS.snapshot(1)
TIMERS: Final = PATHS.timer / ("0" * 19 + "1")
USER_IDS: Final = (b"reminder-1", b"reminder-2", b"reminder-3")


@pytest.fixture
def disk() -> SimFileSystem:
    return scenario.stopped()


def start(disk: SimFileSystem) -> BrokerHarness:
    return BrokerHarness(disk, VirtualClock())


def digest_of(disk: SimFileSystem) -> Digest:
    return start(disk.crashed("kept", random.Random(0))).digest(USER_IDS)


def test_the_page_lists_the_versions_of_this_latermq() -> None:
    page = (ROOT / "docs" / "FORMAT.md").read_text()
    section = page.partition("## Versions and migration")[2]
    documented = dict(re.findall(r"\n\| (\w[\w ]+) \| [^|]+ \| (\d+) \|", section))
    assert documented == {
        "frame": str(layout.FORMAT_VERSION),
        "checkpoint copy": str(checkpoint.VERSION),
        "state snapshot": str(snapshot.VERSION),
        "run": str(layout.RUN_VERSION),
        "key run": str(key_runs.KEY_RUN_VERSION),
    }


# A frame


def add_newer_frame(disk: SimFileSystem, *, is_forgotten: bool, **changes: Any) -> tuple[Path, int]:
    """A frame with these fields after the last one; without the states saved after it."""
    checked = scenario.check(disk)
    end = checked.report.end
    path = scenario.segments(disk)[-1]
    salt = read_header(disk.files()[path])["salt"]
    fields: dict[str, Any] = {
        "kind": model.OFFSET,
        "tables": bytes(16),
        "epoch": scenario.EPOCH,
        "salt": salt,
    }
    fields |= changes
    frame = model.Frame(position=end, flushed=end, **fields)
    offset = end - int(path.name)
    disk.open(path).pwritev([frame.encode()], offset)
    if is_forgotten:
        disk.unlink(PATHS.checkpoint)
    else:
        disk.open(PATHS.abort, create=True)
        name_all(disk, watermark=end + 4096)
    return path, offset


def name_all(disk: SimFileSystem, *, watermark: int) -> None:
    raw = disk.files()[PATHS.checkpoint]
    for at in (0, COPY_SIZE):
        copy = checkpoint.decode(raw[at : at + COPY_SIZE])
        assert copy is not None
        saved = checkpoint.Checkpoint(copy.sequence, copy.flushed, watermark, copy.states, copy.log)
        disk.open(PATHS.checkpoint).pwritev([checkpoint.encode(saved)], at)


NEWER_FRAMES: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "version": (
        {"version": 2},
        "a frame of format version 2 at byte {}; this latermq reads version 1 and below",
    ),
    "kind": (
        {"kind": model.ACCESS_CONTROL},
        "a frame of kind 14, access control, at byte {}; this latermq does not know that kind",
    ),
    "txn": (
        {"kind": model.TXN},
        "a frame of kind 9, txn, at byte {}; this latermq does not know that kind",
    ),
    "flag": (
        {"flags": 64},
        "a frame with flags 0x40 at byte {}; this latermq does not know these flags",
    ),
    "entry": (
        {
            "kind": model.CANCEL,
            "topic_id": 1,
            "partition": 0,
            "timer_count": 1,
            "tables": model.completed_table([model.Completed(accept_pos=8, index=0, op=4)]),
        },
        "a frame with an entry of an unknown kind in its tables at byte {}; this latermq does not "
        "know that entry",
    ),
}
"""What a frame has that this version does not know, and what the error says."""


@pytest.mark.parametrize("is_forgotten", [True, False])
@pytest.mark.parametrize("newer", NEWER_FRAMES)
def test_a_newer_frame_is_refused_and_the_log_stays_as_it_is(
    disk: SimFileSystem, newer: str, is_forgotten: bool
) -> None:
    """Whether all is replayed or only what follows the last state."""
    changes, message = NEWER_FRAMES[newer]
    path, offset = add_newer_frame(disk, is_forgotten=is_forgotten, **changes)
    before = {name: data for name, data in disk.files().items() if name.parent == scenario.LOG}
    with pytest.raises(FormatVersionError) as caught:
        start(disk)
    assert caught.value.message == (
        f"{path} has {message.format(offset)}: use the version that wrote it, or a newer one"
    )
    assert cli.exit_status(caught.value) == cli.EXIT_STORAGE
    after = {name: data for name, data in disk.files().items() if name.parent == scenario.LOG}
    assert after == before


def test_offline_tools_refuse_it_too(
    disk: SimFileSystem, tmp_path: Path, command: CommandLine
) -> None:
    add_newer_frame(disk, is_forgotten=True, version=2)
    root = scenario.export(disk, tmp_path)
    for verb in ("check", "dump", "rebuild"):
        outcome = command.run(f"{verb} {root}")
        assert outcome.status == 2
        assert "a frame of format version 2 at byte " in outcome.stderr
        assert "this latermq reads version 1 and below" in outcome.stderr


def test_a_flipped_version_is_damage_and_no_version(disk: SimFileSystem) -> None:
    disk.flip(scenario.LOG / ("0" * 20), scenario.FIRST_TIMERS_POS + 2, 2)
    (fault,) = scenario.check(disk).faults
    assert fault.position == scenario.FIRST_TIMERS_POS
    assert "CRC32C" in fault.expected


def test_an_optional_frame_of_an_unknown_kind_is_skipped_by_a_start(disk: SimFileSystem) -> None:
    expected = digest_of(disk)
    add_newer_frame(disk, is_forgotten=True, kind=model.QUOTAS, flags=model.OPTIONAL)
    harness = start(disk)
    assert not harness.report.damage
    assert harness.digest(USER_IDS) == expected


# What follows from the log


def newer(data: bytes, at: int) -> bytes:
    """Raise the version that stands there."""
    (version,) = struct.unpack_from(">H", data, at)
    return data[:at] + struct.pack(">H", version + 1) + data[at + 2 :]


def make_newer_snapshot(disk: SimFileSystem) -> None:
    replace_snapshot(disk, newer(disk.files()[CONTROL], 4))


def replace_snapshot(disk: SimFileSystem, data: bytes) -> None:
    """With its sums right in the checkpoint."""
    disk.open(CONTROL).pwritev([data], 0)
    raw = disk.files()[PATHS.checkpoint]
    for at in (0, COPY_SIZE):
        copy = checkpoint.decode(raw[at : at + COPY_SIZE])
        assert copy is not None
        states = tuple(SavedState(s.applied, s.number, s.size, crc32c(data)) for s in copy.states)
        saved = checkpoint.Checkpoint(copy.sequence, copy.flushed, copy.watermark, states, copy.log)
        disk.open(PATHS.checkpoint).pwritev([checkpoint.encode(saved)], at)


def make_newer_run(disk: SimFileSystem) -> None:
    disk.open(TIMERS).pwritev([newer(disk.files()[TIMERS], 4)], 0)


def make_newer_checkpoint(disk: SimFileSystem) -> None:
    """Both copies as a newer latermq might write them: only magic and version stay in place."""
    for place in (0, COPY_SIZE):
        body = struct.pack(">IHxxqqq", checkpoint.MAGIC, checkpoint.VERSION + 1, 1 << 40, 0, 0)
        copy = body + CRC.pack(crc32c(body))
        disk.open(PATHS.checkpoint).pwritev([copy.ljust(COPY_SIZE, b"\x5a")], place)


@pytest.mark.parametrize("make", [make_newer_snapshot, make_newer_run, make_newer_checkpoint])
def test_newer_files_that_follow_from_the_log_are_rebuilt(
    disk: SimFileSystem, make: object
) -> None:
    assert callable(make)
    expected = digest_of(disk)
    make(disk)
    assert digest_of(disk) == expected
    harness = start(disk)
    assert harness.report.checkpoint == 0, "nothing of it was used"
    harness.broker.close()
    assert scenario.check(disk).faults == []
    again = start(disk)
    assert again.report.replayed_bytes == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_state_of_a_version_before_is_used(disk: SimFileSystem, version: int) -> None:
    expected = digest_of(disk)
    data = disk.files()[CONTROL]
    assert data[4:6] == b"\x00\x03"
    replace_snapshot(disk, data[:4] + version.to_bytes(2, "big") + data[6:])
    harness = start(disk)
    assert harness.report.checkpoint == 1
    assert harness.digest(USER_IDS) == expected


def test_what_an_older_latermq_refuses_raises_the_version_of_the_state() -> None:
    """Else it begins after such a frame, and takes it for damage when a consumer asks for it."""
    skipped = 1 << layout.KIND_STAGES  # its frames have the flag optional
    kinds = layout.KINDS_READ & ~skipped
    refused = (kinds, layout.FLAGS_READ, layout.COMPLETION_DUE_SET_ANEW)
    assert {3: (0xC3DFE, 0x6, 3)}[snapshot.VERSION] == refused, "raise snapshot.VERSION"


@pytest.mark.parametrize("place", [0, COPY_SIZE])
def test_no_copy_of_another_version_stays_beside_a_new_one(disk: SimFileSystem, place: int) -> None:
    """It would be believed again after the next change of versions."""
    raw = disk.files()[PATHS.checkpoint]
    disk.open(PATHS.checkpoint).pwritev([newer(raw[place : place + COPY_SIZE], 4)], place)
    harness = start(disk)
    left = disk.files()[PATHS.checkpoint]
    for at in (0, COPY_SIZE):
        assert not checkpoint.is_of_other_version(left[at : at + COPY_SIZE])
    assert harness.report.is_clean


def test_the_first_copy_that_is_written_clears_those_of_other_versions(disk: SimFileSystem) -> None:
    make_newer_checkpoint(disk)
    file = checkpoint.CheckpointFile(disk, PATHS.checkpoint)
    file.open()
    file.note_flushed(8)
    file.close()
    left = disk.files()[PATHS.checkpoint]
    found = [checkpoint.decode(left[at : at + COPY_SIZE]) for at in (0, COPY_SIZE)]
    assert [copy and copy.flushed for copy in found] == [None, 8]
    assert not any(left[:COPY_SIZE])


def test_a_refused_start_keeps_the_copies_of_the_newer_version(disk: SimFileSystem) -> None:
    add_newer_frame(disk, is_forgotten=True, version=2)
    disk.open(PATHS.checkpoint, create=True).truncate(2 * COPY_SIZE)
    make_newer_checkpoint(disk)
    before = disk.files()[PATHS.checkpoint]
    with pytest.raises(FormatVersionError):
        start(disk)
    assert disk.files()[PATHS.checkpoint] == before


def test_check_tells_of_a_copy_of_another_version(disk: SimFileSystem) -> None:
    make_newer_checkpoint(disk)
    checked = scenario.check(disk)
    assert checked.faults == []
    texts = [note.text for note in checked.notes if note.path == PATHS.checkpoint]
    assert len(texts) == 2
    assert all("another format version" in text for text in texts)
