"""The clients that pip does not install, under build/clients: Node's, Java's, Spark's, and suites.

`python -m tests.support.clients.client_setup` (which is `make clients`) gets what is missing or
outdated and prints one line for each: what it did, or why it failed. The project's files name the
versions and checksums; npm, Maven, Go and pip decide where to get them. Tests call `find`.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
CLIENTS: Final = ROOT / "tests" / "system" / "clients"
KAFKA_TOOLS: Final = CLIENTS / "kafka_tools"
JUNIT: Final = CLIENTS / "junit"
CONNECTOR: Final = ROOT / "tests" / "system" / "spark" / "connector"
BUILD: Final = ROOT / "build" / "clients"
REQUIREMENTS: Final = ROOT / "requirements-dev.txt"

GO_PROGRAMS: Final = ("gaps", "admin", "bulk")

JAVA_VERSIONS: Final = {"java_3": "3.9.2", "java_4": "4.3.0"}

_SERVICE: Final = CLIENTS / "kafka_python_suite" / "service.py"
_LIMIT_S: Final = 600
_MAVEN_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class ClientMissingError(Exception):
    """A client is not installed; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is installed as a whole.

    Args:
        name: of its directory.
        inputs: files that determine it, beside this program.
        needs: command -> Debian package that has it.
        install: fills an empty directory.
        settings: whatever else determines it.
    """

    name: str
    inputs: Sequence[Path]
    needs: Mapping[str, str]
    install: Callable[[Path], None]
    settings: Sequence[str] = field(default=())

    def fingerprint(self) -> str:
        """Return a hash of everything that determines the part."""
        digest = hashlib.sha256(" ".join(self.settings).encode())
        for path in (Path(__file__), *self.inputs):
            digest.update(path.read_bytes())
        return digest.hexdigest()


def _run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise ClientMissingError(f"{command[0]} failed: {' | '.join(said[-4:])}")


def _install_node(directory: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(CLIENTS / "node" / name, directory)
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=directory)


def _install_java(version: str, directory: Path) -> None:
    jars, classes = directory / "jars", directory / "classes"
    _get_jars(CLIENTS / "java", jars, f"-Dkafka.version={version}")
    sources = sorted((CLIENTS / "java").glob("*.java"))
    _run("javac", "-nowarn", "-cp", f"{jars}/*", "-d", classes, *sources)


def _install_kafka_tools(directory: Path) -> None:
    jars, classes = directory / "jars", directory / "classes"
    _get_jars(KAFKA_TOOLS, jars)
    _run("javac", "-nowarn", "-cp", f"{jars}/*", "-d", classes, KAFKA_TOOLS / "Tools.java")


def _get_jars(project: Path, jars: Path, *options: str) -> None:
    """Get what the pom.xml of a directory names, and compare it with its jars.sha256."""
    pom = project / "pom.xml"
    wanted = (*options, f"-DoutputDirectory={jars}")
    _run("mvn", "--quiet", "--batch-mode", "--file", pom, _MAVEN_GOAL, *wanted)
    known: dict[str, str] = {}
    for line in (project / "jars.sha256").read_text().splitlines():
        digest, name = line.split()
        known[name] = digest
    for jar in jars.iterdir():
        if hashlib.sha256(jar.read_bytes()).hexdigest() != known.get(jar.name):
            raise ClientMissingError(f"{jar.name} is not the file that jars.sha256 names")


def _install_franz_go(directory: Path) -> None:
    # go.sum has the checksums. "local": an older Go fails and does not download a newer one.
    binary, package = directory / "kgo.test", "github.com/twmb/franz-go/pkg/kgo"
    _run("go", "test", "-c", "-o", binary, package, cwd=CLIENTS / "go", GOTOOLCHAIN="local")
    for name in GO_PROGRAMS:
        program = ("-o", directory / name, f"./{name}")
        _run("go", "build", *program, cwd=CLIENTS / "go", GOTOOLCHAIN="local")


def _install_kafka_python_tests(directory: Path) -> None:
    # The source distribution has the tests; its checksum is among those of the pinned version.
    (directory / "requirements.txt").write_text(_pinned_kafka_python() + "\n")
    from_source = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes")
    options = ("--quiet", "--disable-pip-version-check", *from_source, "--dest", directory)
    _run(sys.executable, "-m", "pip", "download", *options, "-r", directory / "requirements.txt")
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(directory, filter="data")
    (unpacked,) = (path for path in directory.iterdir() if path.is_dir())
    (unpacked / "test").rename(directory / "test")
    (directory / "test" / "__init__.py").touch()
    shutil.copy(_SERVICE, directory / "test")
    (directory / "pytest.ini").write_text("[pytest]\n")  # else this project's settings apply
    shutil.rmtree(unpacked)
    archive.unlink()


def _pinned_kafka_python() -> str:
    """Return version and checksums, as in the file of all pinned versions."""
    pinned = re.search(r"^kafka-python==.*?(?=^\S)", REQUIREMENTS.read_text(), re.M | re.S)
    assert pinned is not None, "kafka-python is not pinned"
    return re.sub(r"^ *#.*\n", "", pinned[0], flags=re.M).rstrip().removesuffix("\\")


def _java(name: str, version: str) -> Part:
    sources = sorted((CLIENTS / "java").glob("*.java"))
    return Part(
        name,
        [CLIENTS / "java" / "pom.xml", CLIENTS / "java" / "jars.sha256", *sources],
        {"javac": "default-jdk-headless", "java": "default-jre-headless", "mvn": "maven"},
        lambda directory: _install_java(version, directory),
        (version,),
    )


PARTS: Final = (
    Part(
        "kafkajs",
        [CLIENTS / "node" / "package.json", CLIENTS / "node" / "package-lock.json"],
        {"node": "nodejs", "npm": "npm"},
        _install_node,
    ),
    *(_java(name, version) for name, version in JAVA_VERSIONS.items()),
    Part(
        "kafka_tools",
        [KAFKA_TOOLS / name for name in ("pom.xml", "jars.sha256", "Tools.java")],
        {"javac": "default-jdk-headless", "java": "default-jre-headless", "mvn": "maven"},
        _install_kafka_tools,
    ),
    Part(
        "junit",
        [JUNIT / "pom.xml", JUNIT / "jars.sha256"],
        {"javac": "default-jdk-headless", "java": "default-jre-headless", "mvn": "maven"},
        lambda directory: _get_jars(JUNIT, directory / "jars"),
    ),
    Part(
        "spark_connector",
        [CONNECTOR / "pom.xml", CONNECTOR / "jars.sha256"],
        {"java": "default-jre-headless", "mvn": "maven"},
        lambda directory: _get_jars(CONNECTOR, directory / "jars"),
    ),
    Part(
        "franz_go",
        [
            CLIENTS / "go" / name
            for name in (
                *("go.mod", "go.sum", "clients.go"),
                *(f"{program}/main.go" for program in GO_PROGRAMS),
            )
        ],
        {"go": "golang-go"},
        _install_franz_go,
    ),
    Part(
        "kafka_python_tests", [_SERVICE], {}, _install_kafka_python_tests, (_pinned_kafka_python(),)
    ),
)


def find(name: str) -> Path:
    """Return the directory of a part.

    Raises:
        ClientMissingError: it is not installed, or not in the wanted version.
    """
    (part,) = (part for part in PARTS if part.name == name)
    if _installed_fingerprint(part) == "":
        raise ClientMissingError(f"{name} is not installed: make clients")
    if _installed_fingerprint(part) != part.fingerprint():
        raise ClientMissingError(f"{name} is outdated: make clients")
    return BUILD / name


def _installed_fingerprint(part: Part) -> str:
    ready = BUILD / part.name / "ready"
    return ready.read_text() if ready.exists() else ""


def ensure(part: Part) -> str:
    """Install the part unless it is there; return what was done.

    Raises:
        ClientMissingError: a command is missing, a registry is unreachable, or a checksum differs.
    """
    if _installed_fingerprint(part) == part.fingerprint():
        return "is installed"
    lacking = {name: package for name, package in part.needs.items() if shutil.which(name) is None}
    if lacking:
        packages = " ".join(lacking.values())
        raise ClientMissingError(f"needs {', '.join(lacking)}: apt-get install {packages}")
    directory = BUILD / part.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    part.install(directory)
    (directory / "ready").write_text(part.fingerprint())
    return "installed"


def main() -> int:
    """Install every part that is available; return 1 if one is not."""
    status = 0
    for part in PARTS:
        try:
            done = ensure(part)
        except (ClientMissingError, OSError, subprocess.TimeoutExpired) as error:
            done, status = f"not available here, its tests are skipped: {error}", 1
        sys.stdout.write(f"client {part.name}: {done}\n")
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
