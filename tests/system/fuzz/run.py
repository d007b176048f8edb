"""Fuzzes the broker in this process: `python -m tests.system.fuzz.run --help`.

First every case of the corpus, then cases made from a seed. With `--guided` those that reach a new
branch of the sanitized core are kept and changed further; what that finds depends on where the
loader put the code, so without it a seed repeats everything.

The case that runs is kept in a file, so that it is known if the process is killed.
"""

import argparse
import gc
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.system.fuzz.branch_trace import BranchTrace
from tests.system.fuzz.cases import Case, load_corpus, parse_case
from tests.system.fuzz.generate import CaseMaker
from tests.system.fuzz.harness import run_case

CORPUS: Final = Path(__file__).parent / "corpus"

SHRINK_SECONDS: Final = 60
"""How long a failing case is made smaller at most."""

POOL_MAX: Final = 5_000


class Fuzzer:
    """Runs cases and keeps what they reach.

    Args:
        running: where the case that runs is kept.
        trace: what the sanitized core reaches; None without it.
    """

    def __init__(self, running: Path, trace: BranchTrace | None) -> None:
        self.count = 0
        self._running = running
        self._trace = trace
        # What there is now stays: then it costs little to let go of each broker after its case.
        gc.freeze()

    def run(self, case: Case) -> int:
        """Run a case; return how much only it reached. Raises what the harness raises."""
        self.count += 1
        if self.count % 10 == 0:
            gc.collect()
        self._running.write_text(case.text())
        if self._trace is None:
            run_case(case)
            return 0
        self._trace.begin()
        run_case(case)
        return self._trace.end()

    @property
    def reached(self) -> int:
        """Branches of the sanitized core in all."""
        return 0 if self._trace is None else self._trace.total


def error_of(case: Case) -> str | None:
    """What goes wrong in a case, in words that two runs of it share."""
    try:
        run_case(case)
    except Exception as error:  # noqa: BLE001 (any is a finding)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}, line {where.lineno}"
    return None


def shrink(case: Case, is_failing: Callable[[Case], bool]) -> Case:
    """Leave steps out, and bytes at the end of what is sent, as long as it fails."""
    until = time.monotonic() + SHRINK_SECONDS
    size = len(case.steps)
    while size >= 1 and time.monotonic() < until:
        start = 0
        while start < len(case.steps):
            steps = case.steps[:start] + case.steps[start + size :]
            smaller = Case(steps, case.is_sync)
            if is_failing(smaller):
                case = smaller
            else:
                start += size
        size //= 2
    return case


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="stop after so many made ones")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--guided", action="store_true", help="change what reached new branches")
    parser.add_argument("--save", type=Path, help="where --guided keeps cases that do")
    parser.add_argument("--running", type=Path, default=Path("build") / "fuzz-running.case")
    parser.add_argument("--case", type=Path, help="run this one alone")
    return parser.parse_args()


def fuzz(fuzzer: Fuzzer, chosen: argparse.Namespace) -> None:
    """Run the corpus, then made cases. Raises what the harness raises."""
    pool = []
    for case in load_corpus(chosen.corpus).values():
        fuzzer.run(case)
        pool.append(case)
    from_corpus = fuzzer.count
    until = time.monotonic() + chosen.seconds
    while True:
        made = fuzzer.count - from_corpus
        if made == chosen.cases or (chosen.seconds and time.monotonic() >= until):
            return
        rng = random.Random(f"{chosen.seed} {made}")
        maker = CaseMaker(rng)
        is_change = pool and rng.random() < (0.7 if chosen.guided else 0.4)
        case = maker.mutate(rng.choice(pool), pool) if is_change else maker.make()
        if fuzzer.run(case) and chosen.guided and len(pool) < POOL_MAX:
            pool.append(case)
            if chosen.save:
                chosen.save.mkdir(parents=True, exist_ok=True)
                (chosen.save / f"{chosen.seed}-{made}.case").write_text(case.text())
        if made % 1000 == 999:
            say(f"{made + 1} cases, {len(pool)} in the pool, {fuzzer.reached} branches")


def say(text: str) -> None:
    """Report progress."""
    # The most that was ever in memory; that of getrusage begins with the parent's.
    status = Path("/proc/self/status").read_text()
    memory = int(status.partition("VmHWM:")[2].split()[0]) >> 10
    sys.stderr.write(f"fuzz: {text}, {memory} MiB\n")


def main() -> int:
    """Fuzz; 1 if something was found."""
    chosen = options()
    trace = BranchTrace() if "branch_trace" in os.environ.get("LD_PRELOAD", "") else None
    chosen.running.parent.mkdir(parents=True, exist_ok=True)
    fuzzer = Fuzzer(chosen.running, trace)
    say(f"seed {chosen.seed}")
    try:
        if chosen.case:
            fuzzer.run(parse_case(chosen.case.read_text()))
        else:
            fuzz(fuzzer, chosen)
    except Exception:  # noqa: BLE001 (any is a finding)
        traceback.print_exc()
        found = parse_case(chosen.running.read_text())
        error = error_of(found)
        small = shrink(found, lambda case: error_of(case) == error) if error else found
        chosen.running.write_text(small.text())
        say(f"{error or 'gone when run again'}: {chosen.running}, {len(small.steps)} steps")
        return 1
    say(f"{fuzzer.count} cases, {fuzzer.reached} branches reached, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
