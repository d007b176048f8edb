"""Standard error is a pipe that nobody reads: clients are served as before."""

import fcntl
import os
import socket
from pathlib import Path

from confluent_kafka import Producer

from appliance.system.log_output import QUEUED_MAX_BYTES
from tests.support.harness.appliance_process import CONFIG, ApplianceProcess

CONNECTIONS = 300
"""Lines at the level of debugging are not limited: each has more than a hundred bytes of them."""


def test_a_log_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    config = tmp_path / "latermq.toml"
    config.write_text(f'{CONFIG}[process]\nlog_level = "debug"\n')
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDWR)
    assert fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4_096) < CONNECTIONS * 100 < QUEUED_MAX_BYTES
    appliance = ApplianceProcess(tmp_path / "data", ("--config", str(config)), fifo)
    try:
        appliance.start()
        host, port = appliance.kafka.rsplit(":", 1)
        for _ in range(CONNECTIONS):
            with socket.create_connection((host, int(port)), timeout=30) as bad:
                bad.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert bad.recv(1) == b""
        acknowledged = []
        producer = Producer({"bootstrap.servers": appliance.kafka})
        producer.produce("t", b"value", on_delivery=lambda error, _: acknowledged.append(error))
        assert producer.flush(30) == 0
        assert acknowledged == [None]
        assert len(os.read(pipe, 4_096)) > 3_000, "the pipe was not full"
        appliance.stop()
    finally:
        appliance.close()
        os.close(pipe)
