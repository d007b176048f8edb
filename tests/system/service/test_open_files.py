"""Clients that take all the connections there are leave the broker the files that it needs."""

import shlex
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from tests.support.harness.appliance_process import ApplianceProcess, latermq_command

FILE_LIMIT = 400


def test_connections_leave_files_for_the_store(tmp_path: Path) -> None:
    command = tmp_path / "limited"
    quoted = shlex.quote(latermq_command())
    command.write_text(f'#!/bin/sh\nulimit -n {FILE_LIMIT}\nexec {quoted} "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    appliance = ApplianceProcess(tmp_path / "data", latermq=command)
    with ExitStack() as stack:
        stack.callback(appliance.close)
        appliance.start()
        producer = Producer({"bootstrap.servers": appliance.kafka})
        acknowledged = []

        def send(topic: str) -> None:
            producer.produce(topic, b"v", on_delivery=lambda error, _: acknowledged.append(error))
            assert producer.flush(60) == 0

        send("first")
        host, port = appliance.kafka.rsplit(":", 1)
        for _ in range(FILE_LIMIT + 100):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        for number in range(20):
            send(f"topic-{number}")
        assert acknowledged == [None] * 21
        appliance.await_logged(f"{FILE_LIMIT // 2} connections are served")
        appliance.await_logged("network.connection_count_max_per_address is reached")
        appliance.stop()
