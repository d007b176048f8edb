"""Java programs from their Maven artifacts: what a file of dependencies names, in build/perf."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from perf.machine import MissingToolError

_COPY_LIMIT_S: Final = 600.0


def copy_jars(pom: Path, directory: Path, jar: str) -> None:
    """Have Maven copy jars to a directory, unless they are there.

    Args:
        pom: names them.
        directory: where they go.
        jar: one of them; if it is there, all are.

    Raises:
        MissingToolError: no Java, no Maven, or Maven cannot get them.
    """
    if shutil.which("java") is None:
        raise MissingToolError("there is no java: apt-get install default-jre-headless")
    if (directory / jar).exists():
        return
    if shutil.which("mvn") is None:
        raise MissingToolError("its jars come by Maven: apt-get install maven")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), *goal, f"-DoutputDirectory={directory}"],
            capture_output=True,
            text=True,
            timeout=_COPY_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MissingToolError("Maven did not copy its jars in time") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise MissingToolError(f"Maven cannot get its jars: {lines[0] if lines else done.stderr}")
