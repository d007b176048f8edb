/* Clocks, CPU times and what is printed: the same for every mode of the client. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "client.h"

void die(const char *format, ...) {
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

struct usage usage_now(void) {
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

int64_t wall_us(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* CPU seconds of another process, all threads; 0 if no pid. */
double process_cpu_s(long pid) {
        clockid_t clock;
        struct timespec spent;
        if (!pid)
                return 0;
        if (clock_getcpuclockid((pid_t)pid, &clock) || clock_gettime(clock, &spent))
                die("no process %ld", pid);
        return (double)spent.tv_sec + (double)spent.tv_nsec / 1e9;
}

char *new_payload(long size_bytes) {
        char *payload = malloc((size_t)size_bytes + 1);
        if (!payload)
                die("out of memory");
        for (long i = 0; i < size_bytes; i++)
                payload[i] = (char)('a' + i % 26);
        return payload;
}

/* One JSON object; `more` is empty, or further members, each preceded by a comma. */
void print_result(const struct options *options, long messages, double bytes, struct usage begin,
                  struct usage end, const char *more) {
        printf("{\"mode\": \"%s\", \"messages\": %ld, \"bytes\": %.0f, \"begin_s\": %.6f, "
               "\"end_s\": %.6f, \"cpu_s\": %.4f, \"librdkafka\": \"%s\"%s}\n",
               options->mode, messages, bytes, begin.wall_s, end.wall_s,
               end.user_s - begin.user_s + end.system_s - begin.system_s, rd_kafka_version_str(),
               more);
}

static int compare(const void *left, const void *right) {
        double a = *(const double *)left, b = *(const double *)right;
        return (a > b) - (a < b);
}

/* Writes p50, p99, p99.9 and the largest as members of a JSON object; sorts the values. */
int print_percentiles(char *text, size_t size, double *values, long count, const char *unit) {
        qsort(values, (size_t)count, sizeof *values, compare);
        return snprintf(text, size,
                        ", \"p50_%s\": %.4f, \"p99_%s\": %.4f, \"p999_%s\": %.4f, \"max_%s\": %.4f",
                        unit, values[count / 2], unit, values[count * 99 / 100], unit,
                        values[count * 999 / 1000], unit, values[count - 1]);
}
