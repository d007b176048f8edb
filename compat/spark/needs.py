"""What Spark needs on this machine beside latermq, and the one line that says what is missing.

Imports nothing of it, so that it can be asked anywhere. Layer 5.
"""

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from appliance.errors import ConfigError

JAVA_PACKAGE: Final = "default-jre-headless"
INSTALL_EXTRA: Final = 'pip install "latermq[spark]"'
OLDEST_PYSPARK: Final = (4, 2)
"""The first with limits and a fixed end for streams of Python data sources."""
ARCHIVES: Final = "python"
"""The directory of Spark's home that has PySpark as an archive."""
_CHOSEN_HOME: Final = ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Who sets one of these has a home, a Java machine, or a cluster that needs the archive."""


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
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return None  # spark-submit has started Java
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


def choose_home() -> None:
    """Let Python processes of Spark import the PySpark that is installed.

    Spark puts an archive of PySpark first in their path. It has no compiled modules, so each
    process would compile what it imports: it begins in 1.3 s instead of 0.5 s. Spark looks for the
    archive in its home, so the home becomes a directory with links to all but the archive, until
    this process ends. The environment may say otherwise: see `_CHOSEN_HOME`, and another Python may
    not have PySpark.
    """
    is_chosen = any(name in os.environ for name in _CHOSEN_HOME)
    if is_chosen or os.environ.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return
    installed = find_installed()
    if not (installed / "jars").is_dir():
        return  # PySpark without Spark: its home is elsewhere
    home = Path(tempfile.mkdtemp(prefix="latermq-spark-"))
    atexit.register(_remove, home, os.getpid())
    link_home(home)
    os.environ["SPARK_HOME"] = str(home)


def _remove(home: Path, owner: int) -> None:
    """Remove a home, unless this process was only forked off its owner."""
    if os.getpid() == owner:
        shutil.rmtree(home, ignore_errors=True)


def find_installed() -> Path:
    """Return the directory of the PySpark that is installed."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def link_home(home: Path) -> None:
    """Fill an empty directory with links to Spark's home, all but the archives of PySpark."""
    for each in find_installed().iterdir():
        if each.name != ARCHIVES:
            (home / each.name).symlink_to(each)


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
