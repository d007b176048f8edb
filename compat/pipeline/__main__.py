"""The entry for spark-submit, and for `python -m compat.pipeline`. Layer 5."""

import argparse
import sys
from pathlib import Path
from typing import Final

from appliance.errors import LatermqError
from compat.pipeline.session import Request, parse_every, run_pipeline

EXIT_FAILED: Final = 2


def main() -> None:
    """Read the arguments, which are those of `latermq pipeline run`, and run."""
    parser = argparse.ArgumentParser(prog="latermq pipeline run")
    parser.add_argument("--data-dir", type=Path, required=True, help="The data directory.")
    parser.add_argument("--out", type=Path, required=True, help="The directory of the tables.")
    parser.add_argument("--every", metavar="DURATION", help="Run again and again.")
    parser.add_argument("--accept-data-loss", action="store_true", help="Pass over damage.")
    given = parser.parse_args()
    try:
        request = Request(
            data_dir=given.data_dir,
            out=given.out,
            every_ms=parse_every(given.every),
            accepts_loss=given.accept_data_loss,
        )
        run_pipeline(request, _report)
    except LatermqError as error:
        _report(error.message)
        sys.exit(EXIT_FAILED)


def _report(line: str) -> None:
    sys.stderr.write(f"latermq: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
