"""`latermq backup` and `restore` with a real broker, under the load of a real client."""

import hashlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from appliance.commands.offline import Meter
from appliance.offline.data_dir import DataDir
from appliance.offline.findings import Findings
from appliance.system.files import OsFileSystem
from appliance.units import MIB
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.harness.command_line import CommandLine

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

LIMIT_S: Final = 30.0
PARTITIONS: Final = 2
PADDING: Final = b"." * 4_000

SEGMENT_SIZE: Final = 20 * MIB
CONFIG: Final = f"""\
[store]
segment_size_bytes = {SEGMENT_SIZE}
[limits]
decompressed_size_max_bytes = 4194304
[groups]
size_max_bytes = 1048576
[disk]
refuse_percent = 100
"""


class Load(threading.Thread):
    """Sends plain and delayed records until asked to stop; notes which were acknowledged."""

    def __init__(self, address: str) -> None:
        super().__init__(name="load", daemon=True)
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2}
        self._producer = Producer({**settings, "message.timeout.ms": 3_000, "log_level": 0})
        self._is_ending = threading.Event()
        self.sent = 0
        self.acknowledged: list[int] = []

    def run(self) -> None:
        while not self._is_ending.is_set():
            number = self.sent
            # Every fourth waits, for up to three seconds.
            headers = [("x-delay", b"%d" % (number % 3_000))] if number % 4 == 3 else []
            self.sent += 1
            self._producer.produce(
                "t",
                b"%d" % number + PADDING,
                partition=number % PARTITIONS,
                headers=headers,
                on_delivery=self._note,
            )
            # Bounded, so that it is the disk that decides how fast it goes.
            while len(self._producer) > 500 and not self._is_ending.is_set():
                self._producer.poll(0.01)
            self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value = message.value()
            assert value is not None
            self.acknowledged.append(number_in(value))

    def wait_for(self, count: int) -> None:
        """Wait until so many records are acknowledged."""
        wait_until(lambda: len(self.acknowledged) >= count)

    def end(self) -> None:
        self._is_ending.set()
        self.join()
        self._producer.purge()


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def number_in(value: bytes) -> int:
    return int(value.partition(b".")[0])


