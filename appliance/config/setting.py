"""One setting: how its value is read, checked and described; and addresses, which settings hold.

A reader takes the value from a file or a flag, or a value that was read before, and raises
ValueError or TypeError if it is wrong. Layer 1; does no I/O.
"""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.units import parse_duration_ms

LEVEL_COUNT_MAX: Final = 64

HOURS_PER_DAY: Final = 24

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_RACK: Final = re.compile(r"[!-~]{0,255}")

_KEY_PREFIX: Final = re.compile(r"[A-Za-z0-9/._-]{1,200}")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Address(NamedTuple):
    """An address to listen on or connect to; port 0 lets the kernel choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT`, an IPv6 host in brackets: `[::1]:9092`.

    Raises:
        ValueError: the text is not valid; the message says what is wrong.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("expected HOST:PORT, such as 127.0.0.1:9092")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"port {port!r} is not a number from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not isinstance(_ip_address(host), ipaddress.IPv6Address):
            raise ValueError(f"{host!r} is not an IPv6 address")
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets: [::1]:9092")
    elif not host.isprintable() or any(char in host for char in " /[]"):
        raise ValueError(f"{host!r} is not a host name")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect; of names, only for localhost."""
    address = _unmapped(_ip_address(host))
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_wildcard(host: str) -> bool:
    """Return whether it stands for all addresses of this machine, so no client can use it."""
    address = _unmapped(_ip_address(host))
    return address is not None and address.is_unspecified


def _ip_address(host: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _unmapped(address: IpAddress | None) -> IpAddress | None:
    """Return the IPv4 address in an IPv4-mapped IPv6 address such as ::ffff:127.0.0.1."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of one setting, besides its name in `Config` and its default."""

    key: str
    """Its key in the file: section, dot, name."""
    unit: str
    allowed: str
    """The allowed values, in words."""
    reason: str
    """Its effect and the reason for the default."""
    read: Callable[[object], object]
    flag: str = ""
    """The command line flag that overrides the file, if there is one."""


def value(
    default: object,
    key: str,
    read: Callable[[object], object],
    allowed: str,
    reason: str,
    *,
    unit: str = "",
    flag: str = "",
) -> Any:
    """Return a dataclass field for a setting; see `Setting` for the arguments.

    The type is Any for the same reason as that of `dataclasses.field`: the result is assigned to a
    field of another type.
    """
    setting = Setting(key, unit, allowed, reason, read, flag)
    return field(default=default, metadata={"setting": setting})


def number(
    default: int, key: str, bounds: tuple[int, int], reason: str, *, unit: str | None = None
) -> Any:
    """Return a dataclass field for a whole number within `bounds`, both inclusive.

    The default of `unit` is the last word of the key.
    """
    low, high = bounds
    read = partial(_read_number, low, high)
    words = key.rpartition("_")[2] if unit is None else unit
    return value(default, key, read, f"{low:_} to {high:_}", reason, unit=words)


def switch(default: bool, key: str, reason: str, flag: str = "") -> Any:
    """Return a dataclass field for a setting that is true or false."""
    return value(default, key, _read_switch, "true or false", reason, flag=flag)


def choice(default: str, key: str, choices: tuple[str, ...], reason: str, flag: str = "") -> Any:
    """Return a dataclass field for a setting that is one of some words."""
    allowed = " or ".join(choices) if len(choices) == 2 else ", ".join(choices)
    return value(default, key, partial(_read_choice, choices), allowed, reason, flag=flag)


def _read_number(low: int, high: int, value: object) -> int:
    # bool is an int to Python, but `interval_ms = true` is a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("it is not a whole number")
    if not low <= value <= high:
        raise ValueError("it is out of range")
    return value


def _read_choice(choices: tuple[str, ...], value: object) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError("it is not an allowed value")
    return value


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it is not a boolean")
    return value


def read_address(value: object) -> Address:
    return value if isinstance(value, Address) else parse_address(_read_text(value))


def read_optional_address(value: object) -> Address | None:
    return None if value is None else read_address(value)


def read_path(value: object) -> Path:
    path = value if isinstance(value, Path) else Path(_read_text(value))
    if "\0" in str(path):
        raise ValueError("it contains a zero byte")
    return path


def read_optional_path(value: object) -> Path | None:
    return None if value is None else read_path(value)


def read_key_prefix(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    if not _KEY_PREFIX.fullmatch(value):
        raise ValueError("it is no prefix of keys")
    return value


def read_names(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    for name in value.split():
        inside = name.removeprefix("[").removesuffix("]")
        is_address = _ip_address(inside) is not None and (name != inside) == (":" in inside)
        if not is_address and not _HOST_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a host")
    return value


def read_rack(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    if not _RACK.fullmatch(value):
        raise ValueError("it is longer, or has other characters")
    return value


def read_hours(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    parse_hours(value)
    return value


def parse_hours(text: str) -> frozenset[int]:
    """Return hours of the day: of `04;22-06` those from 04:00 to 05:00 and from 22:00 to 06:00.

    Raises:
        ValueError: the text is not valid; the message says what is wrong.
    """
    words = text.replace(",", ";").split(";") if text.strip() else []
    return frozenset(hour for word in words for hour in _hours_of(word.strip()))


def _hours_of(word: str) -> list[int]:
    first, dash, last = word.partition("-")
    begin = _hour(first.strip(), HOURS_PER_DAY - 1)
    end = _hour(last.strip(), HOURS_PER_DAY) if dash else begin + 1
    if begin == end:
        raise ValueError(f"{word} ends when it begins")
    return [hour % HOURS_PER_DAY for hour in range(begin, end + HOURS_PER_DAY * (end < begin))]


def _hour(text: str, last: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and int(text) <= last):
        raise ValueError(f"{text!r} is not an hour from 00 to {last}")
    return int(text)


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    if not value:
        raise ValueError("it is empty")
    return value


def read_levels(value: object) -> tuple[int, ...]:
    levels = value
    if not isinstance(levels, tuple):
        levels = tuple(parse_duration_ms(word) for word in _read_text(value).split())
    if not 1 <= len(levels) <= LEVEL_COUNT_MAX:
        raise ValueError(f"it has {len(levels)} levels")
    if not all(isinstance(level, int) and level >= 1 for level in levels):
        raise ValueError("a level is at least 1 ms")
    return levels
