/* Modes limit-*: what loopback and the file system allow, without any broker. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

enum { BLOCK_SIZE = 1 << 20 };

static char *new_block(void) {
        return new_payload(BLOCK_SIZE);
}

static void write_all(int fd, const char *bytes, size_t size, off_t at) {
        while (size) {
                ssize_t done = pwrite(fd, bytes, size, at);
                if (done < 0)
                        die("pwrite: %s", strerror(errno));
                bytes += done;
                size -= (size_t)done;
                at += done;
        }
}

static void sync_data(int fd) {
        if (fdatasync(fd))
                die("fdatasync: %s", strerror(errno));
}

/* Opens a new file; if it is to be recycled, all of it was written and synced before. */
static int open_file(const struct options *options, long bytes) {
        unlink(options->file);
        int fd = open(options->file, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0)
                die("%s: %s", options->file, strerror(errno));
        if (options->is_recycled) {
                char *block = new_block();
                for (long at = 0; at < bytes; at += BLOCK_SIZE)
                        write_all(fd, block, BLOCK_SIZE, at);
                if (fsync(fd))
                        die("fsync: %s", strerror(errno));
                free(block);
        }
        return fd;
}

static void close_file(const struct options *options, int fd) {
        close(fd);
        unlink(options->file);
}

static int listen_somewhere(struct sockaddr_in *address) {
        socklen_t size = sizeof *address;
        *address = (struct sockaddr_in){.sin_family = AF_INET,
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)address, size) || listen(fd, 1) ||
            getsockname(fd, (struct sockaddr *)address, &size))
                die("listen: %s", strerror(errno));
        return fd;
}

static _Noreturn void send_blocks(const struct sockaddr_in *address, long count) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address))
                die("connect: %s", strerror(errno));
        char *block = new_block();
        for (long i = 0; i < count; i++)
                for (size_t done = 0; done < BLOCK_SIZE;) {
                        ssize_t sent = send(fd, block + done, BLOCK_SIZE - done, 0);
                        if (sent < 0)
                                die("send: %s", strerror(errno));
                        done += (size_t)sent;
                }
        _exit(0);
}

/* Receives count blocks from another process, over loopback; with --file it writes them there. */
void limit_receive(const struct options *options) {
        struct sockaddr_in address;
        int listening = listen_somewhere(&address);
        double bytes = (double)options->count * BLOCK_SIZE, got_bytes = 0;
        int file = options->file ? open_file(options, (long)bytes) : -1;
        pid_t child = fork();
        if (child < 0)
                die("fork: %s", strerror(errno));
        if (child == 0)
                send_blocks(&address, options->count);
        int fd = accept(listening, NULL, NULL);
        if (fd < 0)
                die("accept: %s", strerror(errno));
        char *block = new_block();

        struct usage begin = usage_now();
        while (got_bytes < bytes) {
                /* A broker's buffer is filled as far as it goes before it is written. */
                size_t filled = 0;
                while (filled < BLOCK_SIZE) {
                        ssize_t got = recv(fd, block + filled, BLOCK_SIZE - filled, 0);
                        if (got <= 0)
                                die("recv: %s", got ? strerror(errno) : "closed");
                        filled += (size_t)got;
                }
                if (file >= 0)
                        write_all(file, block, filled, (off_t)got_bytes);
                got_bytes += (double)filled;
        }
        struct usage end = usage_now();

        print_result(options, options->count, bytes, begin, end, "");
        free(block);
        close(fd);
        close(listening);
        if (file >= 0)
                close_file(options, file);
        waitpid(child, NULL, 0);
}

/* Writes count blocks of 1 MiB; with --per-sync N an fdatasync follows every N. */
void limit_write(const struct options *options) {
        int fd = open_file(options, options->count * BLOCK_SIZE);
        char *block = new_block();

        struct usage begin = usage_now();
        for (long i = 0; i < options->count; i++) {
                write_all(fd, block, BLOCK_SIZE, i * BLOCK_SIZE);
                if (options->per_sync_count && (i + 1) % options->per_sync_count == 0)
                        sync_data(fd);
        }
        struct usage end = usage_now();

        print_result(options, options->count, (double)options->count * BLOCK_SIZE, begin, end, "");
        free(block);
        close_file(options, fd);
}

/* How long an fdatasync after a small write takes: count times, one after the other. */
void limit_sync(const struct options *options) {
        int fd = open_file(options, BLOCK_SIZE + options->count * options->size_bytes);
        char *payload = new_payload(options->size_bytes);
        double *spent_ms = malloc(sizeof *spent_ms * (size_t)options->count);
        if (!spent_ms)
                die("out of memory");

        struct usage begin = usage_now(), last = begin;
        for (long i = 0; i < options->count; i++) {
                write_all(fd, payload, (size_t)options->size_bytes, i * options->size_bytes);
                sync_data(fd);
                struct usage now = usage_now();
                spent_ms[i] = (now.wall_s - last.wall_s) * 1e3;
                last = now;
        }
        char more[256];
        print_percentiles(more, sizeof more, spent_ms, options->count, "ms");
        print_result(options, options->count, (double)options->count * (double)options->size_bytes,
                     begin, last, more);
        free(payload);
        free(spent_ms);
        close_file(options, fd);
}
