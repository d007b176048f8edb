/*
 * Mode pipeline: Produce requests of one message each, written to plain sockets without waiting for
 * answers, up to a window. All requests of a connection lie encoded in one buffer, so that the
 * client costs little; every answer is counted, its size and error code checked.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client.h"

enum {
        PRODUCE_KEY = 0,
        PRODUCE_VERSION = 7, /* the last without tagged fields; the mock of librdkafka knows it */
        CYCLE_COUNT = 512,   /* requests in the buffer that is sent again and again */
        REQUEST_SIZE_MAX = 4096,
        RECEIVE_SIZE = 1 << 18,
};

struct connection {
        int fd;
        long sent_count;       /* requests written as a whole */
        size_t sent_bytes;     /* of the request after them */
        long answered_count;
        size_t received_bytes; /* of the answer after them */
        unsigned char answer[128];
};

static unsigned char *cycle; /* CYCLE_COUNT requests */
static size_t request_size;
static size_t answer_size;
static size_t error_code_pos; /* where it stands in an answer */

static void put(unsigned char **at, uint64_t value, int size) {
        for (int i = 0; i < size; i++)
                (*at)[i] = (unsigned char)(value >> 8 * (size - 1 - i));
        *at += size;
}

static void put_varint(unsigned char **at, long value) {
        uint64_t rest = (uint64_t)value << 1; /* zigzag of what is not negative */
        for (; rest >= 128; rest >>= 7)
                *(*at)++ = (unsigned char)(rest | 128);
        *(*at)++ = (unsigned char)rest;
}

static void put_text(unsigned char **at, const char *text) {
        size_t size = strlen(text);
        put(at, size, 2);
        memcpy(*at, text, size);
        *at += size;
}

static uint32_t crc32c(const unsigned char *bytes, size_t size) {
        uint32_t crc = UINT32_MAX;
        for (size_t i = 0; i < size; i++) {
                crc ^= bytes[i];
                for (int bit = 0; bit < 8; bit++)
                        crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
        }
        return ~crc;
}

/* A RecordBatch of one record without key and headers. */
static void put_batch(unsigned char **at, const char *payload, long size_bytes) {
        unsigned char record[REQUEST_SIZE_MAX], *end = record;
        put(&end, 0, 1);        /* attributes */
        put_varint(&end, 0);    /* timestamp delta */
        put_varint(&end, 0);    /* offset delta */
        *end++ = 1;             /* key length -1 */
        put_varint(&end, size_bytes);
        memcpy(end, payload, (size_t)size_bytes);
        end += size_bytes;
        put_varint(&end, 0);    /* headers */
        long record_size = end - record;

        unsigned char *start = *at;
        put(at, 0, 8);          /* base offset */
        unsigned char *length_at = *at;
        put(at, 0, 4);
        put(at, UINT32_MAX, 4); /* leader epoch -1 */
        put(at, 2, 1);          /* magic */
        unsigned char *crc_at = *at;
        put(at, 0, 4);
        put(at, 0, 2);          /* attributes */
        put(at, 0, 4);          /* last offset delta */
        uint64_t now_ms = (uint64_t)wall_us() / 1000;
        put(at, now_ms, 8);
        put(at, now_ms, 8);
        put(at, UINT64_MAX, 8); /* producer id, epoch, sequence: -1 */
        put(at, UINT64_MAX, 2);
        put(at, UINT64_MAX, 4);
        put(at, 1, 4);          /* records */
        put_varint(at, record_size);
        memcpy(*at, record, (size_t)record_size);
        *at += record_size;
        put(&length_at, (uint64_t)(*at - start) - 12, 4);
        unsigned char *checked = crc_at + 4;
        put(&crc_at, crc32c(checked, (size_t)(*at - checked)), 4);
}

static void put_request(unsigned char **at, int32_t correlation_id, const struct options *options,
                        const char *payload) {
        unsigned char *start = *at;
        put(at, 0, 4);
        put(at, PRODUCE_KEY, 2);
        put(at, PRODUCE_VERSION, 2);
        put(at, (uint64_t)correlation_id, 4);
        put_text(at, "perf");
        put(at, UINT16_MAX, 2); /* no transactional id */
        put(at, (uint64_t)atoi(options->acks), 2);
        put(at, 30000, 4);      /* timeout in ms */
        put(at, 1, 4);          /* topics */
        put_text(at, options->topic);
        put(at, 1, 4);          /* partitions */
        put(at, (uint64_t)(correlation_id % options->partition_count), 4);
        unsigned char *size_at = *at;
        put(at, 0, 4);
        put_batch(at, payload, options->size_bytes);
        put(&size_at, (uint64_t)(*at - size_at) - 4, 4);
        put(&start, (uint64_t)(*at - start) - 4, 4);
}

static void encode_cycle(const struct options *options) {
        char *payload = new_payload(options->size_bytes);
        cycle = malloc(CYCLE_COUNT * REQUEST_SIZE_MAX);
        if (!cycle)
                die("out of memory");
        unsigned char *at = cycle;
        for (int i = 0; i < CYCLE_COUNT; i++) {
                put_request(&at, i, options, payload);
                if (i == 0)
                        request_size = (size_t)(at - cycle);
        }
        if ((size_t)(at - cycle) != request_size * CYCLE_COUNT)
                die("requests differ in size");
        /* size, correlation id, topics, name, partitions, partition | error code |
         * base offset, append time, start offset, throttle time */
        error_code_pos = 4 + 4 + 4 + 2 + strlen(options->topic) + 4 + 4;
        answer_size = error_code_pos + 2 + 8 + 8 + 8 + 4;
        free(payload);
}

