/*
 * Load generator on librdkafka for perf/bench.py. A client in C, so that the client is as small a
 * part of what is measured as a real Kafka client can be.
 *
 *   client produce --brokers HOST:PORT --topic NAME --count N --size BYTES [--partitions N]
 *                  [--acks 0|1|-1] [--linger-ms N] [--delay VALUE]
 *   client consume --brokers HOST:PORT --topic NAME --count N [--partitions N]
 *   client mock    --topic NAME [--partitions N]
 *
 * produce  sends N records of the same BYTES and waits until each is acknowledged. With --delay
 *          each record carries the header x-delay: VALUE. One more record, without header, goes to
 *          partition 0 before the clock starts: it makes librdkafka connect to the leader.
 * consume  assigns all partitions from the beginning, without a group, and reads N records; offsets
 *          must be dense.
 * mock     runs librdkafka's mock cluster (one broker, stores next to nothing) in this process,
 *          prints "mock ready HOST:PORT" and stays until standard input ends.
 *
 * produce and consume print one JSON object on standard output. MB is 1e6 payload bytes; CPU
 * seconds are this process's own, over the measured part. Exit 0; 1 if anything was not sent,
 * acknowledged or read within TIME_LIMIT_S, with the reason on standard error; 2 on bad arguments.
 */
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

enum {
        TIME_LIMIT_S = 300,      /* a run takes seconds; past this something hangs */
        PARTITIONS_MAX = 1024,
        PAYLOAD_SIZE_MAX = 900000, /* below librdkafka's message.max.bytes of 1,000,000 */
        BLOCK_COUNT = 1000,      /* records in a row to one partition, as sticky partitioners do */
        CONSUME_BATCH_COUNT = 10000,
};

struct options {
        const char *mode;
        const char *brokers;
        const char *topic;
        const char *acks;
        const char *linger_ms;
        const char *delay; /* NULL: no header */
        long count;
        long size_bytes;
        long partition_count;
};

struct usage {
        double wall_s;
        double user_s;
        double system_s;
};

static long failed_count; /* written by the delivery callback, which runs in rd_kafka_poll */

static void die(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        fputs("client: ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
        exit(1);
}

static double seconds_of(struct timeval value) {
        return (double)value.tv_sec + (double)value.tv_usec / 1e6;
}

static struct usage usage_now(void) {
        struct timespec now;
        struct rusage own;
        clock_gettime(CLOCK_MONOTONIC, &now);
        getrusage(RUSAGE_SELF, &own);
        struct usage result = {
            .wall_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9,
            .user_s = seconds_of(own.ru_utime),
            .system_s = seconds_of(own.ru_stime),
        };
        return result;
}

static void print_result(const struct options *options, long messages, double bytes,
                         struct usage begin, struct usage end, double startup_s) {
        double wall_s = end.wall_s - begin.wall_s;
        printf("{\"mode\": \"%s\", \"messages\": %ld, \"bytes\": %.0f, \"seconds\": %.6f, "
               "\"msgs_per_s\": %.1f, \"mb_per_s\": %.3f, \"cpu_user_s\": %.4f, "
               "\"cpu_system_s\": %.4f, \"startup_s\": %.4f, \"librdkafka\": \"%s\"}\n",
               options->mode, messages, bytes, wall_s, (double)messages / wall_s,
               bytes / wall_s / 1e6, end.user_s - begin.user_s, end.system_s - begin.system_s,
               startup_s, rd_kafka_version_str());
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
        char reason[256];
        if (rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK)
                die("%s=%s: %s", name, value, reason);
}

static rd_kafka_t *new_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
        char reason[256];
        rd_kafka_t *handle = rd_kafka_new(type, conf, reason, sizeof reason);
        if (!handle)
                die("cannot create the client: %s", reason);
        return handle;
}

