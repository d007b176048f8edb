"""What Spark needs on this machine beside latermq, and the one line that says what is missing.

Imports nothing of it, so that it can be asked anywhere. Layer 5.
"""

import importlib.util
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

from appliance.errors import ConfigError

JAVA_PACKAGE: Final = "default-jre-headless"
INSTALL_EXTRA: Final = 'pip install "latermq[spark]"'
OLDEST_PYSPARK: Final = (4, 2)
"""The first with limits and a fixed end for streams of Python data sources."""


def find_missing_library() -> str | None:
    """Return one line that says which Python library is missing, None if none is."""
    for name in ("pyarrow", "pyspark"):
        if importlib.util.find_spec(name) is None:
            return f"Spark needs the library {name}: {INSTALL_EXTRA}"
    version = metadata.version("pyspark")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYSPARK:
        oldest = ".".join(map(str, OLDEST_PYSPARK))
        return f"pyspark {version} is too old, use {oldest} or newer: {INSTALL_EXTRA}"
    return None


def find_missing() -> str | None:
    """Return one line that says what a session of Spark lacks here, None if nothing is missing."""
    if (missing := find_missing_library()) is not None:
        return missing
    home = os.environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").exists():
        return f"JAVA_HOME is {home}, which has no bin/java: unset it, or correct it"
    if not home and shutil.which("java") is None:
        return f"Spark needs Java 17 or newer: apt-get install {JAVA_PACKAGE}"
    return None


def choose_python() -> None:
    """Let Spark run this Python, unless the environment names another one.

    Otherwise it runs the `python3` of the path, which may not have latermq.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_libraries() -> None:
    """Check that the Python libraries are there.

    Raises:
        ConfigError: one is missing; the message says how to install it.
    """
    _refuse(find_missing_library())


def check_all() -> None:
    """Check that a session of Spark can be started here.

    Raises:
        ConfigError: something is missing; the message says how to install it.
    """
    _refuse(find_missing())


def _refuse(missing: str | None) -> None:
    if missing is not None:
        raise ConfigError(missing)
