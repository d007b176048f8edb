"""One run of one workload against one broker: start, warm, load, and what it cost.

CPU seconds are user and system time of a whole process, all threads, without the work of kernel
threads on its behalf.
"""

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from perf.brokers import KAFKA, KAFKA_SYNC, Brokers, Endpoint
from perf.figures import Sample
from perf.machine import (
    REPOSITORY,
    BenchError,
    anonymous_mb,
    await_idle,
    cpu_s,
    ended_children_cpu_s,
    machine_cpu_s,
    stolen_cpu_s,
)
from perf.memory import reclaim_cpu_s
from perf.workloads import FILE_PLACE, MIB, Step, Workload

CLIENT_LIMIT_S: Final = 330.0  # above the client's own TIME_LIMIT_S, whose message explains more

# Longer than the flush interval of async (500 ms), so that a run pays for its last flush.
FLUSH_WAIT_S: Final = 0.8

# A run that writes less finds enough warm memory.
WARM_BYTES_MIN: Final = 50_000_000


def scale(workload: Workload, broker: str, share: float) -> Workload:
    """Return the workload with `share` of its records, less for Kafka where it is slow."""
    if broker in {KAFKA, KAFKA_SYNC}:
        share *= workload.kafka_share
    steps = [replace(s, count=max(1, int(s.count * share))) for s in workload.prepare]
    step = replace(workload.step, count=max(1, int(workload.step.count * share)))
    return replace(workload, step=step, prepare=tuple(steps))


def run_workload(brokers: Brokers, client: Path, workload: Workload, broker: str) -> Sample:
    """Measure once, with a broker set up for the workload.

    Raises:
        BenchError: broker or client failed; the message holds their output.
    """
    if not workload.awaits_idle:
        _warm(brokers, (*workload.prepare, workload.step))
    with brokers.serve(broker, workload.partition_count) as endpoint:
        for step in workload.prepare:
            run_clients(endpoint, client, workload, step)
        if workload.awaits_idle:
            if endpoint.pid:
                await_idle(endpoint.pid)
            if endpoint.admin and workload.prepare:
                await_indexed(endpoint.admin)
            # As late as possible: the host reclaims what is free.
            _warm(brokers, (workload.step,))
            if workload.prepare:
                touch_log(endpoint.directory)
        return _measure(endpoint, client, workload)


def await_indexed(admin: str, limit_s: float = 60.0) -> None:
    """Wait until a broker has indexed the keys of what was sent, which it postpones.

    That takes less than what counts as idle, but some run would pay for it. An older broker may
    have no such index.
    """
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(f"http://{admin}/metrics") as answer:
            lag_bytes = metric_in(answer.read().decode(), "latermq_key_index_lag_bytes")
        if not lag_bytes:
            return
        time.sleep(0.2)


def touch_log(directory: Path) -> int:
    """Read the log of a broker in `directory`, if there is one, so that it is in the page cache.

    Returns the number of bytes.

    A host that wants memory back takes what nobody used for some seconds, and waiting for the index
    takes longer than that.
    """
    size = 0
    for segment in sorted((directory / "data" / "commitlog").glob("*")):
        with segment.open("rb", buffering=0) as file:
            while some := file.read(MIB):
                size += len(some)
    return size


