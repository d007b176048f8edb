"""Commands in processes of their own: what is typed in two terminals, pipes, and Ctrl-C."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Final, Self

import pytest

from tests.support.docs.source_files import ROOT
from tests.support.harness.appliance_process import ApplianceProcess, latermq_command
from tests.support.harness.command_line import CommandLine

LIMIT_S: Final = 60.0

# Clients that are closed leave the two ends of their wake-up pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Typed:
    """A command in a process of its own, that runs until asked to end."""

    def __init__(self, broker: ApplianceProcess, *words: str) -> None:
        addresses = {"LATERMQ_BOOTSTRAP": broker.kafka, "LATERMQ_ADMIN": broker.admin}
        self.process = subprocess.Popen(
            [latermq_command(), *words],
            env={**os.environ, **addresses},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def read_line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def interrupt(self) -> tuple[int, bytes]:
        """Press Ctrl-C; status, and what it said on standard error."""
        self.process.send_signal(signal.SIGINT)
        # First: `communicate` closes its standard input, which ends it as well.
        self.process.wait(timeout=LIMIT_S)
        _, stderr = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, stderr


def fetch_count(broker: ApplianceProcess) -> int:
    """How often anybody has asked for records."""
    text = broker.get("/metrics")[1].decode()
    found = re.search(r'^latermq_requests_total{api="Fetch"} (\d+)', text, flags=re.MULTILINE)
    return int(found[1]) if found else 0


def check_group_of_admin_api(latermq: CommandLine, broker: ApplianceProcess, group: str) -> None:
    """The admin API reports the same of a group as a Kafka client gets."""
    status, reported = broker.get_json(f"/api/v1/groups/{group}")
    assert status == 200
    described = latermq.ok(f"groups describe {group} --json").json()
    assert reported.pop("generation") > 0
    for offset in reported["offsets"]:
        assert abs(offset.pop("committed_at") - time.time() * 1000) < 60_000
    assert reported == described
    summary = {
        "name": group,
        "state": "Stable",
        "protocol_type": "consumer",
        "member_count": 1,
    }
    assert summary in broker.get_json("/api/v1/groups")[1]["groups"]
    assert latermq.ok("status --json").json()["groups"] >= 1


def test_two_terminals(latermq: CommandLine, broker: ApplianceProcess, topic: str) -> None:
    """Records that are typed in one come out of the other at once; Ctrl-C ends without a word."""
    with (
        Typed(broker, "tail", topic, "--follow", "--group", topic, "--json") as reader,
        Typed(broker, "send", topic, "--json") as writer,
    ):
        for number in range(3):
            writer.write(b"line %d\n" % number)
            assert json.loads(reader.read_line())["value"] == f"line {number}"
        latermq.ok(f"send {topic} soon --delay 100ms")
        assert json.loads(reader.read_line())["late_ms"] >= 0
        said = latermq.fails(f"groups reset-offsets {topic} --to earliest")
        assert "has members" in said
        (member,) = latermq.ok(f"groups describe {topic} --json").json()["members"]
        assert member["host"] == "127.0.0.1"
        assert len(member["assignment"]) == 2
        assert latermq.ok(f"groups describe {topic}").lines[0].split() == ["group", topic]
        check_group_of_admin_api(latermq, broker, topic)
        assert reader.interrupt() == (130, b"")
        assert writer.interrupt() == (130, b"")
    # The member has left, and what it printed is committed.
    assert latermq.ok(f"groups describe {topic} --json").json()["state"] == "Empty"
    assert latermq.ok(f"tail {topic} --group {topic}").stdout == ""


def test_the_walk_through_of_the_readme_works(
    latermq: CommandLine, broker: ApplianceProcess
) -> None:
    """Its commands in their order; only the one with --follow runs beside them."""
    walk = (
        (ROOT / "README.md").read_text().split("in one terminal:")[1].split("The first terminal")[0]
    )
    first, following, *commands = re.findall(r"^    latermq (.*)$", walk, flags=re.MULTILINE)
    latermq.ok(first)
    fetches = fetch_count(broker)
    with Typed(broker, *shlex.split(following)) as follower:
        deadline_s = time.monotonic() + LIMIT_S
        while fetch_count(broker) == fetches:
            assert time.monotonic() < deadline_s, "it does not read"
            time.sleep(0.01)
        assert "--delay 5s" in walk
        printed = [latermq.ok(each.replace("5s", "50ms")).stdout for each in commands]
        lines = [follower.read_line().decode() for _ in range(2)]
    assert [line.split("\t")[3] for line in lines] == ["order 17 placed", "close order 17"]
    assert lines[1].rstrip().endswith("ms late")
    assert "order-18" in printed[3]
    assert "order-18: pending" in printed[4]
    assert "order-18: cancelled" in printed[5]
    assert "delayed records" in printed[6]


def test_the_other_end_of_a_pipe_may_close(
    latermq: CommandLine, broker: ApplianceProcess, topic: str
) -> None:
    latermq.ok(f"send {topic}", b"\n".join([b"x" * 1_000] * 2_000))
    with Typed(broker, "tail", topic) as reader:
        assert reader.process.stdout is not None
        reader.read_line()
        reader.process.stdout.close()
        reader.process.wait(LIMIT_S)
        assert reader.process.stderr is not None
        assert b"Traceback" not in reader.process.stderr.read()


def test_a_tail_ends_when_its_broker_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was to print all that is there, and cannot."""
    broker = ApplianceProcess(tmp_path / "data")
    try:
        broker.start()
        latermq = CommandLine(monkeypatch, broker.kafka, broker.admin)
        latermq.ok("send t", b"\n".join([b"x" * 1_000] * 10_000))
        with Typed(broker, "tail", "t") as reader:
            reader.read_line()
            broker.kill()
            # Only now is read what it has printed into the full pipe.
            stdout, stderr = reader.process.communicate(timeout=LIMIT_S)
    finally:
        broker.close()
    assert stdout.count(b"\n") < 9_999
    assert b"no broker answers" in stderr
    assert reader.process.returncode == 69


def test_an_input_that_is_no_utf8_arrives_as_it_is(
    latermq: CommandLine, broker: ApplianceProcess, topic: str, tmp_path: Path
) -> None:
    octets = bytes(range(1, 256)).replace(b"\n", b"")
    command: list[bytes] = [latermq_command().encode(), b"send", topic.encode(), octets]
    command += [b"--bootstrap", broker.kafka.encode()]
    subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL, cwd=tmp_path)
    (record,) = latermq.ok(f"tail {topic} --json").json_lines()
    assert set(record["value"]) == {"base64"}
