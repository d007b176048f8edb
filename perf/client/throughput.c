/* Modes produce, consume and mock: as fast as client and broker can. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

#include <librdkafka/rdkafka_mock.h> /* needs rdkafka.h, which client.h includes */

void produce(const struct options *options) {
        rd_kafka_t *producer = new_producer(options);
        await_metadata(producer, options->topic, options->partition_count);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, options->topic, NULL);
        char *payload = new_payload(options->size_bytes);
        const char *header = options->delay_ms ? "x-delay" : NULL;
        if (options->cancel_every)
                header = "x-deliver-cancel";
        char id[32];
        char value[32];
        char key[32];
        produce_one(producer, topic, 0, NULL, NULL, NULL, NULL, payload, options->size_bytes, 0);
        await_acknowledged(producer);

        struct usage begin = usage_now();
        for (long i = 0; i < options->count; i++) {
                int32_t partition = (int32_t)(i / BLOCK_COUNT % options->partition_count);
                bool is_named = options->named_every && i % options->named_every == 0;
                if (options->cancel_every) {
                        snprintf(value, sizeof value, "id-%ld",
                                 options->first + i * options->cancel_every);
                } else if (header) {
                        /* A prime as step: neighbours are due far from each other. */
                        long later_ms = i * 7919 % (options->delay_spread_ms + 1);
                        snprintf(value, sizeof value, "%ld", options->delay_ms + later_ms);
                }
                if (options->key_count)
                        snprintf(key, sizeof key, "key-%ld", i * 7919 % options->key_count);
                if (is_named)
                        snprintf(id, sizeof id, "id-%ld", options->first + i);
                produce_one(producer, topic, partition, options->key_count ? key : NULL, header,
                            value, is_named ? id : NULL, payload, options->size_bytes, 0);
                if (i % BLOCK_COUNT == 0)
                        rd_kafka_poll(producer, 0);
        }
        await_acknowledged(producer);
        struct usage end = usage_now();

        print_result(options, options->count, (double)options->count * (double)options->size_bytes,
                     begin, end, "");
        rd_kafka_topic_destroy(topic);
        rd_kafka_destroy(producer);
        free(payload);
}

void consume(const struct options *options) {
        static rd_kafka_message_t *messages[CONSUME_BATCH_COUNT];
        static int64_t next_offsets[PARTITIONS_MAX];
        rd_kafka_t *consumer = new_consumer(options);
        await_metadata(consumer, options->topic, options->partition_count);
        rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);

        struct usage begin = usage_now();
        double bytes = 0;
        long count = 0;
        assign_from_beginning(consumer, options);
        while (count < options->count) {
                /* The call waits for as many as are asked for: never for more than there are. */
                long wanted = options->count - count;
                if (wanted > CONSUME_BATCH_COUNT)
                        wanted = CONSUME_BATCH_COUNT;
                ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, (size_t)wanted);
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

        print_result(options, count, bytes, begin, end, "");
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

void mock(const struct options *options) {
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
        printf("mock ready kafka=%s\n", rd_kafka_mock_cluster_bootstraps(cluster));
        fflush(stdout);
        char ignored[64];
        ssize_t got;
        do
                got = read(STDIN_FILENO, ignored, sizeof ignored);
        while (got > 0 || (got < 0 && errno == EINTR));
        rd_kafka_mock_cluster_destroy(cluster);
        rd_kafka_destroy(handle);
}
