"""Settings: defaults hold, bad values are refused by name, documentation shows the same."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from appliance.config.config import (
    Address,
    Config,
    is_loopback,
    is_wildcard,
    parse_address,
    settings,
)
from appliance.config.config_file import load_config
from appliance.errors import ConfigError
from appliance.units import GIB, KIB, MIB
from tests.support.docs import doc_tables
from tests.support.harness.configs import small_config
from tests.support.simulator.sim_fs import SimFileSystem

FILE = Path("/etc/latermq.toml")


def load(text: str | bytes, **overrides: object) -> Config:
    disk = SimFileSystem()
    disk.make_dirs(FILE.parent)
    content = text.encode() if isinstance(text, str) else text
    disk.open(FILE, create=True).pwritev([content], 0)
    return load_config(FILE, overrides, disk)


def test_nothing_needs_to_be_configured() -> None:
    config = load_config(None, {}, SimFileSystem())
    assert config == Config()
    assert str(config.listen) == "127.0.0.1:9092"
    assert str(config.admin) == "127.0.0.1:9192"
    assert (config.flush, config.allow_insecure) == ("sync", False)
    assert len(config.delay_levels) == 18
    assert (config.delay_levels[0], config.delay_levels[-1]) == (1_000, 7_200_000)


def test_a_file_changes_settings_of_every_kind() -> None:
    config = load(
        """
        data_dir = "/var/lib/latermq"
        [network]
        listen = "[::1]:19092"
        admin_names = "latermq.default.svc 10.1.2.3  [2001:db8::1]"
        advertise = "broker.example:9092"
        [flush]
        mode = "async"
        interval_ms = 50
        [store]
        delete_when = "04;22-02"
        [topics]
        auto_create = false
        [delay]
        levels = "1s 2m"
        """
    )
    assert config.data_dir == Path("/var/lib/latermq")
    assert config.listen == Address("::1", 19092)
    assert config.advertise == Address("broker.example", 9092)
    assert (config.flush, config.flush_interval_ms) == ("async", 50)
    assert config.delete_when == "04;22-02"
    assert config.auto_create_topics is False
    assert config.delay_levels == (1_000, 120_000)


def test_the_command_line_beats_the_file() -> None:
    text = '[network]\nlisten = "127.0.0.1:1"\n[flush]\nmode = "async"\n'
    config = load(text, listen="127.0.0.1:2", flush=None)
    assert config.listen.port == 2
    assert config.flush == "async", "what is not given does not count"


def test_every_default_is_allowed_and_every_setting_documented() -> None:
    for name, setting in settings().items():
        default = getattr(Config(), name)
        assert setting.read(default) == default
        assert setting.reason.endswith("."), name
        assert setting.allowed, name
    assert len({setting.key for setting in settings().values()}) == len(settings())


def test_a_config_cannot_be_changed_and_a_changed_copy_is_checked() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().flush = "async"  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"flush\.interval_ms = 501 is above"):
        replace(Config(), flush_interval_ms=501)
    with pytest.raises(ConfigError, match=r"disk\.warn_percent = 90 is not below disk\.refuse_p"):
        replace(Config(), disk_warn_percent=90)
    for percent in (75, 90):
        with pytest.raises(ConfigError, match=rf"disk\.expire_percent = {percent} is not between"):
            replace(Config(), disk_expire_percent=percent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flsh = 1", "unknown setting flsh"),
        ("flush = 'async'", r"unknown setting flush; did you mean flush\.mode\?"),
        ("listen = ''", r"unknown setting listen; did you mean network\.listen\?"),
        ("[flush]\nmod = 1", r"unknown setting flush\.mod; did you mean flush\.mode\?"),
        ("[a.b]\nc = 1", r"unknown setting a\.b\.c"),
        ("[flush]\nmode = 'never'", r"flush\.mode \(--flush\) = 'never' .*sync or async"),
        ("[flush]\nmode = ['sync']", r"flush\.mode .*\['sync'\] is not valid"),
        ("[flush]\nmode.x = 'sync'", r"unknown setting flush\.mode\.x"),
        ("[flush]\ninterval_ms = true", "True is not valid: it is not a whole number"),
        ("[flush]\ninterval_ms = 1.5", "1.5 is not valid: it is not a whole number"),
        ("[flush]\ninterval_ms = '5'", "'5' is not valid: it is not a whole number"),
        ("[flush]\ninterval_ms = 0", "0 is not valid: it is out of range; use 1 to 60_000 ms"),
        ("[flush]\ninterval_ms = 60001", "out of range"),
        ("[flush]\ninterval_ms = 600", r"above flush\.bound_ms = 500"),
        ("[topics]\nauto_create = 1", "1 is not valid: it is not a boolean; use true or false"),
        ("[network]\nlisten = 9092", "9092 is not valid: it is not a string"),
        ("[network]\nlisten = ''", "it is empty"),
        ("[network]\nlisten = 'localhost'", "expected HOST:PORT"),
        ("[network]\nlisten = '127.0.0.1:9192'", r"both 127\.0\.0\.1:9192"),
        ("[network]\nadmin_names = ['a']", r"\['a'\] is not valid: it is not a string"),
        ("[network]\nadmin_names = 'a *'", r"'\*' is not the name of a host"),
        ("[network]\nadmin_names = 'a:1'", "'a:1' is not the name of a host"),
        ("[network]\nadmin_names = '::1'", "'::1' is not the name of a host"),
        ("[network]\nadmin_names = 'http://a'", "'http://a' is not the name of a host"),
        ("data_dir = ''", r"data_dir \(--data-dir\) = '' is not valid"),
        ('data_dir = "a\\u0000b"', "zero byte"),
        ("[delay]\nlevels = '1s 2'", "'2' is not a duration"),
        ("[delay]\nlevels = ' '", "it has 0 levels"),
        (f"[delay]\nlevels = '{'1s ' * 101}'", "it has 101 levels"),
        ("[delay]\nlevels = '0s'", "at least 1 ms"),
        ("[store]\ndelete_when = 4", "4 is not valid: it is not a string; use hours of the day"),
        ("[store]\ndelete_when = '04;25'", r"store\.delete_when = '04;25' .*'25' is not an hour"),
        ("[delay]\nmax_ms = 7199999", r"delay\.levels has 2h, .*delay\.max_ms = 7199999"),
        ("[store]\nsegment_size_bytes = 65536", "must be at least 268_?4"),
        ("[store]\nsegment_size_bytes = 1000000001", "is not a multiple of 4096"),
        ("[limits]\nbatch_size_max_bytes = 67108865", r"above limits\.decompressed_size_max_bytes"),
        ("[network]\nrequest_size_max_bytes = 1049611", "has no room for a batch"),
        ("[topics]\ndefault_partition_count = 1001", r"above topics\.partition_count_max_per"),
        ("[topics]\npartition_total_max = 999", r"above topics\.partition_total_max = 999"),
        ("[process]\npriority = -21", "-20 to 19"),
        ("x = ", "is not TOML"),
        (b"x = '\xff'", "is not TOML"),
        (b"#" * (MIB + 1), "is larger than 1048576 bytes"),
    ],
)
def test_what_is_wrong_is_refused_by_name(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)


NINES = "9" * 5_000


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'[' * 3_000}{']' * 3_000}",
        f"a = {'{a=' * 2_000}1{'}' * 2_000}",
        f"a{'.a' * 2_000} = 1",
        f"a{'.a' * 300_000} = 1",
        f"[a{'.a' * 2_000}]\nb = 1",
        f"[network]\nidle_timeout_ms = {NINES}",
        f"[network]\nidle_timeout_ms = {NINES[:4_000]}",
        f"[network]\nidle_timeout_ms = 0x{NINES}",
        f"[network]\nlisten = '{NINES}'",
        f"[delay]\nlevels = '{NINES}s'",
        f"a{NINES} = 1",
        f"a = '{'x' * 100_000}'",
    ],
)
def test_what_is_too_deep_or_too_long_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert len(str(caught.value)) < 2_500  # a message may list all settings
    assert "\n" not in str(caught.value)
    assert "a" * 200 not in str(caught.value)
    assert "9" * 200 not in str(caught.value)


def test_a_missing_file_is_refused_with_its_path() -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: open of /none/x\.toml failed"):
        load_config(Path("/none/x.toml"), {}, SimFileSystem())


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting lisen; did you mean listen"):
        load("", lisen="127.0.0.1:1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "::ffff:10.0.0.1"])
@pytest.mark.parametrize("field_name", ["listen", "admin"])
def test_other_machines_connect_only_if_that_is_accepted(host: str, field_name: str) -> None:
    address = Address(host, 5)
    with pytest.raises(ConfigError, match="--allow-insecure"):
        load("", **{field_name: address})
    accepted = load("", allow_insecure=True, advertise="a:1", **{field_name: address})
    assert getattr(accepted, field_name) == address


def test_a_wildcard_needs_an_address_to_advertise() -> None:
    with pytest.raises(ConfigError, match="--advertise HOST:PORT"):
        load("", listen="0.0.0.0:9092", allow_insecure=True)
    with pytest.raises(ConfigError, match="not an address that clients can connect to"):
        load("", listen="0.0.0.0:9092", advertise="[::]:9092", allow_insecure=True)
    load("", listen="0.0.0.0:9092", advertise="10.0.0.1:9092", allow_insecure=True)
    load("", admin="0.0.0.0:9192", allow_insecure=True)


def test_free_ports_may_be_asked_for_twice() -> None:
    config = load("", listen="127.0.0.1:0", admin="127.0.0.1:0")
    assert config.listen == config.admin


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("broker-1.example.org:1", "broker-1.example.org", 1),
    ],
)
def test_an_address_reads_and_writes_the_same(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "9092", ":9092", "host", "host:", "host:x", "host:-1", "host:65536", "host:٣"),
        *("host:000080", "::1:9092", "[::1]", "[::1]:", "[host]:1", "[]:1", "a b:1"),
        "http://host:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|needs brackets|is not an? (number|host|IPv6)"):
        parse_address(text)


def test_loopback_and_wildcard_hosts_are_known() -> None:
    loopback = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost", "::ffff:127.0.0.1")
    wildcard = ("0.0.0.0", "::", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0")
    other = ("10.0.0.1", "example.org", "fe80::1", "localhost.example.org", "128.0.0.1", "")
    for host in (*loopback, *wildcard, *other):
        assert is_loopback(host) == (host in loopback), host
        assert is_wildcard(host) == (host in wildcard), host


def test_a_segment_of_the_least_size_holds_small_batches() -> None:
    config = small_config()
    assert config.segment_size_bytes == 64 * KIB
    with pytest.raises(ConfigError, match="cannot hold the largest frame"):
        small_config(decompressed_size_max_bytes=16 * KIB)
    with pytest.raises(ConfigError, match="cannot hold the largest frame"):
        small_config(delivery_batch_max_bytes=16 * KIB)
    with pytest.raises(ConfigError, match="cannot hold the largest frame"):
        small_config(partition_count_max_per_topic=1_000)
    small_config(segment_size_bytes=GIB, partition_count_max_per_topic=1_000)


@pytest.mark.parametrize("name", doc_tables.TABLES)
def test_the_documentation_shows_the_table_of_the_code(name: str) -> None:
    _, table, _ = doc_tables.split((doc_tables.DOCS / name).read_text())
    assert table == doc_tables.TABLES[name](), "run make regenerate"