/* Connects and learns the topic's leaders, so that neither is part of what is timed. */
static void await_metadata(rd_kafka_t *handle, const char *topic_name, long partition_count) {
        rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, topic_name, NULL);
        const struct rd_kafka_metadata *metadata;
        rd_kafka_resp_err_t code = rd_kafka_metadata(handle, 0, topic, &metadata, 10000);
        if (code)
                die("metadata of %s: %s", topic_name, rd_kafka_err2str(code));
        if (metadata->topic_cnt != 1 || metadata->topics[0].partition_cnt < partition_count)
                die("topic %s: want %ld partitions, the broker has %d", topic_name, partition_count,
                    metadata->topic_cnt == 1 ? metadata->topics[0].partition_cnt : 0);
        rd_kafka_metadata_destroy(metadata);
        rd_kafka_topic_destroy(topic);
}

static void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
        (void)handle;
        (void)opaque;
        /* Only failures come here (delivery.report.only.error): one for each record costs the
         * client more than the broker needs for the record. */
        if (!message->err)
                return;
        if (failed_count++ == 0)
                fprintf(stderr, "client: not delivered: %s\n", rd_kafka_err2str(message->err));
}

static rd_kafka_t *new_producer(const struct options *options) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", options->brokers);
        set(conf, "acks", options->acks);
        set(conf, "linger.ms", options->linger_ms);
        set(conf, "compression.type", "none");
        set(conf, "queue.buffering.max.messages", "500000");
        set(conf, "delivery.report.only.error", "true");
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
        return new_handle(RD_KAFKA_PRODUCER, conf);
}

/* Queues one record; waits while librdkafka's queue is full. The payload is not copied. */
static void produce_one(rd_kafka_t *producer, rd_kafka_topic_t *topic, int32_t partition,
                        char *payload, const struct options *options) {
        for (;;) {
                rd_kafka_resp_err_t code = 0;
                if (options->delay)
                        code = rd_kafka_producev(
                            producer, RD_KAFKA_V_RKT(topic), RD_KAFKA_V_PARTITION(partition),
                            RD_KAFKA_V_VALUE(payload, (size_t)options->size_bytes),
                            RD_KAFKA_V_HEADER("x-delay", options->delay, -1), RD_KAFKA_V_END);
                else if (rd_kafka_produce(topic, partition, 0, payload,
                                          (size_t)options->size_bytes, NULL, 0, NULL) == -1)
                        code = rd_kafka_last_error();
                if (!code)
                        return;
                if (code != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                        die("produce: %s", rd_kafka_err2str(code));
                rd_kafka_poll(producer, 1);
        }
}

/* Waits until all is acknowledged. Short waits: flush looks at its queue only when one ends. */
static void await_acknowledged(rd_kafka_t *producer) {
        double begin_s = usage_now().wall_s;
        while (rd_kafka_flush(producer, 1) == RD_KAFKA_RESP_ERR__TIMED_OUT)
                if (usage_now().wall_s - begin_s > TIME_LIMIT_S)
                        die("%d records not acknowledged within %d s", rd_kafka_outq_len(producer),
                            TIME_LIMIT_S);
        if (failed_count)
                die("%ld records were not delivered", failed_count);
}

static char *new_payload(long size_bytes) {
        char *payload = malloc((size_t)size_bytes + 1);
        if (!payload)
                die("out of memory");
        for (long i = 0; i < size_bytes; i++)
                payload[i] = (char)('a' + i % 26);
        return payload;
}

static void produce(const struct options *options) {
        struct usage start = usage_now();
        rd_kafka_t *producer = new_producer(options);
        await_metadata(producer, options->topic, options->partition_count);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options->topic, NULL);
        char *payload = new_payload(options->size_bytes);
        struct options without_delay = *options;
        without_delay.delay = NULL;
        produce_one(producer, topic, 0, payload, &without_delay);
        await_acknowledged(producer);

        struct usage begin = usage_now();
        for (long i = 0; i < options->count; i++) {
                int32_t partition = (int32_t)(i / BLOCK_COUNT % options->partition_count);
                produce_one(producer, topic, partition, payload, options);
                if (i % BLOCK_COUNT == 0)
                        rd_kafka_poll(producer, 0);
        }
        await_acknowledged(producer);
        struct usage end = usage_now();

        print_result(options, options->count, (double)options->count * (double)options->size_bytes,
                     begin, end, begin.wall_s - start.wall_s);
        rd_kafka_topic_destroy(topic);
        rd_kafka_destroy(producer);
        free(payload);
}

