"""The unit and what comes with it, judged by systemd's own tools."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.cli import EXIT_CONFIG, EXIT_TEMPORARY
from appliance.config.config import Address, Config
from appliance.config.config_file import load_config
from appliance.system.files import OsFileSystem
from tests.support.docs.example_config import EXAMPLE_PATH, example_config

SYSTEMD = Path(__file__).parents[3] / "systemd"
UNIT = SYSTEMD / "latermq.service"


def run_tool(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of systemd; skip the test where the machine does not have it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # It looks whether the command exists, so let it be one that does.
    text, count = re.subn("ExecStart=[^ ]*", f"ExecStart={sys.executable}", UNIT.read_text())
    assert count == 1
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    result = run_tool("systemd-analyze", "verify", unit)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_mistake_in_the_unit_would_be_found(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(f"[Service]\nType=notify\nExecStart={sys.executable}\nNoNewPriviledges=yes\n")
    result = run_tool("systemd-analyze", "verify", unit)
    assert "NoNewPriviledges" in result.stderr


def test_the_service_is_hardened() -> None:
    # The threshold is ten times the exposure that systemd computes: 2.0 of 10.
    result = run_tool("systemd-analyze", "security", "--offline=true", "--threshold=20", UNIT)
    assert result.returncode == 0, result.stdout


def test_the_service_gets_the_data_directory_and_the_settings_that_the_unit_prepares() -> None:
    lines = UNIT.read_text().splitlines()
    command = next(line for line in lines if line.startswith("ExecStart="))
    assert command == (
        "ExecStart=/opt/latermq/bin/latermq serve --config /etc/latermq/latermq.toml "
        "--data-dir /var/lib/latermq"
    )
    for line in ("StateDirectory=latermq", "ConfigurationDirectory=latermq", "Type=notify"):
        assert line in lines


def test_the_unit_tries_again_unless_the_settings_are_wrong() -> None:
    """An address that is in use, or not up yet, has time to become free, or to come up."""
    lines = UNIT.read_text().splitlines()
    assert "Restart=on-failure" in lines
    assert f"RestartPreventExitStatus={EXIT_CONFIG}" in lines
    assert EXIT_TEMPORARY != EXIT_CONFIG
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert int(unit["StartLimitBurst"]) * int(unit["RestartSec"]) >= 30


def test_the_system_calls_of_the_broker_pass_the_filter() -> None:
    """A call that is filtered fails with EPERM, only under systemd, and maybe only much later."""
    listed = run_tool("systemd-analyze", "syscall-filter").stdout
    assert listed, "systemd-analyze knows no system calls"
    groups: dict[str, set[str]] = {}
    for line in listed.splitlines():
        if line.startswith("@"):
            group = groups.setdefault(line.strip(), set())
        elif line.strip() and not line.strip().startswith("#"):
            group.add(line.strip())

    def expand(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return set().union(*(expand(member) for member in groups[name]))

    allowed: set[str] = set()
    for line in UNIT.read_text().splitlines():
        if line.startswith("SystemCallFilter=~"):
            for name in line.removeprefix("SystemCallFilter=~").split():
                allowed -= expand(name)
        elif line.startswith("SystemCallFilter="):
            for name in line.removeprefix("SystemCallFilter=").split():
                allowed |= expand(name)
    files = "openat pread64 pwritev fdatasync fsync ftruncate fallocate lseek mmap preadv2 "
    files += "fadvise64 flock rename unlink mkdir rmdir getdents64 statfs fcntl"
    loop = "epoll_wait eventfd2 timerfd_create timerfd_settime futex clone3 signalfd4 socketpair"
    network = "socket bind listen accept4 sendto sendmsg recvfrom setsockopt shutdown"
    threads = "getpriority setpriority sched_getscheduler sched_setscheduler sched_setattr "
    threads += "sched_getaffinity getrusage"
    assert set(f"{files} {loop} {network} {threads}".split()) - allowed == set()
    assert "sched_setaffinity" not in allowed
    assert "setuid" not in allowed
    assert "mount" not in allowed


def test_the_account_and_the_directory_are_made_as_the_unit_expects(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may make accounts, even in a directory of its own")
    (tmp_path / "etc").mkdir()
    result = run_tool("systemd-sysusers", f"--root={tmp_path}", SYSTEMD / "latermq.sysusers")
    assert result.returncode == 0, result.stderr
    accounts = (tmp_path / "etc" / "passwd").read_text()
    name, _, uid, gid, _, home, shell = accounts.splitlines()[-1].split(":")
    assert (name, home, shell) == ("latermq", "/var/lib/latermq", "/usr/sbin/nologin")
    (tmp_path / "var" / "lib").mkdir(parents=True)
    tmpfiles = SYSTEMD / "latermq.tmpfiles"
    result = run_tool("systemd-tmpfiles", "--create", f"--root={tmp_path}", tmpfiles)
    assert result.returncode == 0, result.stderr
    made = (tmp_path / "var" / "lib" / "latermq").stat()
    assert (made.st_mode & 0o7777, made.st_uid, made.st_gid) == (0o750, int(uid), int(gid))


def test_the_example_configuration_is_up_to_date() -> None:
    assert EXAMPLE_PATH.read_text() == example_config(), "run make regenerate"


def test_the_example_configuration_changes_nothing_until_it_is_edited(tmp_path: Path) -> None:
    fs = OsFileSystem()
    assert load_config(EXAMPLE_PATH, {}, fs) == Config()
    edited = tmp_path / "latermq.toml"
    # A master with the address of a master is refused.
    line = r"^#(?!master = )(\w+ = )"
    edited.write_text(re.sub(line, r"\1", EXAMPLE_PATH.read_text(), flags=re.MULTILINE))
    config = load_config(edited, {}, fs)
    assert config.advertise == Address("broker.example", 9092)
    assert load_config(edited, {"advertise": Address("b", 1)}, fs) == Config(
        advertise=Address("b", 1),
        peer=Address("10.0.0.2", 9292),
        replication_secret_file=Path("/etc/latermq/pair.secret"),
        etcd_ca_file=Path("/etc/latermq/etcd-ca.pem"),
        etcd_certificate_file=Path("/etc/latermq/etcd-client.pem"),
    )
