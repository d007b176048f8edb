"""Tests find ports that no other test of the same run is to use."""

import pytest

from tests.support.harness.ports import PORTS, free_port


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(1_000)]
    assert len(set(ports)) == len(ports)
    assert set(ports) <= set(PORTS)


def test_processes_of_one_run_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    found: list[set[int]] = []
    for number in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        found.append({free_port() for _ in range(300)})
    assert not found[0] & found[1]
    assert not found[1] & found[2]
    assert not found[0] & found[2]
