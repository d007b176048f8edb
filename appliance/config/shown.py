"""Settings in the log, but for what is nobody's business. Layer 1."""

import logging
from typing import Final

from appliance.config.config import Address, Config, settings
from appliance.log_text import quoted
from appliance.units import format_duration_ms

SECRET_WORDS: Final = ("password", "secret", "token", "credential", "private")
"""A setting with one of them in its key is not shown in the log."""

VALUE_MAX_CHARS: Final = 1_000
"""Of a setting that is shown: a path may be as long as that."""

_log = logging.getLogger("latermq")


def log_settings(config: Config) -> None:
    """Say in the debug log what each setting is, but for what is nobody's business."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    for name, setting in settings().items():
        text = show_setting(setting.key, getattr(config, name))
        _log.debug("setting %s=%s", setting.key, text)


def show_setting(key: str, value: object) -> str:
    """Write the value of a setting for the log; a secret is not shown.

    Args:
        key: of the setting, as in the file.
        value: of its field in `Config`.
    """
    if any(word in key for word in SECRET_WORDS):
        return "hidden"
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case tuple() if not isinstance(value, Address):
            texts = (format_duration_ms(each) if type(each) is int else str(each) for each in value)
            return quoted(" ".join(texts), char_count_max=VALUE_MAX_CHARS)
        case _:
            return quoted(str(value), char_count_max=VALUE_MAX_CHARS)
