/*
 * The load of perf/bench.py. A client in C, so that it is as small a part of what is measured as a
 * real Kafka client can be.
 *
 *   client MODE --brokers HOST:PORT --topic NAME --count N --size BYTES [--partitions N] ...
 *
 * produce   sends N records of the same BYTES and waits until each is acknowledged. With --delay-ms
 *           each record carries the header x-delay, from that to --delay-spread-ms more. One more
 *           record, without header, goes to partition 0 before the clock starts: it makes
 *           librdkafka connect to the leader. With --keys K the others have keys, key-0 to key-K-1.
 *           With --named-every K each K-th delayed record I has the id id-F+I, F is --first. With
 *           --cancel-every K record I cancels the id id-F+K*I instead.
 * consume   assigns all partitions from the beginning, without a group, and reads N records; their
 *           offsets must be dense.
 * burst     sends N records that are due at one millisecond, --lead-ms from the start; then a
 *           consumer that waited all the time takes them. The time is from due to the last.
 *           --broker-pid: whose CPU time in that part is printed as well.
 * lateness  sends N records due one after the other at --rate a second, the first --lead-ms from
 *           the start, and prints percentiles of how late they came. With --load-size a producer
 *           in the same process sends records of that size to --load-topic as fast as it can.
 * pipeline  N Produce requests of one record over --connections plain sockets, --window of them in
 *           flight in all.
 * mock      runs librdkafka's mock cluster (one broker, stores next to nothing) in this process,
 *           prints "mock ready kafka=HOST:PORT" and stays until standard input ends.
 * limit-receive  receives N MiB over loopback; with --file writes them.
 * limit-write    writes N MiB to --file; with --per-sync K an fdatasync after every K.
 * limit-sync     N times a write of BYTES to --file and an fdatasync.
 *                --recycled: to a file that was written before.
 *
 * All print one JSON object on standard output; the clock is CLOCK_MONOTONIC, CPU seconds are this
 * process's own, over the measured part. Exit 0; 1 if anything was not sent, acknowledged or read
 * within TIME_LIMIT_S, or came early, with the reason on standard error; 2 on bad arguments.
 */
#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct text_option {
        const char *name;
        size_t at;
};

struct number_option {
        const char *name;
        size_t at;
        long smallest;
        long largest;
};

#define AT(member) offsetof(struct options, member)

static const struct text_option texts[] = {
    {"brokers", AT(brokers)}, {"topic", AT(topic)},         {"load-topic", AT(load_topic)},
    {"acks", AT(acks)},       {"linger-ms", AT(linger_ms)}, {"file", AT(file)},
};

static const struct number_option numbers[] = {
    {"count", AT(count), 1, 1000000000},
    {"size", AT(size_bytes), 8, PAYLOAD_SIZE_MAX},
    {"partitions", AT(partition_count), 1, PARTITIONS_MAX},
    {"delay-ms", AT(delay_ms), 1, 315360000000},
    {"delay-spread-ms", AT(delay_spread_ms), 0, 315360000000},
    {"lead-ms", AT(lead_ms), 1, 200000},
    {"rate", AT(rate_per_s), 1, 1000000},
    {"load-size", AT(load_size_bytes), 1, PAYLOAD_SIZE_MAX},
    {"connections", AT(connection_count), 1, CONNECTIONS_MAX},
    {"window", AT(window_count), 1, 1000000},
    {"broker-pid", AT(broker_pid), 1, 1 << 30},
    {"per-sync", AT(per_sync_count), 1, 1000000},
    {"keys", AT(key_count), 1, 1000000000},
    {"named-every", AT(named_every), 1, 1000000000},
    {"cancel-every", AT(cancel_every), 1, 1000000000},
    {"first", AT(first), 0, 1000000000},
};

