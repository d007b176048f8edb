"""Reads the settings of a broker from a file.

The file is TOML with one section for each part; a command line flag overrides it.
Layer 1; reads through `FileSystem`.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from appliance.config.config import Config, settings
from appliance.errors import ConfigError, StorageError
from appliance.log_text import SHOWN_MAX_CHARS
from appliance.system.files import FileSystem
from appliance.units import KIB, MIB

CONFIG_FILE_SIZE_MAX_BYTES: Final = MIB

LINE_SIZE_MAX_BYTES: Final = 8 * KIB
"""More than the longest path. The time to read a key grows with the square of its parts."""

DEPTH_MAX: Final = 8
"""Of tables in tables; a setting is at depth 2."""


def load_config(path: Path | None, overrides: Mapping[str, object], fs: FileSystem) -> Config:
    """Make the configuration from a TOML file and the command line.

    Args:
        path: the file; None for none.
        overrides: values by field name of `Config`, which override the file; None means absent.
        fs: file system of the file.

    Raises:
        ConfigError: the file cannot be read, or names or values in it or in `overrides` are wrong.
    """
    names_by_key = {setting.key: name for name, setting in settings().items()}
    values: dict[str, Any] = {}
    if path is not None:
        for key, value in _flatten(_read_toml(path, fs), path, prefix=""):
            if key not in names_by_key:
                shown = key[:SHOWN_MAX_CHARS]
                raise ConfigError(f"{path}: unknown setting {shown}{_suggest(shown, names_by_key)}")
            values[names_by_key[key]] = value
    for name, value in overrides.items():
        if name not in names_by_key.values():
            raise ConfigError(f"unknown setting {name}{_suggest(name, names_by_key.values())}")
        if value is not None:
            values[name] = value
    return Config(**values)


def _read_toml(path: Path, fs: FileSystem) -> dict[str, object]:
    try:
        with closing(fs.open(path, writable=False)) as file:
            content = file.pread(CONFIG_FILE_SIZE_MAX_BYTES + 1, 0)
    except StorageError as error:
        raise ConfigError(f"cannot read the configuration file: {error}") from error
    if len(content) > CONFIG_FILE_SIZE_MAX_BYTES:
        raise ConfigError(f"{path} is larger than {CONFIG_FILE_SIZE_MAX_BYTES} bytes")
    for number, line in enumerate(content.splitlines(), 1):
        if len(line) > LINE_SIZE_MAX_BYTES:
            raise ConfigError(f"{path}: line {number} is longer than {LINE_SIZE_MAX_BYTES} bytes")
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        raise ConfigError(f"{path}: values are nested too deeply") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except ValueError as error:  # what follows the semicolon is advice for programmers
        raise ConfigError(f"{path}: {str(error).partition(';')[0]}") from error


def _flatten(
    table: Mapping[str, object], path: Path, *, prefix: str, depth: int = 1
) -> list[tuple[str, object]]:
    """Return the values of nested tables with dotted keys."""
    if depth > DEPTH_MAX:
        raise ConfigError(f"{path}: tables are nested too deeply: {prefix[:SHOWN_MAX_CHARS]}...")
    found: list[tuple[str, object]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found.extend(_flatten(value, path, prefix=f"{prefix}{name}.", depth=depth + 1))
        else:
            found.append((prefix + name, value))
    return found


def _suggest(unknown: str, known: Iterable[str]) -> str:
    """Return the end of an error message: a suggestion, or all settings."""
    known = list(known)
    last = unknown.rpartition(".")[2]
    close = [name for name in known if name.rpartition(".")[2] == last]
    close = close or difflib.get_close_matches(unknown, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"
