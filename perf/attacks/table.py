"""All attacks on a running broker, a row for each: to try something new, add one."""

from typing import Final

from perf.attacks import connections, controls, groups, reads, writes
from perf.attacks.arena import Attack

_UNPACKED: Final = frozenset({"unpacked"})
_CACHE: Final = frozenset({"cache"})
_ROOM: Final = "[topics]\npartition_total_max = 200_000\n[disk]\nrefuse_percent = 100\n"

ATTACKS: Final = (
    Attack("control-processors", controls.burn_processors, is_control=True),
    Attack("control-network", controls.fill_network, is_control=True),
    Attack("control-disk", controls.sync_files, is_control=True),
    # The ones that were seen.
    Attack(
        "search-one-96-times",
        reads.search_one_96_times,
        is_flood=False,
        prepare=reads.prepare_search,
        holds=_UNPACKED | _CACHE,
    ),
    Attack(
        "search-once",
        reads.search_once,
        is_flood=False,
        prepare=reads.prepare_search,
        holds=_UNPACKED | _CACHE,
    ),
    Attack("park-large-fetches", reads.park_large_fetches, holds=frozenset({"request"})),
    Attack("park-and-hang-up", reads.park_and_hang_up, holds=frozenset({"request"})),
    Attack("admin-heads", connections.admin_heads),
    Attack("admin-unread", connections.admin_unread, prepare=connections.prepare_admin),
    Attack("describe-groups", groups.describe, prepare=groups.prepare_large_groups),
    Attack("park-wide-fetches", reads.park_wide_fetches, prepare=reads.prepare_wide, config=_ROOM),
    Attack(
        "use-up-files",
        connections.use_up_files,
        prepare=connections.prepare_rolls,
        config=connections.FEW_FILES_CONFIG,
        file_limit=connections.FEW_FILES,
    ),
    Attack("unread-log", connections.malformed, is_unread=True),
    Attack("unpack-16", writes.unpack_16, prepare=writes.prepare_topic, holds=_UNPACKED),
    Attack("unpack-400", writes.unpack_400, prepare=writes.prepare_topic, holds=_UNPACKED),
    Attack("unpack-large", writes.unpack_large, prepare=writes.prepare_topic, holds=_UNPACKED),
    Attack("ask-large", reads.ask_large, prepare=reads.prepare_search),
    Attack("producer-ids", writes.producer_ids, prepare=writes.prepare_producers),
    Attack("rejoin", groups.rejoin, prepare=groups.prepare_large_group),
    Attack("name-new-topics", reads.name_new_topics, is_flood=False),
    # Further ones.
    Attack(
        "search-96",
        reads.search_96,
        is_flood=False,
        prepare=reads.prepare_search,
        holds=_UNPACKED | _CACHE,
    ),
    Attack(
        "six-million-records",
        writes.six_million_records,
        is_flood=False,
        prepare=writes.prepare_topic,
        holds=_UNPACKED,
    ),
    Attack(
        "large-request",
        writes.large_request,
        is_flood=False,
        prepare=writes.prepare_fifty,
        holds=frozenset({"request"}),
    ),
    Attack(
        "large-batch",
        writes.large_batch,
        is_flood=False,
        prepare=writes.prepare_large_topic,
        holds=frozenset({"request"}),
    ),
    Attack(
        "million-headers",
        writes.million_headers,
        is_flood=False,
        prepare=writes.prepare_topic,
        holds=_UNPACKED,
    ),
    Attack(
        "hundred-thousand-timers",
        writes.hundred_thousand_timers,
        is_flood=False,
        prepare=writes.prepare_topic,
        holds=_UNPACKED,
    ),
    Attack(
        "tiny-frames",
        writes.tiny_frames,
        is_flood=False,
        prepare=writes.prepare_topic,
        holds=_UNPACKED,
    ),
    Attack("unpack-gzip", writes.unpack_gzip, prepare=writes.prepare_topic, holds=_UNPACKED),
    Attack("unpack-frames", writes.unpack_frames, prepare=writes.prepare_topic, holds=_UNPACKED),
    Attack("fetch-unread", reads.fetch_unread, prepare=reads.fill_topic, holds=_CACHE),
    Attack("metadata-unread", reads.metadata_unread, prepare=reads.prepare_metadata),
    Attack("configs-unread", reads.configs_unread, prepare=reads.prepare_metadata),
    Attack("many-items", reads.many_items, is_flood=False),
    Attack(
        "commits",
        writes.commits,
        prepare=writes.prepare_producers,
        holds=frozenset({"offsets", "request"}),
    ),
    Attack(
        "offsets-unread",
        writes.offsets_unread,
        prepare=writes.prepare_offsets,
        holds=frozenset({"offsets"}),
    ),
    Attack(
        "delayed-zeros",
        writes.delayed_zeros,
        prepare=writes.prepare_topic,
        holds=_UNPACKED | _CACHE,
    ),
    Attack("create-partitions", writes.create_partitions, is_flood=False, config=_ROOM),
    Attack("park-many-fetches", reads.park_many_fetches),
    Attack("find", connections.find, prepare=reads.fill_topic, holds=_CACHE),
    Attack("churn", reads.churn),
)