static rd_kafka_t *new_consumer(const struct options *options) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", options->brokers);
        set(conf, "group.id", "perf"); /* asked for by the API; the group is never joined */
        set(conf, "enable.auto.commit", "false");
        set(conf, "queued.min.messages", "1000000"); /* keep fetching: bounded by bytes (64 MB) */
        return new_handle(RD_KAFKA_CONSUMER, conf);
}

static void assign_from_beginning(rd_kafka_t *consumer, const struct options *options) {
        int partition_count = (int)options->partition_count;
        rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partition_count);
        for (int i = 0; i < partition_count; i++)
                rd_kafka_topic_partition_list_add(list, options->topic, i)->offset =
                    RD_KAFKA_OFFSET_BEGINNING;
        rd_kafka_resp_err_t code = rd_kafka_assign(consumer, list);
        if (code)
                die("assign: %s", rd_kafka_err2str(code));
        rd_kafka_topic_partition_list_destroy(list);
}

/* Takes one message: its size in bytes. Dies if an offset is not the one after the last. */
static double take(rd_kafka_message_t *message, int64_t *next_offsets) {
        if (message->err)
                die("consume: %s", rd_kafka_message_errstr(message));
        int64_t *next = &next_offsets[message->partition];
        if (message->offset != *next)
                die("partition %d: offset %lld after %lld", (int)message->partition,
                    (long long)message->offset, (long long)*next - 1);
        *next = message->offset + 1;
        double size_bytes = (double)message->len;
        rd_kafka_message_destroy(message);
        return size_bytes;
}

static void consume(const struct options *options) {
        static rd_kafka_message_t *messages[CONSUME_BATCH_COUNT];
        static int64_t next_offsets[PARTITIONS_MAX];
        struct usage start = usage_now();
        rd_kafka_t *consumer = new_consumer(options);
        await_metadata(consumer, options->topic, options->partition_count);
        rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);

        struct usage begin = usage_now();
        double bytes = 0;
        long count = 0;
        assign_from_beginning(consumer, options);
        while (count < options->count) {
                ssize_t got =
                    rd_kafka_consume_batch_queue(queue, 100, messages, CONSUME_BATCH_COUNT);
                if (got < 0)
                        die("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
                for (ssize_t i = 0; i < got; i++)
                        bytes += take(messages[i], next_offsets);
                count += got;
                if (usage_now().wall_s - begin.wall_s > TIME_LIMIT_S)
                        die("read %ld of %ld records within %d s", count, options->count,
                            TIME_LIMIT_S);
        }
        struct usage end = usage_now();

        print_result(options, count, bytes, begin, end, begin.wall_s - start.wall_s);
        rd_kafka_queue_destroy(queue);
        rd_kafka_consumer_close(consumer);
        rd_kafka_destroy(consumer);
}

/* The mock leaves Nagle's algorithm on, so that its last answers wait 40 ms for a delayed ACK: in
 * a run of half a second that flatters whatever is compared with it. librdkafka gives no access to
 * the socket, so the listening ones are looked for; accepted sockets inherit the option. */
