/*
 * A producer load on librdkafka, for comparing brokers.
 *
 *   load closed BOOTSTRAP TOPIC RECORDS SIZE ACKS [BATCH] as fast as the broker takes them; with batches of so many bytes
 *                                                        at most, five requests on their way
 *   load open   BOOTSTRAP TOPIC RATE SECONDS SIZE ACKS   at a fixed rate; latency counts from the intended send time
 *   load each   BOOTSTRAP TOPIC PARTITIONS SECONDS SIZE  one record under way in each partition, acks=all
 *   load floor                                           loopback TCP: round trip of 1 KiB, and bytes a second
 *
 * Each prints one JSON object. A record that is refused or lost makes the exit code 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <librdkafka/rdkafka.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "load: %s: %s\n", what, why);
    exit(1);
}

/* Latencies in nanoseconds, in the order of the acknowledgements; sorted once at the end. */
static int64_t *latency_ns;
static int64_t wanted;
static _Atomic int64_t acknowledged;
static atomic_int ended;

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    (void)rk;
    (void)opaque;
    if (m->err)
        die("a record was not delivered", rd_kafka_err2str(m->err));
    int64_t i = atomic_load(&acknowledged);
    if (i < wanted)
        latency_ns[i] = now_ns() - (int64_t)(intptr_t)m->_private;
    atomic_store(&acknowledged, i + 1);
}

/* Only the thread that serves the reports calls back, so that no two of them count at once. */
static void await_acknowledgements(int64_t count, int seconds) {
    int64_t last = now_ns() + seconds * 1000000000LL;
    while (atomic_load(&acknowledged) < count) {
        if (now_ns() > last)
            die("acknowledgements", "not all records within the time");
        usleep(200);
    }
}

static void *serve_reports(void *rk) {
    while (!atomic_load(&ended))
        rd_kafka_poll(rk, 50);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(double p) {
    int64_t i = (int64_t)(p / 100 * acknowledged);
    return latency_ns[i < acknowledged ? i : acknowledged - 1] / 1e6;
}

static rd_kafka_t *producer(const char *bootstrap, const char *acks, const char *linger_ms, const char *batch) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    const char *settings[][2] = {
        {"bootstrap.servers", bootstrap},
        {"acks", acks},
        {"linger.ms", linger_ms},
        {"queue.buffering.max.messages", "100000"},
        {"queue.buffering.max.kbytes", "131072"},
        {"message.timeout.ms", "30000"},
        {"log.connection.close", "false"},
        {"batch.size", batch},
        {"max.in.flight.requests.per.connection", "5"},
    };
    size_t count = sizeof settings / sizeof *settings - (batch ? 0 : 2);
    for (size_t i = 0; i < count; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], error, sizeof error) != RD_KAFKA_CONF_OK)
            die(settings[i][0], error);
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!rk)
        die("no producer", error);
    return rk;
}

static void send_one(rd_kafka_t *rk, const char *topic, char *value, size_t size, int64_t intended_ns) {
    for (;;) {
        rd_kafka_resp_err_t e = rd_kafka_producev(rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_VALUE(value, size),
                                                  RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_OPAQUE((void *)(intptr_t)intended_ns), RD_KAFKA_V_END);
        if (!e)
            return;
        if (e != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die("produce", rd_kafka_err2str(e));
        usleep(200);
    }
}

/* Sends `count` records, `rate` a second (0: without a pause), and prints what came of it. */
static void load(const char *bootstrap, const char *topic, int64_t count, int64_t rate, size_t size, const char *acks, const char *batch) {
    rd_kafka_t *rk = producer(bootstrap, acks, rate ? "0" : "5", batch);
    char *value = malloc(size);
    latency_ns = calloc((size_t)count + 1, sizeof *latency_ns);
    if (!value || !latency_ns)
        die("memory", strerror(errno));
    /* Bytes that no compression on the way could shrink much, from a fixed seed. */
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        value[i] = (char)x;
    }
    pthread_t reports;
    pthread_create(&reports, NULL, serve_reports, rk);

    /* The first record makes the topic and the connections; it is not measured. */
    wanted = 1;
    send_one(rk, topic, value, size, now_ns());
    await_acknowledgements(1, 20);
    wanted = count;
    atomic_store(&acknowledged, 0);

    int64_t begun = now_ns() + 1000000, slow = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = now_ns();
        if (rate) {
            int64_t intended = begun + i * 1000000000 / rate;
            if (at < intended) {
                struct timespec t = {intended / 1000000000, intended % 1000000000};
                clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
            }
            slow += now_ns() - intended > 1000000;
            at = intended;
        }
        send_one(rk, topic, value, size, at);
    }
    await_acknowledgements(count, 60);
    double seconds = (now_ns() - begun) / 1e9;
    atomic_store(&ended, 1);
    pthread_join(reports, NULL);
    qsort(latency_ns, (size_t)count, sizeof *latency_ns, by_value);
    printf("{\"records\": %lld, \"seconds\": %.3f, \"mb_per_s\": %.2f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, \"max_ms\": %.3f, \"sent_over_1ms_late\": %lld}\n",
           (long long)count, seconds, count * (double)size / 1e6 / seconds, percentile_ms(50), percentile_ms(99), percentile_ms(99.9),
           latency_ns[count - 1] / 1e6, (long long)slow);
    rd_kafka_destroy(rk);
}

/* Each acknowledgement sends the next record of its partition, until the time is over. */
static const char *each_topic;
static char *each_value;
static size_t each_size;
static int64_t each_until_ns;
static int each_under_way;

