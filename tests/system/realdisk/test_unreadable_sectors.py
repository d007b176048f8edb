"""Single sectors that the disk cannot read: no start and no command ends by a signal.

Two sectors in the middle of the segment that a start replays: the first cuts the search after a
fault, the second the search for flushed marks. What touches them is lost and named, all else is
kept. Once the sectors can be read again, all is as it was.
"""

import base64
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from appliance.units import MIB
from tests.support.disks.bad_disk import BLOCK_SIZE, BadDisk
from tests.support.harness.appliance_process import ApplianceProcess, latermq_command
from tests.system.kill9.rounds import CONFIG as SMALL
from tests.system.realdisk.load import CLIENT, LIMIT_S, TOPIC, Fill

SECTORS: Final = (2 * MIB, 5 * MIB)
RECORDS: Final = 400
WHY: Final = "cannot be read: Input/output error"

CONFIG: Final = SMALL.replace("2097152", f"{16 * MIB}")

DAMAGE: Final = re.compile(r"(\S+) is damaged at byte (\d+), (\d+) bytes: (.*)")


@dataclass(frozen=True)
class DamageScenario:
    """A killed broker whose log has sectors that can be spoiled, and what it acknowledged."""

    disk: BadDisk
    appliance: ApplianceProcess
    config: Path
    acknowledged: dict[int, bytes]

    @property
    def segment(self) -> Path:
        return self.disk.path / ("0" * 20)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the data directory; a signal shows as a negative status."""
        name, *rest = arguments
        command = [latermq_command(), name, str(self.appliance.data_dir), *rest]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)

    def reported_at_start(self) -> list[tuple[str, int, int, str]]:
        """The damage that the last start reported: file, offset, size, fault."""
        text = self.appliance.stderr_path.read_text()
        last = text[text.rindex("recovered after") :] if "recovered after" in text else ""
        before = text[: len(text) - len(last)].rpartition("recovered after")[2]
        found = [*DAMAGE.finditer(before), *DAMAGE.finditer(last)]
        return [(each[1], int(each[2]), int(each[3]), each[4].strip()) for each in found]


def make_scene(make_bad_disk: Callable[..., BadDisk], tmp_path: Path) -> DamageScenario:
    data_dir = tmp_path / "data"
    disk = make_bad_disk(data_dir / "commitlog", size_bytes=64 * MIB)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG)
    appliance = ApplianceProcess(data_dir, ["--config", str(config)], tmp_path / "stderr")
    appliance.start()
    fill = Fill(appliance.kafka)
    for _ in range(RECORDS):
        fill.send()
    fill.finish()
    appliance.kill()
    assert len(fill.acknowledged) == RECORDS
    scenario = DamageScenario(disk, appliance, config, fill.acknowledged)
    for offset in SECTORS:
        disk.move_to_edge(scenario.segment, offset)
    return scenario


def read_kept(address: str) -> dict[int, bytes]:
    """Return offset and value of each record of the partition that can be read."""
    settings = {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(
        {**settings, "auto.offset.reset": "error", "enable.partition.eof": True, **CLIENT}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: dict[int, bytes] = {}
        while True:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"nothing came after {max(values, default=-1)}"
            if message.error() is not None:
                return values
            offset = message.offset()
            assert offset is not None
            values[offset] = message.value() or b""
    finally:
        consumer.close()


def kept_by(scenario: DamageScenario) -> dict[int, bytes]:
    """Offset and value of each visible record of the log that a running broker has by now."""
    dumped = scenario.run("dump", "records", "--live", "--json", "--topic", TOPIC)
    assert dumped.returncode == 1, (dumped.returncode, dumped.stderr)
    found = [json.loads(line) for line in dumped.stdout.splitlines()]
    # What was sent is no text.
    return {
        each["offset"]: base64.b64decode(each["value"]["base64"])
        for each in found
        if "kind" in each
    }


def check_kept(scenario: DamageScenario, kept: dict[int, bytes]) -> None:
    """What is kept was acknowledged, and only what touches a sector is missing."""
    assert kept.items() <= scenario.acknowledged.items()
    lost = sorted(scenario.acknowledged.keys() - kept.keys())
    # A batch has up to four records, and a sector at most two batches.
    assert 1 <= len(lost) <= 8 * len(SECTORS), lost


def faults(checked: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in checked.stdout.splitlines()]
    return [each for each in found if each["type"] == "fault"]


def test_unreadable_sectors_are_named_and_all_else_is_kept(
    make_bad_disk: Callable[..., BadDisk], tmp_path: Path
) -> None:
    scenario = make_scene(make_bad_disk, tmp_path)
    disk, appliance = scenario.disk, scenario.appliance
    try:
        check_commands(scenario)

        # A start after the kill replays that segment.
        disk.spoil()
        appliance.start()
        places = scenario.reported_at_start()
        assert [(path, why) for path, _, _, why in places] == [(str(scenario.segment), WHY)] * 2
        for (_, offset, size, _), sector in zip(places, SECTORS, strict=True):
            assert offset < sector + BLOCK_SIZE
            assert sector < offset + size
        kept = kept_by(scenario)
        check_kept(scenario, kept)
        appliance.stop()

        # So does a rebuild, and it finds the same.
        rebuilt = scenario.run("rebuild", "--config", str(scenario.config))
        assert rebuilt.returncode in (0, 1), (rebuilt.returncode, rebuilt.stderr)
        assert rebuilt.stdout.count(WHY) + rebuilt.stderr.count(WHY) >= len(SECTORS)
        appliance.start()
        assert kept_by(scenario) == kept
        appliance.stop()

        disk.heal()
        appliance.start()
        assert read_kept(appliance.kafka).items() >= kept.items()
        appliance.stop()
        assert "Traceback" not in appliance.stderr_path.read_text()
    finally:
        appliance.close()


def check_commands(scenario: DamageScenario) -> None:
    """The commands that only look, on the bad disk and on the healed one."""
    whole = scenario.run("dump", "frames", "--json")
    assert whole.returncode == 0, whole.stderr
    scenario.disk.spoil()
    checked = scenario.run("check", "--json")
    assert checked.returncode == 1, (checked.returncode, checked.stderr)
    unreadable = [each for each in faults(checked) if each["expected"] == "bytes that can be read"]
    assert [(each["offset"], each["size"], each["found"]) for each in unreadable] == [
        (sector, BLOCK_SIZE, WHY) for sector in SECTORS
    ]
    assert all(Path(each["file"]) == scenario.segment for each in unreadable)
    assert "torn tail" not in checked.stdout
    dumped = scenario.run("dump", "frames", "--json")
    assert dumped.returncode == 1, (dumped.returncode, dumped.stderr)
    assert dumped.stdout.count(WHY) >= len(SECTORS)
    missing = set(whole.stdout.splitlines()) - set(dumped.stdout.splitlines())
    assert 1 <= len(missing) <= 2 * len(SECTORS)
    scenario.disk.heal()
    checked = scenario.run("check", "--json")
    assert (checked.returncode, faults(checked)) == (0, [])
    assert scenario.run("dump", "frames", "--json").stdout == whole.stdout