static const struct mode {
        const char *name;
        void (*run)(const struct options *options);
        const char *wants; /* options that it cannot do without, each between blanks */
} modes[] = {
    {"produce", produce, " brokers topic count size "},
    {"consume", consume, " brokers topic count "},
    {"burst", burst, " brokers topic count size lead-ms "},
    {"lateness", lateness, " brokers topic count size lead-ms rate "},
    {"pipeline", pipeline, " brokers topic count size "},
    {"mock", mock, " topic "},
    {"limit-receive", limit_receive, " count "},
    {"limit-write", limit_write, " count file "},
    {"limit-sync", limit_sync, " count file size "},
};

enum { TEXT_COUNT = sizeof texts / sizeof *texts, NUMBER_COUNT = sizeof numbers / sizeof *numbers };

static _Noreturn void usage_error(const char *what, const char *name) {
        fprintf(stderr, "client: %s%s (see the head of perf/client/main.c)\n", what, name);
        exit(2);
}

static const char **text_at(struct options *options, size_t at) {
        return (const char **)((char *)options + at);
}

static long *number_at(struct options *options, size_t at) {
        return (long *)((char *)options + at);
}

static long parse_number(const char *text, const struct number_option *option) {
        char *end;
        errno = 0;
        long value = strtol(text, &end, 10);
        if (errno || *text == '\0' || *end != '\0' || value < option->smallest ||
            value > option->largest) {
                fprintf(stderr, "client: --%s %s: want %ld to %ld\n", option->name, text,
                        option->smallest, option->largest);
                exit(2);
        }
        return value;
}

static struct options parse(int argc, char **argv) {
        struct option names[TEXT_COUNT + NUMBER_COUNT + 2] = {0};
        for (int i = 0; i < TEXT_COUNT; i++)
                names[i] = (struct option){texts[i].name, required_argument, NULL, 0};
        for (int i = 0; i < NUMBER_COUNT; i++)
                names[TEXT_COUNT + i] =
                    (struct option){numbers[i].name, required_argument, NULL, 0};
        names[TEXT_COUNT + NUMBER_COUNT] = (struct option){"recycled", no_argument, NULL, 0};
        struct options options = {.acks = "1", .linger_ms = "5", .partition_count = 1,
                                  .connection_count = 1, .window_count = 2000};
        int index = 0, letter;
        while ((letter = getopt_long(argc, argv, "", names, &index)) != -1) {
                if (letter != 0)
                        usage_error("unknown option", "");
                if (index < TEXT_COUNT)
                        *text_at(&options, texts[index].at) = optarg;
                else if (index < TEXT_COUNT + NUMBER_COUNT)
                        *number_at(&options, numbers[index - TEXT_COUNT].at) =
                            parse_number(optarg, &numbers[index - TEXT_COUNT]);
                else
                        options.is_recycled = true;
        }
        if (optind != argc - 1)
                usage_error("want one mode", "");
        options.mode = argv[optind];
        return options;
}

static bool is_wanted(const struct mode *mode, const char *name) {
        const char *found = strstr(mode->wants, name);
        return found && found[-1] == ' ' && found[strlen(name)] == ' ';
}

static void check(const struct mode *mode, struct options *options) {
        for (int i = 0; i < TEXT_COUNT; i++)
                if (is_wanted(mode, texts[i].name) && !*text_at(options, texts[i].at))
                        usage_error("missing: --", texts[i].name);
        for (int i = 0; i < NUMBER_COUNT; i++)
                if (is_wanted(mode, numbers[i].name) && !*number_at(options, numbers[i].at))
                        usage_error("missing: --", numbers[i].name);
        if (options->load_size_bytes && !options->load_topic)
                usage_error("missing: --", "load-topic");
}

int main(int argc, char **argv) {
        struct options options = parse(argc, argv);
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
                if (strcmp(options.mode, modes[i].name) == 0) {
                        check(&modes[i], &options);
                        modes[i].run(&options);
                        return 0;
                }
        usage_error("unknown mode ", options.mode);
}
