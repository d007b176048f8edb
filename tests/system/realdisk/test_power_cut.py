"""The power fails under load, again and again: with sync flush no promise is broken.

A real broker with real clients on a real file system, which is cut off from its disk at random
moments. In half of the rounds the broker is frozen just before, as when the whole machine stops;
in the others it goes on for a moment with a disk that refuses everything, must acknowledge nothing
in that time, and ends by itself. `make soak` has more rounds.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli import EXIT_STORAGE
from appliance.units import MIB
from tests.support.disks.loop_disk import DiskRefusedError, LoopDisk
from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.oracles.history_events import Restarted
from tests.system.kill9.rounds import CONFIG, check_through
from tests.system.kill9.workload import now_ms
from tests.system.realdisk.load import Fill, read_all

BOUND_MS = 500
SMALL_BYTES = 200


def test_nothing_acknowledged_or_seen_is_gone_after_power_cuts(
    make_loop_disk: Callable[..., LoopDisk],
    tmp_path: Path,
    power_cuts: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    disk = make_loop_disk(size_bytes=(256 + 8 * power_cuts) * MIB)
    config = tmp_path / "latermq.toml"
    config.write_text(CONFIG)
    arguments = ["--config", str(config), "--flush", "sync"]
    appliance = ApplianceProcess(disk.path / "data", arguments, tmp_path / "stderr")

    def cut_power(appliance: ApplianceProcess, rng: random.Random) -> Restarted:
        cut_ms = now_ms()
        is_frozen = rng.random() < 0.5
        if is_frozen:
            appliance.send_signal(signal.SIGSTOP)
        try:
            disk.cut_power()
        except DiskRefusedError as error:
            pytest.skip(str(error))
        if is_frozen:
            appliance.kill()
        else:
            status = appliance.wait()
            assert status == EXIT_STORAGE, (status, appliance.said())
        disk.restore_power()
        appliance.start()
        return Restarted(cut_ms, now_ms())

    reported = check_through(cut_power, appliance, power_cuts, seed, tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\npower cuts, sync flush, seed {seed}: {reported}\n")


def test_async_flush_loses_no_more_than_the_last_moments(
    make_loop_disk: Callable[..., LoopDisk], tmp_path: Path, power_cuts: int
) -> None:
    """What was acknowledged longer ago than the flush bound is there after a power cut.

    With a share of the processor only now and then, broker and client both stall for longer
    than that; for how long shows how long the client had to wait to send on.
    """
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    rng = random.Random(seed)
    disk = make_loop_disk(size_bytes=(256 + 32 * power_cuts) * MIB)
    config = tmp_path / "latermq.toml"
    config.write_text(f"{CONFIG}[flush]\nmode = 'async'\nbound_ms = {BOUND_MS}\n")
    appliance = ApplianceProcess(disk.path / "data", ["--config", str(config)], tmp_path / "stderr")
    lost = 0
    try:
        appliance.start()
        for _ in range(power_cuts):
            fill = Fill(appliance.kafka)
            end_s = time.monotonic() + rng.uniform(2, 4) * BOUND_MS / 1000
            sent_s, pause_s = time.monotonic(), 0.0
            while sent_s < end_s:
                fill.send(SMALL_BYTES, pause_s=0.001)
                pause_s = max(pause_s, time.monotonic() - sent_s)
                sent_s = time.monotonic()
            cut_s = time.monotonic()
            appliance.send_signal(signal.SIGSTOP)
            try:
                disk.cut_power()
            except DiskRefusedError as error:
                pytest.skip(str(error))
            appliance.kill()
            fill.finish()
            disk.restore_power()
            appliance.start()
            served = read_all(appliance.kafka)
            for offset, at_s in fill.acknowledged_at_s.items():
                if offset < len(served):
                    assert served[offset] == fill.acknowledged[offset], f"seed {seed}"
                else:
                    lost += 1
                    age_ms = (cut_s - at_s) * 1000
                    limit_ms = BOUND_MS + 1000 * pause_s
                    assert age_ms <= limit_ms, (
                        f"{offset} was {age_ms:.0f} ms old, {limit_ms:.0f} at most; seed {seed}"
                    )
        appliance.stop()
    finally:
        appliance.close()
    assert lost, "nothing was lost at all: it was no power cut"
