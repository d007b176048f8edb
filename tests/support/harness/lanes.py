"""Which tests are slow, and which of them run in one process: the lanes of `make`.

`make check` leaves out what is slow. `make test` runs everything, in as many processes as the
machine has processors; each takes whole groups of tests, the longest first, so that all of them end
at about the same time. A group is a file, unless `GROUPS` joins files or `SPLIT` divides one.
"""

from collections.abc import Mapping
from typing import Final

SLOW_DIRECTORY: Final = "system/"
"""Real processes, clients, disks, `kill -9` and fuzzing: all of it is slow."""

SLOW_FILES: Final[Mapping[str, float]] = {
    "commands": 40,
    "disks": 86,
    "programs": 70,
    "spark": 130,
    "system/clients/test_kafka_tools.py": 10,
    "system/clients/test_order_service.py": 24,
    "system/clients/test_rebalances.py": 10,
    "system/clients/test_retry_later.py": 20,
    "system/clients/test_snippets.py": 12,
    "system/fuzz/test_fuzz.py": 50,
    "system/kill9/test_kill9.py": 30,
    "system/replication/test_client_libraries.py": 30,
    "system/replication/test_etcd.py": 10,
    "system/replication/test_fail_over.py": 50,
    "system/replication/test_fail_over_rounds.py": 60,
    "system/replication/test_java_client.py": 12,
    "system/replication/test_lease.py": 15,
    "system/replication/test_namespaces.py": 15,
    "system/replication/test_pair_rounds.py": 22,
    "system/replication/test_peers.py": 12,
    "system/replication/test_promotion.py": 12,
    "system/replication/test_routes.py": 10,
    "system/replication/test_slave_log.py": 7,
    "system/replication/test_slave_reads.py": 12,
    "system/replication/test_sync_promotion.py": 10,
    "system/service/test_serve.py": 15,
    "system/service/test_start_and_stop.py": 9,
    "system/service/test_testing_page.py": 18,
    "test_packages.py": 20,
    "test_source.py": 60,
    "test_tidy.py": 8,
    "unit/backup/test_backup_crashes.py": 12,
    "unit/coordination/test_schedules.py": 6,
    "unit/core/log/test_window.py": 20,
    "unit/core/timers/test_due_queue_model.py": 20,
    "unit/groups/test_real_members.py": 14,
    "unit/groups/test_schedules.py": 19,
    "unit/kafka/test_codec_properties.py": 6,
    "unit/kafka/test_control_fuzz.py": 10,
    "unit/kafka/test_slave_answers.py": 15,
    "unit/keys/test_find_carried.py": 10,
    "unit/keys/test_key_index.py": 6,
    "unit/keys/test_key_index_crashes.py": 17,
    "unit/offsets/test_offset_crashes.py": 10,
    "unit/perf/test_clients.py": 18,
    "unit/offline/test_dump_carried.py": 5,
    "unit/pipeline/test_carried_facts.py": 25,
    "unit/pipeline/test_target.py": 8,
    "unit/replication/test_ends.py": 7,
    "unit/replication/test_pair_schedules.py": 7,
    "unit/replication/test_planted_faults.py": 13,
    "unit/store/test_call_failures.py": 110,
    "unit/store/test_crash_mutants.py": 7,
    "unit/store/test_crash_states.py": 60,
    "unit/store/test_every_byte.py": 50,
    "unit/store/test_unapplied_changes.py": 40,
    "unit/tables/test_carried.py": 50,
    "unit/timers/test_virtual_years.py": 7,
}
"""Path of a file, or name of a group -> seconds of one processor, measured.

What is neither here nor in `SLOW_FUNCTIONS` takes less than about half a second.
"""

