"""The example configuration in systemd/, which the table of settings determines.

`make regenerate` writes it; a test compares it.
"""

import textwrap
from pathlib import Path
from typing import Final

from appliance.config.config import Config, settings
from appliance.units import format_duration_ms

EXAMPLE_PATH: Final = Path(__file__).parents[3] / "systemd" / "latermq.toml"

_HEAD: Final = """\
# Settings of latermq. Each is here with its default, as a comment: remove the # of those that you
# change. The command line of the service overrides this file. Sizes are in bytes and durations in
# milliseconds, as the end of a name says.
"""

_EXAMPLES: Final = {
    "network.advertise": '"broker.example:9092"',
    "replication.etcd_ca_file": '"/etc/latermq/etcd-ca.pem"',
    "replication.etcd_certificate_file": '"/etc/latermq/etcd-client.pem"',
    "replication.master": '"10.0.0.1:9292"',
    "replication.peer": '"10.0.0.2:9292"',
    "replication.secret_file": '"/etc/latermq/pair.secret"',
}
"""Values for settings without a default."""


def example_config() -> str:
    """Return the whole file."""
    defaults = Config()
    lines = [_HEAD]
    last_section = ""
    for name, setting in settings().items():
        section, _, key = setting.key.rpartition(".")
        if section != last_section:
            lines.append(f"\n[{section}]\n")
            last_section = section
        allowed = f"{setting.allowed} {setting.unit}".rstrip()
        comment = f"{setting.reason} Allowed: {allowed}."
        lines.append("\n")
        lines += [f"# {line}\n" for line in textwrap.wrap(comment, width=96)]
        value = _EXAMPLES.get(setting.key) or _toml(setting.key, getattr(defaults, name))
        lines.append(f"#{key} = {value}\n")
    return "".join(lines)


def _toml(key: str, value: object) -> str:
    match value:
        case None:
            raise ValueError(f"{key} has no default: give an example in _EXAMPLES")
        case bool():
            return str(value).lower()
        case int():
            return f"{value:_}"
        case tuple() if all(isinstance(part, int) for part in value):
            return f'"{" ".join(format_duration_ms(part) for part in value)}"'
        case _:
            return f'"{value}"'


def main() -> None:
    """Write the file."""
    EXAMPLE_PATH.write_text(example_config())


if __name__ == "__main__":
    main()
