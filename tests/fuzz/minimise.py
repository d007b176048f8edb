"""Chooses a small corpus: `python -m tests.fuzz.sanitized tests.fuzz.minimise FROM... TO`.

From the smallest case to the largest, what reaches nothing new is left out.
"""

import sys
from pathlib import Path
from typing import Final

from tests.fuzz.branch_trace import BranchTrace
from tests.fuzz.cases import load_corpus
from tests.fuzz.harness import run_case

CASE_SIZE_MAX_BYTES: Final = 6_000
TOTAL_SIZE_MAX_BYTES: Final = 300_000
"""Of the files together; what is found later needs room too."""


def main() -> int:
    """Copy what is worth it."""
    *sources, target = map(Path, sys.argv[1:])
    trace = BranchTrace()
    cases = {
        f"{source.name}-{name}": case
        for source in sources
        for name, case in load_corpus(source).items()
    }
    target.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, case in sorted(cases.items(), key=lambda item: (item[1].size, item[0])):
        if case.size > CASE_SIZE_MAX_BYTES:
            break
        trace.begin()
        run_case(case)
        text = case.text()
        if trace.end() and total + len(text) <= TOTAL_SIZE_MAX_BYTES:
            total += len(text)
            (target / name).write_text(text)
    sys.stderr.write(f"{len(cases)} cases, {total} bytes kept, {trace.total} branches\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
