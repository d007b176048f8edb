"""The broker is killed under load, again and again, and keeps every promise.

A real broker process, real clients, SIGKILL at random moments, now and then while the broker is
still recovering from the one before: producers of every kind, an idempotent one among them, and a
consumer group that commits. `make soak ROUNDS=n` does the same for longer. A failure
prints the seed and where the data directory and the history are; `LATERMQ_SEED` repeats the load,
though not the moments, which the machine chooses.
"""

import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.harness.appliance_process import ApplianceProcess
from tests.support.oracles.history_events import Restarted
from tests.system.kill9.rounds import CONFIG, check_through
from tests.system.kill9.workload import now_ms

# Not among pytest's temporary directories, which the next runs delete.
KEPT_DIR: Final = Path(__file__).resolve().parents[3] / "build" / "kill9"

KILL_DURING_START_SHARE: Final = 0.25


@pytest.mark.parametrize(("flush", "share"), [("sync", 1.0), ("async", 0.5)])
def test_nothing_is_lost_doubled_or_early_when_the_broker_is_killed(
    flush: str, share: float, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Acknowledged messages survive any number of kills, exactly once, in time and in order.

    And so do acknowledged commits: a group goes on where it stood, and misses nothing. With either
    flush mode: only a power cut may take what was not flushed.
    """
    seed = int(os.environ.get("LATERMQ_SEED") or random.SystemRandom().randrange(2**32))
    count = max(1, int(rounds * share))
    root = KEPT_DIR / f"{flush}-{seed}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    config = root / "latermq.toml"
    config.write_text(CONFIG)
    appliance = ApplianceProcess(root / "data", ["--config", str(config), "--flush", flush])
    reported = check_through(kill_and_restart, appliance, count, seed, root)
    shutil.rmtree(root)
    with capsys.disabled():
        sys.stdout.write(f"\nkill -9, {flush} flush, seed {seed}: {reported}\n")


def kill_and_restart(appliance: ApplianceProcess, rng: random.Random) -> Restarted:
    killed_ms = now_ms()
    appliance.kill()
    while rng.random() < KILL_DURING_START_SHARE:
        appliance.spawn()
        time.sleep(rng.uniform(0.0, 1.5 * min(appliance.start_times_s)))
        appliance.kill()
    appliance.start()
    return Restarted(killed_ms, now_ms())