def numbers(address: str) -> list[int]:
    """The numbers of all visible records."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "x", "log_level": 0})
    found = []
    with closing(consumer):
        places = [TopicPartition("t", index) for index in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(place, timeout=LIMIT_S)[1] for place in places)
        consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
        end_s = time.monotonic() + LIMIT_S
        while len(found) < left:
            assert time.monotonic() < end_s, f"{len(found)} of {left}"
            for message in consumer.consume(1_000, timeout=0.05):
                assert message.error() is None
                value = message.value()
                assert value is not None
                found.append(number_in(value))
    return found


def published(directory: Path) -> int:
    """The log position that the checkpoint calls flushed."""
    data = DataDir(OsFileSystem(), directory, Findings(lambda _: None))
    data.read_checkpoint()
    return data.checkpoint.flushed


def digest(directory: Path) -> str:
    """A number of all bytes in a directory."""
    found = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        found.update(str(path).encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    return ["--config", str(config)]


@pytest.fixture
def appliance(tmp_path: Path, arguments: list[str]) -> Iterator[ApplianceProcess]:
    process = ApplianceProcess(tmp_path / "data", arguments)
    process.start()
    yield process
    process.close()


@pytest.fixture
def latermq(appliance: ApplianceProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    shell = CommandLine(monkeypatch, appliance.kafka, appliance.admin)
    shell.ok(f"topics create t --partitions {PARTITIONS}")
    return shell


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system, to which there are no hard links."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    directory = Path(tempfile.mkdtemp(dir=memory))
    yield directory
    shutil.rmtree(directory)


def restored_process(root: Path, arguments: list[str]) -> ApplianceProcess:
    process = ApplianceProcess(root, arguments)
    process.start()
    return process


def test_a_backup_under_load_has_what_was_acknowledged_each_once(
    latermq: CommandLine, appliance: ApplianceProcess, tmp_path: Path, arguments: list[str]
) -> None:
    latermq.ok("send t 1000000000. --delay 1h --id later --partition 0")
    load = Load(appliance.kafka)
    load.start()
    load.wait_for(6_000)
    # Segments are linked below the position that the checkpoint has, within a second.
    wait_until(lambda: published(appliance.data_dir) >= SEGMENT_SIZE)
    acknowledged = load.acknowledged[:]
    backup = tmp_path / "backup"
    made = latermq.ok(f"backup {backup} --json").json()
    assert (made["faults"], made["linked_bytes"] > 0) == (0, True)
    before = digest(backup)
    load.wait_for(len(load.acknowledged) + 3_000)
    assert digest(backup) == before
    second = latermq.ok(f"backup {tmp_path}/second --base {backup} --copy --json").json()
    assert second["linked_bytes"] >= made["linked_bytes"]
    latermq.ok("snapshot create backup-left")
    third = latermq.ok(f"backup {tmp_path}/third --base {backup} --json")
    assert third.json()["linked_bytes"] >= made["linked_bytes"]
    assert "1 snapshot of earlier backups exist, backup-left first" in third.stderr
    latermq.ok("snapshot delete backup-left")
    assert latermq.ok("snapshot list --json").json() == []
    checked = latermq.ok(f"check {backup} --json").json_lines()[-1]
    assert (checked["faults"], checked["is_backup"], checked["end"]) == (0, True, made["end"])
    appliance.kill()
    load.end()
    restored_at = tmp_path / "elsewhere" / "data"
    said = latermq.ok(f"restore {backup} --data-dir {restored_at} --json").json()
    assert said["is_done"]
    process = restored_process(restored_at, arguments)
    try:
        assert process.await_logged("broker of the backup").count("broker of the backup") == 1
        wanted = set(acknowledged)
        wait_until(lambda: wanted <= set(numbers(process.kafka)))
        found = Counter(numbers(process.kafka))
        assert set(found.values()) == {1}
        assert max(found) < load.sent
        status, timer = process.get_json("/api/v1/topics/t/timers/later")
        assert (status, timer["state"]) == (200, "pending")
        status, state = process.get_json("/api/v1/status")
        assert state["cluster_id"] == made["cluster_id"]
        assert state["epoch"] >= said["epoch"] > made["epoch"]
        more = Load(process.kafka)
        more.start()
        more.wait_for(200)
        more.end()
        assert digest(backup) == before
        process.stop()
    finally:
        process.close()
    checked = latermq.ok(f"check {restored_at} --json").json_lines()[-1]
    assert checked["faults"] == 0


def test_a_stopped_broker_is_moved_to_another_disk(
    latermq: CommandLine, appliance: ApplianceProcess, other_disk: Path, arguments: list[str]
) -> None:
    latermq.ok("send t 1. 2. 3. --partition 0")
    latermq.ok("send t 4. --delay 1s --partition 1")
    refused = latermq.fails(f"backup {other_disk}/b --data-dir {appliance.data_dir}", 2)
    assert f"a broker (pid {appliance.pid}) is running" in refused
    refused = latermq.fails(f"backup {appliance.data_dir}/b", 2)
    assert "is inside" in refused
    appliance.stop()
    refused = latermq.fails(f"backup {other_disk}/b", 2)
    assert "give --data-dir" in refused
    said = latermq.ok(f"backup {other_disk}/b --data-dir {appliance.data_dir}").lines
    assert said[0].startswith(f"made and checked {other_disk}/b: the log of cluster ")
    assert len(said) == 1, "nothing is linked"
    dumped = latermq.ok(f"dump {other_disk}/b records --json").json_lines()
    assert [each["value"] for each in dumped] == ["1.", "2.", "3."]
    new = other_disk / "data"
    plan = latermq.ok(f"restore {other_disk}/b --data-dir {new} --dry-run").lines
    assert plan[-1] == "nothing was restored: --dry-run"
    assert not new.exists()
    assert any(line.startswith("1 delayed record pending") for line in plan)
    assert any(line.split() == ["t", "0", "0", "3", "0"] for line in plan)
    latermq.ok(f"restore {other_disk}/b --data-dir {new}")
    process = restored_process(new, arguments)
    try:
        wait_until(lambda: sorted(numbers(process.kafka)) == [1, 2, 3, 4])
        refused = latermq.fails(f"restore {other_disk}/b --data-dir {new}", 2)
        assert "a broker is running" in refused
        process.stop()
    finally:
        process.close()


def test_a_directory_that_is_not_here_is_named(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = ApplianceProcess(Path("data"), arguments)
    try:
        process.start()
        shell = CommandLine(monkeypatch, process.kafka, process.admin)
        shell.ok("backup one")
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        said = shell.fails("backup two", 2)
        assert "is not here: run the command on the machine of the broker" in said
        assert "in the directory in which it was started" in said
        assert shell.ok("snapshot list --json").json() == []
    finally:
        monkeypatch.chdir(tmp_path)
        process.close()


def test_a_backup_that_is_asked_to_end_leaves_nothing(
    latermq: CommandLine,
    appliance: ApplianceProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latermq.ok("send t 1. --partition 0")
    backup = tmp_path / "backup"
    with monkeypatch.context() as patched:
        patched.setattr(Meter, "show", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert latermq.run(f"backup {backup}").status == 130
        assert not backup.exists()
        assert latermq.ok("snapshot list --json").json() == []
    latermq.ok(f"backup {backup}")
    with monkeypatch.context() as patched:
        patched.setattr(Meter, "show", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert latermq.run(f"restore {backup} --data-dir {tmp_path}/new").status == 130
        assert not (tmp_path / "new").exists()
    latermq.ok(f"restore {backup} --data-dir {tmp_path}/new")


def test_no_broker_serves_a_backup_and_a_damaged_one_is_not_restored(
    latermq: CommandLine, appliance: ApplianceProcess, tmp_path: Path
) -> None:
    latermq.ok("send t 1. --partition 0")
    backup, new = tmp_path / "backup", tmp_path / "new"
    latermq.ok(f"backup {backup} --copy")
    complaint = latermq.fails(f"serve --data-dir {backup} --listen 127.0.0.1:0", 74)
    assert "latermq restore" in complaint
    (segment,) = (backup / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size - 100)
        file.write(b"x" * 50)
    outcome: Any = latermq.run(f"restore {backup} --data-dir {new}")
    assert outcome.status == 1
    assert "--accept-loss" in outcome.lines[-1]
    assert not new.exists()
    assert latermq.run(f"check {backup}").status == 1
    latermq.ok(f"restore {backup} --data-dir {new} --accept-loss")
    assert "not a complete backup" in latermq.fails(f"restore {tmp_path} --data-dir {new}-2", 2)
