"""The index of keys: fields of `Config`. Layer 1; does no I/O."""

from dataclasses import dataclass

from appliance.config.setting import switch


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """The index of keys."""

    index_keys: bool = switch(
        True,
        "index.keys",
        "Indexes the keys of records and the ids of timers in the background, for `latermq find`. "
        "Without it `find` reads the log. A topic may say otherwise.",
    )
