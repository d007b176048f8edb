/* What the modes of the benchmark client share; perf/client/main.c says what each one does. */
#ifndef LATERMQ_PERF_CLIENT_H
#define LATERMQ_PERF_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include <librdkafka/rdkafka.h>

enum {
        TIME_LIMIT_S = 300, /* a run takes seconds; past this something hangs */
        PARTITIONS_MAX = 1024,
        CONNECTIONS_MAX = 10000,
        PAYLOAD_SIZE_MAX = 900000, /* below librdkafka's message.max.bytes of 1,000,000 */
        BLOCK_COUNT = 1000, /* records in a row to one partition, as sticky partitioners do */
        CONSUME_BATCH_COUNT = 10000,
};

/* The command line. Numbers that were not given are 0, texts NULL, unless main.c has a default. */
struct options {
        const char *mode;
        const char *brokers;
        const char *topic;
        const char *load_topic;
        const char *acks;
        const char *linger_ms;
        const char *file;
        long count;
        long size_bytes;
        long partition_count;
        long delay_ms;
        long delay_spread_ms;
        long lead_ms;
        long rate_per_s;
        long load_size_bytes;
        long connection_count;
        long window_count;
        long broker_pid;
        long per_sync_count;
        long key_count;
        long named_every;
        long cancel_every;
        long first;
        bool is_recycled;
};

/* Clock and CPU seconds of this process at one moment. */
struct usage {
        double wall_s; /* CLOCK_MONOTONIC: comparable between processes */
        double user_s;
        double system_s;
};

/* common.c */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct usage usage_now(void);
int64_t wall_us(void); /* microseconds since 1970 */
double process_cpu_s(long pid);
char *new_payload(long size_bytes);
void print_result(const struct options *options, long messages, double bytes, struct usage begin,
                  struct usage end, const char *more);
int print_percentiles(char *text, size_t size, double *values, long count, const char *unit);

/* kafka.c: what is common to librdkafka's producers and consumers */
void set(rd_kafka_conf_t *conf, const char *name, const char *value);
rd_kafka_t *new_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf);
rd_kafka_t *new_producer(const struct options *options);
rd_kafka_t *new_consumer(const struct options *options);
void await_metadata(rd_kafka_t *handle, const char *topic_name, long partition_count);
void produce_one(rd_kafka_t *producer, rd_kafka_topic_t *topic, int32_t partition,
                 const char *key, const char *header, const char *value, const char *id,
                 char *payload, long size_bytes, int flags);
void await_acknowledged(rd_kafka_t *producer);
void assign_from_beginning(rd_kafka_t *consumer, const struct options *options);
double take(rd_kafka_message_t *message, int64_t *next_offsets);

/* one mode each */
void produce(const struct options *options);
void consume(const struct options *options);
void mock(const struct options *options);
void burst(const struct options *options);
void lateness(const struct options *options);
void pipeline(const struct options *options);
void limit_receive(const struct options *options);
void limit_write(const struct options *options);
void limit_sync(const struct options *options);

#endif
