"""Says what this machine lacks for building latermq, each with the Debian package to install.

    python3 .ci/preflight.py               one line and exit status 1 if something is missing
    python3 .ci/preflight.py --packages    the names of the missing packages, one a line

Runs before anything is installed and under any Python 3, so it uses nothing newer than 3.6.
setup.py asks it as well, so that `pip install` of the source distribution says the same.
"""

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig

OLDEST_PYTHON = (3, 11)


def find_missing():
    """Return (what, package) for each thing that is missing, the most basic first."""
    missing = []
    if sys.version_info < OLDEST_PYTHON:
        version = ".".join(str(part) for part in sys.version_info[:2])
        what = "Python 3.11 or newer (this is " + version + "; choose by make PYTHON=...)"
        return [(what, "python3.11")]
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        missing.append(("Python's venv module", "python3-venv"))
    return missing + find_missing_for_compiling()


def find_missing_for_compiling():
    """Return the same for setup.py alone, which needs no virtual environment."""
    missing = []
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(compiler)[0]) is None:
        missing.append(("a C compiler", "gcc"))
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        missing.append(("Python's C headers", "python3-dev"))
    return missing


def describe(missing):
    """Return the line that names what is missing and how to get it."""
    whats = " and ".join(what for what, _ in missing)
    return "missing: " + whats + "; apt-get install " + " ".join(package for _, package in missing)


def main(arguments):
    missing = find_missing()
    if arguments == ["--packages"]:
        sys.stdout.write("".join(package + "\n" for _, package in missing))
    elif missing:
        sys.stderr.write(describe(missing) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
