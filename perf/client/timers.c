/* Modes burst and lateness: how late delayed records come to a consumer that waits for them. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

enum {
        LOAD_EARLY_US = 300000, /* the load runs at full speed before the first record is due */
        MARGIN_US = 100000,     /* all must be acknowledged this long before */
};

/* Both modes send everything first, so that what is measured is delivery alone. */
static void check_in_time(int64_t due_us, const struct options *options) {
        int64_t spare_us = due_us - wall_us();
        if (spare_us < MARGIN_US)
                die("%ld records were acknowledged %.0f ms before the first was due, want %d; the "
                    "broker is slower than --lead-ms %ld expects",
                    options->count, (double)spare_us / 1e3, MARGIN_US / 1000, options->lead_ms);
}

static rd_kafka_t *waiting_consumer(const struct options *options) {
        rd_kafka_t *consumer = new_consumer(options);
        await_metadata(consumer, options->topic, options->partition_count);
        assign_from_beginning(consumer, options);
        return consumer;
}

static void close_consumer(rd_kafka_t *consumer) {
        rd_kafka_consumer_close(consumer);
        rd_kafka_destroy(consumer);
}

/* Takes `count` messages of any partition; returns when the last one came, in us since 1970. */
static int64_t take_all(rd_kafka_queue_t *queue, long count, int64_t due_us) {
        static rd_kafka_message_t *messages[CONSUME_BATCH_COUNT];
        static int64_t next_offsets[PARTITIONS_MAX];
        double begin_s = usage_now().wall_s;
        for (long done = 0; done < count;) {
                long wanted = count - done < CONSUME_BATCH_COUNT ? count - done
                                                                 : CONSUME_BATCH_COUNT;
                ssize_t got = rd_kafka_consume_batch_queue(queue, 10, messages, (size_t)wanted);
                if (got > 0 && wall_us() < due_us)
                        die("a record came %.3f ms before it was due",
                            (double)(due_us - wall_us()) / 1e3);
                for (ssize_t i = 0; i < got; i++)
                        take(messages[i], next_offsets);
                done += got > 0 ? got : 0;
                if (usage_now().wall_s - begin_s > TIME_LIMIT_S)
                        die("%ld of %ld records came within %d s", done, count, TIME_LIMIT_S);
        }
        return wall_us();
}

void burst(const struct options *options) {
        rd_kafka_t *consumer = waiting_consumer(options), *producer = new_producer(options);
        rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
        await_metadata(producer, options->topic, options->partition_count);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options->topic, NULL);
        char *payload = new_payload(options->size_bytes);
        int64_t due_ms = wall_us() / 1000 + options->lead_ms;
        char value[32];
        snprintf(value, sizeof value, "%" PRId64, due_ms);
        for (long i = 0; i < options->count; i++)
                produce_one(producer, topic, (int32_t)(i / BLOCK_COUNT % options->partition_count),
                            NULL, "x-deliver-at", value, NULL, payload, options->size_bytes, 0);
        await_acknowledged(producer);
        check_in_time(due_ms * 1000, options);
        int64_t rest_us = due_ms * 1000 - wall_us() - MARGIN_US / 2;
        if (rest_us > 0)
                usleep((useconds_t)rest_us);

        double broker_begin_s = process_cpu_s(options->broker_pid);
        struct usage begin = usage_now();
        int64_t last_us = take_all(queue, options->count, due_ms * 1000);
        struct usage end = usage_now();
        /* The clock starts when the records are due, not when waiting for them began. */
        begin.wall_s = end.wall_s - (double)(last_us - due_ms * 1000) / 1e6;
        char more[128];
        snprintf(more, sizeof more, ", \"broker_cpu_s\": %.3f, \"last_ms\": %.3f",
                 process_cpu_s(options->broker_pid) - broker_begin_s,
                 (double)(last_us - due_ms * 1000) / 1e3);
        print_result(options, options->count, (double)options->count * (double)options->size_bytes,
                     begin, end, more);
        rd_kafka_topic_destroy(topic);
        rd_kafka_destroy(producer);
        rd_kafka_queue_destroy(queue);
        close_consumer(consumer);
        free(payload);
}

/* A producer at full speed on a topic of its own, from begin_us to end_us. */
struct load {
        const struct options *options;
        int64_t begin_us;
        int64_t end_us;
        double acknowledged_mb_per_s;
};