static void send_next(rd_kafka_t *rk, int32_t partition) {
    rd_kafka_resp_err_t e = rd_kafka_producev(rk, RD_KAFKA_V_TOPIC(each_topic), RD_KAFKA_V_PARTITION(partition), RD_KAFKA_V_VALUE(each_value, each_size),
                                              RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_OPAQUE((void *)(intptr_t)now_ns()), RD_KAFKA_V_END);
    if (e)
        die("produce", rd_kafka_err2str(e));
    each_under_way++;
}

static void delivered_each(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    delivered(rk, m, opaque);
    each_under_way--;
    if (now_ns() < each_until_ns)
        send_next(rk, m->partition);
}

static void each(const char *bootstrap, const char *topic, int partitions, int seconds, size_t size) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    const char *settings[][2] = {{"bootstrap.servers", bootstrap}, {"acks", "all"}, {"linger.ms", "0"}, {"message.timeout.ms", "30000"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], error, sizeof error) != RD_KAFKA_CONF_OK)
            die(settings[i][0], error);
    rd_kafka_conf_set_dr_msg_cb(conf, delivered_each);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!rk)
        die("no producer", error);
    wanted = 5000000;
    latency_ns = calloc((size_t)wanted, sizeof *latency_ns);
    each_value = calloc(1, size);
    if (!each_value || !latency_ns)
        die("memory", strerror(errno));
    each_topic = topic, each_size = size;
    /* One turn that makes the topic, the connections and the files; a second that warms up. */
    each_until_ns = 0;
    for (int p = 0; p < partitions; p++)
        send_next(rk, p);
    while (each_under_way)
        rd_kafka_poll(rk, 10);
    for (int warm = 1; warm >= 0; warm--) {
        int64_t begun = now_ns();
        atomic_store(&acknowledged, 0);
        each_until_ns = begun + (warm ? 1 : seconds) * 1000000000LL;
        for (int p = 0; p < partitions; p++)
            send_next(rk, p);
        while (each_under_way)
            rd_kafka_poll(rk, 10);
        if (warm)
            continue;
        double took = (now_ns() - begun) / 1e9;
        int64_t count = atomic_load(&acknowledged);
        qsort(latency_ns, (size_t)count, sizeof *latency_ns, by_value);
        printf("{\"records\": %lld, \"seconds\": %.3f, \"acks_per_s\": %.0f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n", (long long)count, took,
               count / took, percentile_ms(50), percentile_ms(99));
    }
    rd_kafka_destroy(rk);
}

static void read_all(int fd, char *b, size_t n) {
    for (size_t got = 0; got < n;) {
        ssize_t r = read(fd, b + got, n - got);
        if (r <= 0)
            exit(0);
        got += (size_t)r;
    }
}

static void write_all(int fd, const char *b, size_t n) {
    for (size_t put = 0; put < n;) {
        ssize_t r = write(fd, b + put, n - put);
        if (r <= 0)
            die("loopback", strerror(errno));
        put += (size_t)r;
    }
}

static void loopback_floor(void) {
    enum { ROUNDS = 20000, SIZE = 1024, CHUNK = 1 << 18, CHUNKS = 8000 };
    static char b[CHUNK];
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (bind(listener, (struct sockaddr *)&a, n) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&a, &n))
        die("loopback", strerror(errno));
    if (fork() == 0) {
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        for (int i = 0; i < ROUNDS; i++)
            read_all(fd, b, SIZE), write_all(fd, b, 64);
        for (int i = 0; i < CHUNKS; i++)
            read_all(fd, b, CHUNK);
        write_all(fd, b, 1);
        _exit(0);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a))
        die("loopback", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    acknowledged = ROUNDS;
    latency_ns = calloc(ROUNDS, sizeof *latency_ns);
    for (int i = 0; i < ROUNDS; i++) {
        int64_t t = now_ns();
        write_all(fd, b, SIZE), read_all(fd, b, 64);
        latency_ns[i] = now_ns() - t;
    }
    qsort(latency_ns, ROUNDS, sizeof *latency_ns, by_value);
    int64_t t = now_ns();
    for (int i = 0; i < CHUNKS; i++)
        write_all(fd, b, CHUNK);
    read_all(fd, b, 1);
    double seconds = (now_ns() - t) / 1e9;
    printf("{\"round_trip_p50_ms\": %.4f, \"round_trip_p99_ms\": %.4f, \"mb_per_s\": %.0f}\n", percentile_ms(50), percentile_ms(99),
           (double)CHUNK * CHUNKS / 1e6 / seconds);
}

int main(int argc, char **argv) {
    if ((argc == 7 || argc == 8) && !strcmp(argv[1], "closed"))
        load(argv[2], argv[3], atoll(argv[4]), 0, (size_t)atoll(argv[5]), argv[6], argv[7]);
    else if (argc == 8 && !strcmp(argv[1], "open"))
        load(argv[2], argv[3], atoll(argv[4]) * atoll(argv[5]), atoll(argv[4]), (size_t)atoll(argv[6]), argv[7], NULL);
    else if (argc == 7 && !strcmp(argv[1], "each"))
        each(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]), (size_t)atoll(argv[6]));
    else if (argc == 2 && !strcmp(argv[1], "floor"))
        loopback_floor();
    else
        die("usage", "load closed BOOTSTRAP TOPIC RECORDS SIZE ACKS [BATCH] | load open BOOTSTRAP TOPIC RATE SECONDS SIZE ACKS | load each BOOTSTRAP TOPIC PARTITIONS SECONDS SIZE | load floor");
    return 0;
}
