"""The worked example of the documents: deadlines, retries, dead letters, a nightly report."""

import subprocess
import sys

from tests.support.docs.source_files import ROOT


def test_the_order_service_closes_retries_replays_and_reports() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "order_service.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    told = [line[48:] for line in result.stdout.splitlines() if line[48:].startswith("tea ")]
    assert told == [
        "tea placed, rum placed, gin placed",
        "tea shipped, rum placed, gin paid",
        "tea shipped, rum closed, gin paid",
        "tea shipped, rum closed, gin paid",
        "tea shipped, rum closed, gin shipped",
        "tea shipped, rum refunded, gin shipped",
    ]
    assert "paid/0/1" in result.stdout
    reports = [line for line in result.stdout.splitlines() if line.startswith("nightly report: ")]
    assert reports == [
        "nightly report: 1 closed, 2 shipped",
        "nightly report: 1 refunded, 2 shipped",
    ]