static void *run_load(void *argument) {
        struct load *load = argument;
        const struct options *options = load->options;
        rd_kafka_t *producer = new_producer(options);
        await_metadata(producer, options->load_topic, options->partition_count);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options->load_topic, NULL);
        char *payload = new_payload(options->load_size_bytes);
        if (wall_us() < load->begin_us)
                usleep((useconds_t)(load->begin_us - wall_us()));
        int64_t begin_us = wall_us();
        long count = 0;
        while (wall_us() < load->end_us) {
                for (int i = 0; i < BLOCK_COUNT / 10; i++, count++)
                        produce_one(producer, topic,
                                    (int32_t)(count / BLOCK_COUNT % options->partition_count), NULL,
                                    NULL, NULL, NULL, payload, options->load_size_bytes, 0);
                rd_kafka_poll(producer, 0);
        }
        long acknowledged_count = count - rd_kafka_outq_len(producer);
        load->acknowledged_mb_per_s = (double)acknowledged_count *
                                      (double)options->load_size_bytes /
                                      (double)(wall_us() - begin_us);
        rd_kafka_purge(producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        await_acknowledged(producer);
        rd_kafka_topic_destroy(topic);
        rd_kafka_destroy(producer);
        free(payload);
        return NULL;
}

/* Sends `count` records that are due one after the other at rate_per_s, in another order: every
 * second is due far from its neighbour. Each carries its due time in its first eight bytes. */
static void send_spread(rd_kafka_t *producer, const struct options *options, int64_t begin_ms) {
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options->topic, NULL);
        char *payload = new_payload(options->size_bytes);
        char value[32];
        for (long i = 0; i < options->count; i++) {
                long rank = i % 2 ? options->count - i / 2 - 1 : i / 2;
                int64_t due_ms = begin_ms + rank * 1000 / options->rate_per_s;
                memcpy(payload, &due_ms, sizeof due_ms);
                snprintf(value, sizeof value, "%" PRId64, due_ms);
                produce_one(producer, topic, (int32_t)(i % options->partition_count),
                            NULL, "x-deliver-at", value, NULL, payload, options->size_bytes,
                            RD_KAFKA_MSG_F_COPY);
        }
        await_acknowledged(producer);
        rd_kafka_topic_destroy(topic);
        free(payload);
}

/* Takes `count` messages, one at a time; writes how many ms after its due time each came. */
static void take_lateness(rd_kafka_t *consumer, long count, double *late_ms) {
        double begin_s = usage_now().wall_s;
        for (long done = 0; done < count;) {
                rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, 100);
                int64_t now_us = wall_us(), due_ms;
                if (usage_now().wall_s - begin_s > TIME_LIMIT_S)
                        die("%ld of %ld records came within %d s", done, count, TIME_LIMIT_S);
                if (!message)
                        continue;
                if (message->err)
                        die("consume: %s", rd_kafka_message_errstr(message));
                memcpy(&due_ms, message->payload, sizeof due_ms);
                late_ms[done] = (double)(now_us - due_ms * 1000) / 1e3;
                if (late_ms[done++] < 0)
                        die("a record came %.3f ms before it was due", -late_ms[done - 1]);
                rd_kafka_message_destroy(message);
        }
}

void lateness(const struct options *options) {
        rd_kafka_t *consumer = waiting_consumer(options), *producer = new_producer(options);
        double *late_ms = malloc(sizeof *late_ms * (size_t)options->count);
        if (!late_ms)
                die("out of memory");
        await_metadata(producer, options->topic, options->partition_count);
        int64_t due_ms = wall_us() / 1000 + options->lead_ms;
        struct load load = {
            .options = options,
            .begin_us = due_ms * 1000 - LOAD_EARLY_US,
            .end_us = due_ms * 1000 + options->count * 1000000 / options->rate_per_s,
        };
        pthread_t thread;
        send_spread(producer, options, due_ms);
        check_in_time(load.begin_us, options);
        if (options->load_size_bytes && pthread_create(&thread, NULL, run_load, &load))
                die("cannot create a thread");

        struct usage begin = usage_now();
        take_lateness(consumer, options->count, late_ms);
        struct usage end = usage_now();
        if (options->load_size_bytes)
                pthread_join(thread, NULL);
        char more[256];
        int used = print_percentiles(more, sizeof more, late_ms, options->count, "ms");
        if (options->load_size_bytes)
                snprintf(more + used, sizeof more - (size_t)used, ", \"load_mb_per_s\": %.1f",
                         load.acknowledged_mb_per_s);
        print_result(options, options->count, (double)options->count * (double)options->size_bytes,
                     begin, end, more);
        rd_kafka_destroy(producer);
        close_consumer(consumer);
        free(late_ms);
}