SLOW_FUNCTIONS: Final[Mapping[str, Mapping[str, float]]] = {
    "unit/core/bytes/test_batch.py": {
        "test_batches_of_kafka_python_are_read_as_it_reads_them": 0.8,
    },
    "unit/core/paths/test_delay_text.py": {
        "test_any_value_is_judged_as_the_oracle_does": 6,
        "test_every_day_of_four_centuries_is_the_calendars_day": 0.9,
        "test_one_changed_byte_is_judged_as_the_oracle_does": 3,
    },
    "unit/core/paths/test_produced_frames.py": {
        "test_produced_batches_become_the_frames_that_the_model_makes": 1.2,
    },
    "unit/core/state/test_control_frames.py": {
        "test_what_is_encoded_is_read_again_also_with_the_padding_of_the_log": 1.7,
    },
    "unit/core/state/test_scan.py": {
        "test_bytes_below_a_later_mark_are_damage_and_others_a_torn_tail": 1.8,
    },
    "unit/core/timers/test_due_queue.py": {
        "test_a_million_timers_of_one_ms_pass_in_chunks_and_free_memory_on_the_way": 0.8,
        "test_a_million_timers_pass_in_order": 4,
        "test_memory_of_cancelled_timers_is_given_back": 0.7,
        "test_running_out_of_memory_loses_nothing": 0.9,
    },
    "unit/core/timers/test_id_index.py": {
        "TestIdIndexMachine": 3.4,
    },
    "unit/kafka/test_codec_properties_compiled.py": {
        "test_fetch_is_answered_for_what_was_asked_in_its_order": 1.4,
        "test_produce_is_answered_for_what_was_asked_in_its_order": 0.7,
    },
    "unit/kafka/test_codecs.py": {
        "test_a_flipped_bit_gives_a_declared_error_or_bounded_bytes": 0.9,
        "test_a_gibibyte_from_little_is_refused_with_little_memory": 0.9,
        "test_every_form_is_unpacked_at_every_size": 1.4,
    },
    "unit/kafka/test_prepared_codecs.py": {
        "test_no_first_request_compiles_once_all_are_prepared": 0.7,
    },
    "unit/kafka/test_delay_contract.py": {
        "test_batches_do_what_the_contract_says": 8.6,
    },
    "unit/kafka/test_delete_records.py": {
        "test_random_deletes_leave_what_a_list_leaves": 0.9,
    },
    "unit/kafka/test_fetch.py": {
        "test_partition_limit_is_kept_by_whole_batches": 1.2,
    },
    "unit/kafka/test_fetch_cold.py": {
        "test_header_that_rots_in_the_page_cache_is_found": 1.1,
        "test_no_order_of_fetches_gets_at_a_flipped_bit": 1.4,
    },
    "unit/kafka/test_fetch_sessions.py": {
        "test_fetch_that_continues_a_session_is_refused": 0.9,
    },
    "unit/kafka/test_list_offsets_cold.py": {
        "test_damaged_frames_are_passed_over_and_reported": 1.2,
    },
    "unit/kafka/test_session.py": {
        "test_damaged_request_is_answered_or_closes_the_connection": 3,
        "test_pieces_of_any_size_get_the_same_answers": 3,
    },
    "unit/offline/test_check_damage.py": {
        "test_no_flipped_bit_of_the_log_is_missed": 1.7,
    },
    "unit/offline/test_check_states.py": {
        "test_whatever_a_broker_does_its_states_follow_from_its_log": 1.1,
    },
    "unit/offline/test_export.py": {
        "test_a_segment_that_goes_away_meanwhile_is_reported_by_a_thread": 1.3,
        "test_threads_share_the_work": 1,
    },
    "unit/offline/test_offline_commands.py": {
        "test_a_killed_broker_leaves_what_is_whole": 8,
        "test_a_running_broker_is_looked_at_only_on_request": 5,
    },
    "unit/offline/test_offline_rebuild.py": {
        "test_a_kill_at_any_moment_harms_nothing": 1.6,
    },
    "unit/offsets/test_offset_model.py": {
        "test_offsets_are_those_of_the_model": 6.6,
    },
    "unit/offsets/test_offset_store.py": {
        "test_a_commit_taken_at_the_last_moment_has_its_place_in_the_reserve": 1.3,
        "test_a_thousand_partitions_are_committed_at_once": 0.9,
    },
    "unit/perf/test_check.py": {
        "test_the_command_compares_a_document_with_a_baseline": 0.8,
    },
    "unit/retention/test_carry_faults.py": {
        "test_a_failing_call_of_a_pass_costs_nothing": 19,
    },
    "unit/retention/test_early_expiry.py": {
        "test_a_producer_that_never_stops_is_never_refused": 1.5,
        "test_a_wrong_clock_expires_nothing_early": 0.9,
    },
    "unit/retention/test_recycling.py": {
        "test_a_crash_at_any_call_of_recycling_costs_nothing": 5,
        "test_a_failing_call_of_recycling_costs_nothing": 8,
        "test_old_bytes_stay_away_through_lives_of_any_kind": 2,
        "test_what_is_not_flushed_in_a_recycled_segment_is_lost_and_nothing_comes_back": 1.5,
    },
    "unit/retention/test_retention.py": {
        "test_a_thousand_busy_partitions_write_half_a_megabyte_of_starts_a_day": 0.6,
        "test_starts_rise_by_size_only_for_growth_that_is_worth_a_topic_frame": 0.8,
    },
    "unit/store/test_checkpoint.py": {
        "test_records_in_prewritten_segments_survive": 1.2,
    },
    "unit/store/test_checkpoint_faults.py": {
        "test_a_crash_while_a_state_is_saved_leaves_one_that_is_whole": 0.8,
    },
    "unit/store/test_consume_queue.py": {
        "test_nothing_wrong_is_served_whatever_happens_to_the_files": 3.0,
    },
    "unit/store/test_damage.py": {
        "test_a_frame_of_an_earlier_epoch_is_not_taken_up_again": 1.2,
        "test_damage_in_two_places_costs_no_record_of_another_frame": 1.5,
        "test_no_damage_makes_a_wrong_record": 5,
        "test_what_lay_after_a_cut_does_not_come_back": 1.2,
    },
    "unit/store/test_decisions.py": {
        "test_a_start_on_any_combination_is_as_the_table_says": 12,
    },
    "unit/store/test_gone_log.py": {
        "test_a_log_that_lacks_something_is_refused_and_served_when_it_is_back": 0.8,
    },
    "unit/store/test_log_snapshots.py": {
        "test_a_crash_at_any_step_leaves_a_whole_snapshot_or_none": 2.8,
        "test_a_crash_of_a_start_that_ends_the_log_early_leaves_a_snapshot_as_it_is": 3,
        "test_a_crash_at_any_step_of_a_deletion_leaves_the_whole_snapshot_or_nothing": 0.8,
    },
    "unit/store/test_runs.py": {
        "test_loading_runs_and_replaying_the_rest_is_a_full_replay": 3,
        "test_runs_of_many_lives_add_up": 1.7,
        "test_what_a_failed_checkpoint_did_not_save_is_in_the_next": 1.1,
    },
    "unit/store/test_topic_store.py": {
        "test_after_a_crash_each_change_is_there_or_is_not": 3.5,
    },
    "unit/store/test_write_after_damage.py": {
        "test_after_damage_to_any_frame": 5.9,
    },
    "unit/timers/test_cold_timers.py": {
        "test_any_mix_of_cold_and_hot_is_delivered_once_and_in_order": 1.0,
    },
    "unit/timers/test_cron_rules.py": {
        "test_each_second_around_a_change_has_the_next_instant_of_the_model": 1.7,
        "test_random_schedules_are_those_of_the_model": 2.5,
        "test_ten_years_are_those_of_the_model": 9,
        "test_the_hours_around_each_change_are_those_of_the_model": 6,
    },
}
"""Path -> function, or class of a state machine -> seconds, all of its cases together."""

