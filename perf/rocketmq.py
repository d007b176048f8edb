"""Apache RocketMQ on one node, from its Maven artifacts (rocketmq_pom.xml), for `bench-rivals`.

A name server, a broker with its timers (timerWheelEnable), and its own Java client, which
RocketMqClient.java makes a program of lines.
"""

import contextlib
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from perf.machine import BUILD_DIR, REPOSITORY, BenchError
from perf.maven import copy_jars
from perf.rival_servers import LIMIT_S, Rival, Taken, free_port, now_us

VERSION: Final = "5.4.0"
_POM: Final = REPOSITORY / "perf" / "rocketmq_pom.xml"
_JARS: Final = BUILD_DIR / "rocketmq"
_CLIENT: Final = REPOSITORY / "perf" / "RocketMqClient.java"
_CONNECT_S: Final = 20.0

# What its start script gives the JVM, with a heap for a machine of this size.
_OPENED: Final = ("sun.nio.ch", "java.lang", "java.nio", "jdk.internal.ref")
_JAVA: Final = (
    "java",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=4g",
    *(f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-cp",
    f"{_JARS}/*",
)

# With the last one a JVM that warms up refuses nothing: its default is 200 ms.
_BROKER_FILE: Final = """\
brokerName=bench
brokerIP1=127.0.0.1
listenPort={port}
namesrvAddr={name_server}
storePathRootDir={place}/store
storePathCommitLog={place}/store/commitlog
flushDiskType={flush}
timerWheelEnable=true
waitTimeMillsInSendQueue=60000
"""


class RocketMq(Rival):
    """Its timers have a precision of one second; its flush mode is its default."""

    name = f"RocketMQ {VERSION}, async flush"
    flush = "ASYNC_FLUSH"

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self._name_server_port = free_port()
        self._name_server: subprocess.Popen[bytes] | None = None
        self._client: subprocess.Popen[str] | None = None
        self._said: dict[str, SimpleQueue[str]] = defaultdict(SimpleQueue)
        self._topic = ""

    @classmethod
    def missing(cls) -> list[str]:
        return [each for each in ("java", "javac", "mvn") if shutil.which(each) is None]

    def start(self) -> None:
        copy_jars(_POM, _JARS, f"rocketmq-broker-{VERSION}.jar")
        (self._place / "conf").mkdir(exist_ok=True)
        file = self._place / "namesrv.conf"
        file.write_text(f"listenPort={self._name_server_port}\n")
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        with (self._place / "namesrv.log").open("ab") as log:
            self._name_server = subprocess.Popen(
                [*_JAVA, main, "-c", str(file)], stdout=log, stderr=log, env=self._environment()
            )
        super().start()

    def kill(self) -> None:
        for process in (self._client, self._name_server):
            if process is not None:
                process.kill()
                process.wait()
        self._client = self._name_server = None
        super().kill()

    def _environment(self) -> dict[str, str]:
        home = str(self._place)
        return {"ROCKETMQ_HOME": home, "HOME": home, "PATH": "/usr/bin:/bin"}

    def _command(self) -> list[str]:
        file = self._place / "broker.conf"
        file.write_text(
            _BROKER_FILE.format(
                port=self._port,
                name_server=f"127.0.0.1:{self._name_server_port}",
                place=self._place,
                flush=self.flush,
            )
        )
        command = [*_JAVA, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(file)]
        return ["env", "-i", *(f"{k}={v}" for k, v in self._environment().items()), *command]

    def _connect(self) -> None:
        if self._client is not None:
            self._client.kill()
            self._client.wait()
        addresses = (f"127.0.0.1:{self._name_server_port}", f"127.0.0.1:{self._port}")
        with (self._place / "client.log").open("ab") as log:
            self._client = subprocess.Popen(
                [*_JAVA, str(_CLIENT), *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(),
            )
        self._said = defaultdict(SimpleQueue)
        threading.Thread(target=self._listen, args=(self._client, self._said), daemon=True).start()
        self._answer("ready", _CONNECT_S)

    def _listen(self, client: "subprocess.Popen[str]", said: "dict[str, SimpleQueue[str]]") -> None:
        assert client.stdout is not None
        with contextlib.suppress(ValueError):  # it is closed
            for line in client.stdout:
                word, _, rest = line.strip().partition(" ")
                said[word].put(rest)

    def _say(self, *lines: str) -> None:
        assert self._client is not None
        assert self._client.stdin is not None
        self._client.stdin.write("\n".join((*lines, "")))
        self._client.stdin.flush()

    def _answer(self, word: str, limit_s: float = LIMIT_S) -> str:
        try:
            return self._said[word].get(timeout=limit_s)
        except Empty:
            raise BenchError(f"its client does not say {word!r}: see {self._place}") from None

    def prepare(self) -> None:
        self._topic = f"t{now_us()}"
        self._say(f"topic {self._topic}")
        self._answer("done")

    def schedule(self, dues_us: Sequence[int]) -> None:
        self._say(f"schedule {self._topic} {len(dues_us)}", *map(str, dues_us))
        count = int(self._answer("scheduled"))
        if count < len(dues_us):
            said = (self._place / "client.log").read_text()[-300:]
            raise BenchError(f"{len(dues_us) - count} are not acknowledged: {said}")

    def take(self, count: int, taken: Taken, stop: threading.Event) -> None:
        self._say(f"take {self._topic}")
        self._answer("done")
        while len(taken.late_us) < count and not stop.is_set():
            with contextlib.suppress(Empty):
                due_us, at_us = map(int, self._said["got"].get(timeout=1).split())
                taken.last_us = at_us
                taken.late_us.append(at_us - due_us)

    def pending(self) -> int:
        self._say("pending")
        return int(self._answer("pending"))


class RocketMqSync(RocketMq):
    """Each acknowledgement waits for the disk."""

    name = f"RocketMQ {VERSION}, sync flush"
    flush = "SYNC_FLUSH"
