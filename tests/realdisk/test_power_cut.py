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
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli import EXIT_STORAGE
from appliance.units import MIB
from tests.kill9.rounds import CONFIG, check_through
from tests.kill9.workload import now_ms
from tests.support.appliance_process import ApplianceProcess
from tests.support.history_events import Restarted
from tests.support.loop_disk import DiskRefusedError, LoopDisk


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

    told = check_through(cut_power, appliance, power_cuts, seed, tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\npower cuts, sync flush, seed {seed}: {told}\n")
