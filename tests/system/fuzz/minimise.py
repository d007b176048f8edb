"""Chooses the seeds of a corpus.

    python -m tests.system.fuzz.sanitized tests.system.fuzz.minimise FROM... TO

It runs all cases of the corpora FROM, from the smallest to the largest, and writes those that reach
a new branch as the seeds of TO.
"""

import sys
from pathlib import Path
from typing import Final

from tests.system.fuzz.branch_trace import BranchTrace
from tests.system.fuzz.cases import load_corpus, save_seeds
from tests.system.fuzz.harness import run_case

CASE_SIZE_MAX_BYTES: Final = 6_000
TOTAL_SIZE_MAX_BYTES: Final = 300_000
"""Of the seeds together, so that later findings have room too."""


def main() -> int:
    """Write the seeds."""
    *sources, target = map(Path, sys.argv[1:])
    trace = BranchTrace()
    cases = {
        f"{source.name}-{name}": case
        for source in sources
        for name, case in load_corpus(source).items()
    }
    total = 0
    kept = []
    for _, case in sorted(cases.items(), key=lambda item: (item[1].size, item[0])):
        if case.size > CASE_SIZE_MAX_BYTES:
            break
        trace.begin()
        run_case(case)
        text = case.text()
        if trace.end() and total + len(text) <= TOTAL_SIZE_MAX_BYTES:
            total += len(text)
            kept.append(case)
    target.mkdir(parents=True, exist_ok=True)
    save_seeds(target, kept)
    sys.stderr.write(f"{len(cases)} cases, {total} bytes kept, {trace.total} branches\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