SECONDS: Final[Mapping[str, float]] = {
    **SLOW_FILES,
    **{
        f"{path}::{function}": seconds
        for path, functions in SLOW_FUNCTIONS.items()
        for function, seconds in functions.items()
    },
}
"""The same by `path`, group or `path::function`."""

CHECKED: Final = ("test_source.py", "test_tidy.py")
"""Never slow, however long they take: style and types are what `make check` is for."""

SPLIT: Final = (
    "test_source.py",
    "unit/store/test_call_failures.py",
    "unit/store/test_crash_states.py",
    "unit/store/test_unapplied_changes.py",
    "unit/groups/test_schedules.py",
    "unit/replication/test_pair_schedules.py",
)
"""Entries of `SECONDS`, each of whose cases is a group."""

GROUPS: Final[Mapping[str, str]] = {
    # The programs and the suites wait most of the time, and share their brokers.
    "system/clients/test_features.py": "programs",
    "system/clients/test_suites.py": "programs",
    # Each fills, cuts off or spoils a disk of the kernel, which has few loop devices.
    "system/realdisk/": "disks",
    # Spark takes all processors, and much memory.
    "system/spark/": "spark",
    # They share one broker.
    "system/service/test_commands.py": "commands",
    "system/service/test_dlq.py": "commands",
    "system/service/test_send.py": "commands",
    "system/service/test_refused_start.py": "commands",
    "system/service/test_terminals.py": "commands",
}
"""Path of a file or a directory -> the group that it is in, which has an entry in `SECONDS`."""


def entry_of(path: str, case: str) -> str:
    """Return the key of a test in `SECONDS`: that of its function if there is one, else its file.

    Args:
        path: of its file, from the directory `tests`.
        case: its name, with parameters in brackets.
    """
    function = case.partition("[")[0].partition("::")[0]
    entry = f"{path}::{function}"
    return entry if entry in SECONDS else path


def is_slow(path: str, case: str) -> bool:
    """Return whether `make check` leaves a test out; for the arguments see `entry_of`."""
    if path in CHECKED:
        return False
    return path.startswith(SLOW_DIRECTORY) or entry_of(path, case) in SECONDS


def group_of(path: str, case: str) -> str:
    """Return the group that a test runs in; for the arguments see `entry_of`."""
    for prefix, group in GROUPS.items():
        if path.startswith(prefix):
            return group
    entry = entry_of(path, case)
    return f"{path}::{case}" if entry in SPLIT else entry


def seconds_of(path: str, case: str) -> float:
    """Return how long the group of a test takes at most; for the arguments see `entry_of`."""
    group = group_of(path, case)
    if group in SECONDS:
        return SECONDS[group]
    return SECONDS.get(entry_of(path, case), 0)
