/* librdkafka's producers and consumers, set up as all modes use them. */
#include <stdio.h>
#include <string.h>

#include "client.h"

static long failed_count; /* written by the delivery callback, which runs in rd_kafka_poll */

void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
        char reason[256];
        if (rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK)
                die("%s=%s: %s", name, value, reason);
}

rd_kafka_t *new_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
        char reason[256];
        rd_kafka_t *handle = rd_kafka_new(type, conf, reason, sizeof reason);
        if (!handle)
                die("cannot create the client: %s", reason);
        return handle;
}

static void on_delivery(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
        (void)handle;
        (void)opaque;
        /* Only failures come here (delivery.report.only.error): one for each record costs the
         * client more than the broker needs for the record. What was purged was never to arrive. */
        if (!message->err || message->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE ||
            message->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT)
                return;
        if (failed_count++ == 0)
                fprintf(stderr, "client: not delivered: %s\n", rd_kafka_err2str(message->err));
}

rd_kafka_t *new_producer(const struct options *options) {
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

rd_kafka_t *new_consumer(const struct options *options) {
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", options->brokers);
        set(conf, "group.id", "perf"); /* asked for by the API; the group is never joined */
        set(conf, "enable.auto.commit", "false");
        set(conf, "queued.min.messages", "1000000"); /* keep fetching: bounded by bytes (64 MB) */
        return new_handle(RD_KAFKA_CONSUMER, conf);
}

/* Connects and learns the topic's leaders, so that neither is part of what is timed. */
void await_metadata(rd_kafka_t *handle, const char *topic_name, long partition_count) {
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

/* Queues one record, with a key and a header unless they are NULL; waits while the queue is full.
 * The payload is copied only if `flags` says so. */
void produce_one(rd_kafka_t *producer, rd_kafka_topic_t *topic, int32_t partition,
                 const char *key, const char *header, const char *value, const char *id,
                 char *payload, long size_bytes, int flags) {
        size_t key_size = key ? strlen(key) : 0;
        for (;;) {
                rd_kafka_resp_err_t code = 0;
                if (id)
                        code = rd_kafka_producev(
                            producer, RD_KAFKA_V_RKT(topic), RD_KAFKA_V_PARTITION(partition),
                            RD_KAFKA_V_KEY(key, key_size),
                            RD_KAFKA_V_VALUE(payload, (size_t)size_bytes),
                            RD_KAFKA_V_MSGFLAGS(flags), RD_KAFKA_V_HEADER(header, value, -1),
                            RD_KAFKA_V_HEADER("x-deliver-id", id, -1), RD_KAFKA_V_END);
                else if (header)
                        code = rd_kafka_producev(
                            producer, RD_KAFKA_V_RKT(topic), RD_KAFKA_V_PARTITION(partition),
                            RD_KAFKA_V_KEY(key, key_size),
                            RD_KAFKA_V_VALUE(payload, (size_t)size_bytes),
                            RD_KAFKA_V_MSGFLAGS(flags), RD_KAFKA_V_HEADER(header, value, -1),
                            RD_KAFKA_V_END);
                else if (rd_kafka_produce(topic, partition, flags, payload, (size_t)size_bytes,
                                          key, key_size, NULL) == -1)
                        code = rd_kafka_last_error();
                if (!code)
                        return;
                if (code != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                        die("produce: %s", rd_kafka_err2str(code));
                rd_kafka_poll(producer, 1);
        }
}

/* Waits until all is acknowledged. Short waits: flush looks at its queue only when one ends. */
void await_acknowledged(rd_kafka_t *producer) {
        double begin_s = usage_now().wall_s;
        while (rd_kafka_flush(producer, 1) == RD_KAFKA_RESP_ERR__TIMED_OUT)
                if (usage_now().wall_s - begin_s > TIME_LIMIT_S)
                        die("%d records not acknowledged within %d s", rd_kafka_outq_len(producer),
                            TIME_LIMIT_S);
        if (failed_count)
                die("%ld records were not delivered", failed_count);
}

void assign_from_beginning(rd_kafka_t *consumer, const struct options *options) {
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
double take(rd_kafka_message_t *message, int64_t *next_offsets) {
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