def metric_in(page: str, name: str) -> float | None:
    """Return the value of a metric without labels on a page of metrics; None if it has none."""
    values = [line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(values[0]) if values else None


def _warm(brokers: Brokers, steps: Sequence[Step]) -> None:
    """Warm memory for what the steps are about to write."""
    if sum(step.disk_bytes for step in steps) >= WARM_BYTES_MIN:
        brokers.warm()


def _measure(endpoint: Endpoint, client: Path, workload: Workload) -> Sample:
    own, pid = os.getpid(), endpoint.pid
    broker_begin_s = cpu_s(pid) if pid else 0.0
    machine_begin_s, own_begin_s = machine_cpu_s(), cpu_s(own) + ended_children_cpu_s()
    reclaim_begin_s, stolen_begin_s = reclaim_cpu_s(), stolen_cpu_s()
    begin_s = time.monotonic()
    said = run_clients(endpoint, client, workload, workload.step)
    if workload.table.has_cpu:
        time.sleep(FLUSH_WAIT_S)
    wall_s = time.monotonic() - begin_s
    broker_cpu_s = cpu_s(pid) - broker_begin_s if pid else 0.0
    ours_s = broker_cpu_s + cpu_s(own) + ended_children_cpu_s() - own_begin_s
    ours_s += reclaim_cpu_s() - reclaim_begin_s
    others_s = max(0.0, machine_cpu_s() - machine_begin_s - ours_s)
    sample = sample_of(said, broker_cpu_s)
    sample["other_cpu_share"] = others_s / wall_s
    sample["stolen_share"] = (stolen_cpu_s() - stolen_begin_s) / wall_s
    if pid:
        sample["broker_anonymous_mb"] = anonymous_mb(pid)
    else:
        del sample["broker_cpu_s_per_gb"], sample["broker_cpu_us_per_message"]
    return sample


def sample_of(said: Sequence[dict[str, float]], broker_cpu_s: float) -> dict[str, float]:
    """Return the metrics of clients that ran side by side, given what each printed.

    Rates span the time from the first start to the last end. If a client measured the broker's CPU
    time over the part that counts, that replaces `broker_cpu_s`.
    """
    count = sum(each["messages"] for each in said)
    size_gb = sum(each["bytes"] for each in said) / 1e9
    seconds = max(each["end_s"] for each in said) - min(each["begin_s"] for each in said)
    spent_s = sum(each.get("broker_cpu_s", 0.0) for each in said) or broker_cpu_s
    sample = {
        "messages_per_s": count / seconds,
        "mb_per_s": size_gb * 1e3 / seconds,
        "broker_cpu_s_per_gb": spent_s / size_gb,
        "broker_cpu_us_per_message": spent_s * 1e6 / count,
        "client_cpu_s_per_gb": sum(each["cpu_s"] for each in said) / size_gb,
    }
    for name, value in said[0].items():
        if name.endswith("_ms") or name == "load_mb_per_s":
            sample[name] = value
    return sample


def run_clients(
    endpoint: Endpoint, client: Path, workload: Workload, step: Step
) -> list[dict[str, float]]:
    """Run the clients of a step side by side; return what each printed.

    Raises:
        BenchError: one failed, or took longer than CLIENT_LIMIT_S.
    """
    command = _command(endpoint, client, workload, step)
    clients = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        for _ in range(step.client_count)
    ]
    said = []
    deadline_s = time.monotonic() + CLIENT_LIMIT_S
    try:
        for each in clients:
            try:
                output, errors = each.communicate(timeout=deadline_s - time.monotonic())
            except subprocess.TimeoutExpired:
                raise BenchError(f"{step.mode}: no end within {CLIENT_LIMIT_S:.0f} s") from None
            if each.returncode != 0:
                raise BenchError(f"{errors.strip()} ({shlex.join(command[1:])})")
            said.append(json.loads(output))
    finally:
        for each in clients:
            each.kill()
            each.wait()
    return said


def _command(endpoint: Endpoint, client: Path, workload: Workload, step: Step) -> list[str]:
    program = [sys.executable, "-m", "perf.latency"] if step.is_python else [str(client)]
    file = str(endpoint.directory / "file")
    command = [*program, step.mode, "--count", str(step.count)]
    command += [file if option == FILE_PLACE else option for option in step.options]
    if step.size_bytes:
        command += ["--size", str(step.size_bytes)]
    if endpoint.pid:
        command += ["--brokers", endpoint.address, "--topic", endpoint.topic]
        command += ["--partitions", str(workload.partition_count), "--acks", endpoint.acks]
    if step.mode == "burst":
        command += ["--broker-pid", str(endpoint.pid)]
    if step.mode == "lateness":
        command += ["--load-topic", endpoint.load_topic]
    return command
