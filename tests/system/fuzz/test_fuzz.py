"""Whatever bytes arrive, in whatever pieces: no crash, no wrong answer, nothing unbounded.

What may never happen is listed in tests/system/fuzz/harness.py. A finding prints how to repeat it.
"""

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from compat.kafka.protocol.pieces import PieceWriter
from tests.support.values.kafka_records import Record
from tests.system.fuzz import sanitized
from tests.system.fuzz.cases import Case, Step, Verb, load_corpus, parse_case
from tests.system.fuzz.harness import Finding, Harness
from tests.system.fuzz.run import CORPUS

SEED = 20
CASES = 240
LOGS = 80
LIMIT_S = 600

needs_sanitizers = pytest.mark.skipif(
    not sanitized.find_runtimes(), reason="gcc with libasan and libubsan is not installed"
)


@pytest.fixture(scope="module")
def sanitized_core() -> None:
    """`make test` has built it before, because it takes a minute or two."""
    sanitized.build()


def run_sanitized(command: list[str], seconds: float = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, which is asked to take so long, with the runtime of the sanitizers."""
    return subprocess.run(
        command,
        env=sanitized.environment(),
        cwd=sanitized.ROOT,
        text=True,
        capture_output=True,
        timeout=seconds + LIMIT_S,
    )


def check_nothing_found(arguments: list[str], running: Path, seconds: float) -> None:
    """Run the fuzzer."""
    arguments = [*arguments, "--running", str(running)]
    done = run_sanitized(sanitized.command("tests.system.fuzz.run", *arguments), seconds)
    sys.stderr.write(done.stderr)
    if done.returncode:
        case = running.read_text() if running.exists() else "(none ran)"
        pytest.fail(f"save this as tests/system/fuzz/corpus/NAME.case:\n{case}")
    assert "nothing found" in done.stderr


@needs_sanitizers
@pytest.mark.usefixtures("sanitized_core")
@pytest.mark.timeout(600)
def test_every_field_of_every_request_may_be_at_its_bounds() -> None:
    done = run_sanitized(sanitized.command("tests.system.fuzz.sweep"))
    assert done.returncode == 0, done.stderr


@needs_sanitizers
@pytest.mark.usefixtures("sanitized_core")
@pytest.mark.timeout(600)
def test_a_broker_starts_on_damaged_files_or_says_why_not(
    request: pytest.FixtureRequest,
) -> None:
    seconds = request.config.getoption("--fuzz-seconds")
    how = ["--seed", str(SEED), "--cases", str(LOGS)]
    if seconds:
        how = ["--seed", str(secrets.randbits(32)), "--cases", str(LOGS + int(4 * seconds))]
    done = run_sanitized(sanitized.command("tests.system.fuzz.logs", *how))
    assert done.returncode == 0, done.stderr[-20_000:]


@needs_sanitizers
@pytest.mark.usefixtures("sanitized_core")
@pytest.mark.timeout(0)  # for as long as is asked for; the process has a limit
def test_the_core_withstands_the_corpus_and_made_cases(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The same ones in every run; with --fuzz-seconds others, which follow the branches taken."""
    seconds = request.config.getoption("--fuzz-seconds")
    how = ["--seed", str(SEED), "--cases", str(CASES)]
    if seconds:
        how = ["--seed", str(secrets.randbits(32)), "--guided", "--seconds", str(seconds)]
    check_nothing_found(how, tmp_path / "running.case", seconds)


@needs_sanitizers
@pytest.mark.usefixtures("sanitized_core")
@pytest.mark.parametrize("is_inside", [True, False])
def test_a_read_after_the_end_of_bytes_is_found(is_inside: bool) -> None:
    """So the sanitizers are at work, and see where Python's own objects end."""
    index = 50 if is_inside else 51
    code = f"import ctypes; ctypes.CDLL(None).branch_trace_peek(bytes(50), {index})"
    done = run_sanitized([sys.executable, "-c", code])
    assert (done.returncode == 0) == is_inside
    assert ("heap-buffer-overflow" in done.stderr) != is_inside


def metadata_case(version: int) -> Case:
    """Asks for all topics."""
    body = b"\0\x03" + bytes([0, version]) + b"\0\0\0\x07" + b"\xff\xff" + b"\xff\xff\xff\xff"
    return Case((Step(Verb.SEND, (0, 0), len(body).to_bytes(4, "big") + body),))


def test_an_answer_that_is_not_whole_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of the harness can fail."""
    harness = Harness(is_sync=True)
    harness.play(metadata_case(1))
    whole = PieceWriter.finish
    monkeypatch.setattr(PieceWriter, "finish", lambda writer: whole(writer)[:-1])
    with pytest.raises(Finding, match="the answer"):
        harness.play(metadata_case(1))


def test_an_error_in_a_handler_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(is_sync=True)
    monkeypatch.setattr(type(harness.target.broker.topics), "all", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        harness.play(metadata_case(1))


def test_a_record_that_was_not_acknowledged_is_a_finding() -> None:
    harness = Harness(is_sync=True)
    harness.target.produce("t", 0, [Record(b"from nowhere")])
    with pytest.raises(Finding, match="1 batches stored, at most 0 may be"):
        harness.play(Case(()))


def test_state_that_is_not_in_the_log_is_a_finding() -> None:
    harness = Harness(is_sync=True)
    topic = harness.target.broker.topics.find("t")
    assert topic is not None
    topic.settings["delay.headers"] = "off"
    with pytest.raises(Finding, match="replayed as"):
        harness.run(Case(()))


def test_every_case_of_the_corpus_is_written_as_it_is_read() -> None:
    cases = load_corpus(CORPUS)
    assert cases
    for name, case in cases.items():
        assert parse_case(case.text(["a comment"])) == case, name


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.glob("*")) < 1_000_000