static void switch_off_nagle(void) {
        int found_count = 0;
        for (int fd = 0; fd < 256; fd++) {
                int is_listening = 0, on = 1;
                socklen_t size = sizeof is_listening;
                if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) ||
                    !is_listening)
                        continue;
                if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on))
                        die("TCP_NODELAY on the mock's socket: %s", strerror(errno));
                found_count++;
        }
        if (found_count != 1)
                die("%d listening sockets found, want the mock's one", found_count);
}

static void mock(const struct options *options) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "log_level", "4"); /* it warns that it has no bootstrap.servers: it is one */
        rd_kafka_t *handle = new_handle(RD_KAFKA_PRODUCER, conf);
        rd_kafka_mock_cluster_t *cluster = rd_kafka_mock_cluster_new(handle, 1);
        if (!cluster)
                die("cannot create the mock cluster");
        switch_off_nagle();
        rd_kafka_resp_err_t code = rd_kafka_mock_topic_create(
            cluster, options->topic, (int)options->partition_count, 1);
        if (code)
                die("create topic %s: %s", options->topic, rd_kafka_err2str(code));
        printf("mock ready %s\n", rd_kafka_mock_cluster_bootstraps(cluster));
        fflush(stdout);
        char ignored[64];
        ssize_t got;
        do
                got = read(STDIN_FILENO, ignored, sizeof ignored);
        while (got > 0 || (got < 0 && errno == EINTR));
        rd_kafka_mock_cluster_destroy(cluster);
        rd_kafka_destroy(handle);
}

static void usage_error(const char *reason) {
        fprintf(stderr, "client: %s (see the head of perf/client.c)\n", reason);
        exit(2);
}

static long number(const char *text, long smallest, long largest, const char *name) {
        char *end;
        errno = 0;
        long value = strtol(text, &end, 10);
        if (errno || *text == '\0' || *end != '\0' || value < smallest || value > largest) {
                fprintf(stderr, "client: --%s %s: want %ld to %ld\n", name, text, smallest,
                        largest);
                exit(2);
        }
        return value;
}

static struct options parse(int argc, char **argv) {
        static const struct option names[] = {
            {"brokers", required_argument, NULL, 'b'}, {"topic", required_argument, NULL, 't'},
            {"count", required_argument, NULL, 'n'},   {"size", required_argument, NULL, 's'},
            {"partitions", required_argument, NULL, 'p'}, {"acks", required_argument, NULL, 'a'},
            {"linger-ms", required_argument, NULL, 'l'},  {"delay", required_argument, NULL, 'd'},
            {NULL, 0, NULL, 0},
        };
        struct options options = {.acks = "1", .linger_ms = "5", .partition_count = 1};
        int letter;
        while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1) {
                switch (letter) {
                case 'b': options.brokers = optarg; break;
                case 't': options.topic = optarg; break;
                case 'n': options.count = number(optarg, 1, 1000000000, "count"); break;
                case 's': options.size_bytes = number(optarg, 1, PAYLOAD_SIZE_MAX, "size"); break;
                case 'p':
                        options.partition_count = number(optarg, 1, PARTITIONS_MAX, "partitions");
                        break;
                case 'a': options.acks = optarg; break;
                case 'l': options.linger_ms = optarg; break;
                case 'd': options.delay = optarg; break;
                default: usage_error("unknown option");
                }
        }
        if (optind != argc - 1)
                usage_error("want one mode: produce, consume or mock");
        options.mode = argv[optind];
        return options;
}

int main(int argc, char **argv) {
        struct options options = parse(argc, argv);
        int is_mock = strcmp(options.mode, "mock") == 0;
        if (!options.topic)
                usage_error("--topic is missing");
        if (!is_mock && (!options.brokers || !options.count))
                usage_error("--brokers or --count is missing");
        if (is_mock)
                mock(&options);
        else if (strcmp(options.mode, "consume") == 0)
                consume(&options);
        else if (strcmp(options.mode, "produce") == 0 && options.size_bytes)
                produce(&options);
        else
                usage_error("want produce (with --size), consume or mock");
        return 0;
}