static int connect_to(const char *address) {
        char host[256];
        const char *colon = strrchr(address, ':');
        if (!colon || (size_t)(colon - address) >= sizeof host)
                die("--brokers %s: want HOST:PORT", address);
        snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
        if (getaddrinfo(host, colon + 1, &hints, &found))
                die("no address: %s", address);
        int fd = socket(found->ai_family, SOCK_STREAM, 0), on = 1;
        if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
                die("connect to %s: %s", address, strerror(errno));
        freeaddrinfo(found);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        return fd;
}

/* Writes as many requests as the window allows and the socket takes. */
static void send_some(struct connection *connection, long total_count, long window_count) {
        for (;;) {
                long in_flight_count = connection->sent_count - connection->answered_count;
                long may_count = total_count - connection->sent_count;
                if (may_count > window_count - in_flight_count)
                        may_count = window_count - in_flight_count;
                long position = connection->sent_count % CYCLE_COUNT;
                if (may_count > CYCLE_COUNT - position)
                        may_count = CYCLE_COUNT - position;
                if (may_count <= 0)
                        return;
                size_t begin = (size_t)position * request_size + connection->sent_bytes;
                size_t end = (size_t)(position + may_count) * request_size;
                ssize_t sent = send(connection->fd, cycle + begin, end - begin, MSG_NOSIGNAL);
                if (sent < 0 && (errno == EAGAIN || errno == EINTR))
                        return;
                if (sent < 0)
                        die("send: %s", strerror(errno));
                size_t done = connection->sent_bytes + (size_t)sent;
                connection->sent_count += (long)(done / request_size);
                connection->sent_bytes = done % request_size;
                if ((size_t)sent < end - begin)
                        return;
        }
}

static void check_answer(const struct connection *connection) {
        const unsigned char *answer = connection->answer;
        uint32_t size, id;
        memcpy(&size, answer, 4);
        memcpy(&id, answer + 4, 4);
        long want = connection->answered_count % CYCLE_COUNT;
        if (be32toh(size) != answer_size - 4 || be32toh(id) != (uint32_t)want)
                die("answer %ld: size %u and id %u, want %zu and %ld", connection->answered_count,
                    be32toh(size), be32toh(id), answer_size - 4, want);
        int code = answer[error_code_pos] << 8 | answer[error_code_pos + 1];
        if (code)
                die("answer %ld: error code %d", connection->answered_count, code);
}

static void receive_some(struct connection *connection) {
        static unsigned char bytes[RECEIVE_SIZE];
        ssize_t got = recv(connection->fd, bytes, sizeof bytes, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (got <= 0)
                die("connection lost after %ld answers: %s", connection->answered_count,
                    got ? strerror(errno) : "closed");
        for (ssize_t at = 0; at < got;) {
                size_t part = answer_size - connection->received_bytes;
                if (part > (size_t)(got - at))
                        part = (size_t)(got - at);
                memcpy(connection->answer + connection->received_bytes, bytes + at, part);
                connection->received_bytes += part;
                at += (ssize_t)part;
                if (connection->received_bytes < answer_size)
                        break;
                check_answer(connection);
                connection->answered_count++;
                connection->received_bytes = 0;
        }
}

/* Sends count_each requests on each connection and reads all answers. */
static void run(struct connection *connections, struct pollfd *polled, long count,
                long count_each, long window_count) {
        double begin_s = usage_now().wall_s;
        for (long done_count = 0; done_count < count;) {
                done_count = 0;
                for (long i = 0; i < count; i++) {
                        struct connection *each = &connections[i];
                        send_some(each, count_each, window_count);
                        bool has_room = each->sent_count < count_each &&
                                        each->sent_count - each->answered_count < window_count;
                        polled[i].events = (short)(POLLIN | (has_room ? POLLOUT : 0));
                        if (each->answered_count == count_each)
                                polled[i].events = 0;
                        done_count += each->answered_count == count_each;
                }
                if (done_count == count)
                        return;
                if (poll(polled, (nfds_t)count, 1000) < 0 && errno != EINTR)
                        die("poll: %s", strerror(errno));
                for (long i = 0; i < count; i++)
                        if (polled[i].revents)
                                receive_some(&connections[i]);
                if (usage_now().wall_s - begin_s > TIME_LIMIT_S)
                        die("not all answered within %d s", TIME_LIMIT_S);
        }
}

void pipeline(const struct options *options) {
        static struct connection connections[CONNECTIONS_MAX];
        static struct pollfd polled[CONNECTIONS_MAX];
        long connection_count = options->connection_count;
        if (options->size_bytes > REQUEST_SIZE_MAX - 512 || strlen(options->topic) > 64)
                die("--size or --topic is too long for this mode");
        encode_cycle(options);
        for (long i = 0; i < connection_count; i++) {
                connections[i].fd = connect_to(options->brokers);
                polled[i].fd = connections[i].fd;
        }
        /* One request each before the clock starts; the broker then knows the partition. */
        run(connections, polled, connection_count, 1, 1);
        long count_each = options->count / connection_count;
        long window_count = options->window_count / connection_count;

        struct usage begin = usage_now();
        run(connections, polled, connection_count, count_each + 1,
            window_count < 1 ? 1 : window_count);
        struct usage end = usage_now();
        long count = count_each * connection_count;
        print_result(options, count, (double)count * (double)options->size_bytes, begin, end, "");
        for (long i = 0; i < connection_count; i++)
                close(connections[i].fd);
        free(cycle);
}
