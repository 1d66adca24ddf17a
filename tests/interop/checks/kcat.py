"""kcat from Debian: an older librdkafka, as many run it."""
import json

from harness import process
from harness.check import check, same
from harness.records import BASE_MS

NEEDS = ("java", "kcat")


def kcat(ctx, *args, stdin=None, seconds=30):
    return process.run(["kcat", "-b", ctx.bootstrap, *args], stdin=stdin, seconds=seconds)


@check("kcat-produce-consume", needs=NEEDS)
def produce_consume(ctx):
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = ctx.topic("-" + codec)
        sent = [(f"k{i}", f"{codec} {i} ✓" + "z" * (i % 40)) for i in range(200)]
        stdin = "".join(f"{k}|{v}\n" for k, v in sent)
        kcat(ctx, "-P", "-t", topic, "-K", "|", "-z", codec, "-H", "one=1", "-H", "two=zwei", stdin=stdin)
        out = kcat(ctx, "-C", "-t", topic, "-o", "beginning", "-c", "200", "-J", "-q")
        got = [json.loads(line) for line in out.lines()]
        same([(r["key"], r["payload"]) for r in got], sent, f"records with {codec}")
        same([r["offset"] for r in got], list(range(200)), "offsets")
        assert all(r["headers"] == ["one", "1", "two", "zwei"] for r in got), got[0]
        assert all(r["tstype"] == "create" and r["ts"] > 1_600_000_000_000 for r in got), got[0]


@check("kcat-metadata", needs=NEEDS)
def metadata(ctx):
    topic = ctx.topic(partitions=3)
    answer = json.loads(kcat(ctx, "-L", "-J").out)
    (broker,) = answer["brokers"]
    same(broker["name"], ctx.bootstrap, "broker")
    (found,) = [t for t in answer["topics"] if t["topic"] == topic]
    same([(p["partition"], p["leader"]) for p in found["partitions"]], [(p, broker["id"]) for p in range(3)], "partitions")
    assert "controllerid" in answer, answer


@check("kcat-query-offsets", needs=NEEDS)
def query(ctx):
    topic = ctx.topic()
    sent = [{"partition": 0, "timestamp": BASE_MS + i * 1000, "key": None, "value": str(i), "headers": []} for i in range(10)]
    ctx.produce("java", topic, "none", sent)
    for time, offset in ((-2, 0), (-1, 10), (BASE_MS + 3_500, 4), (BASE_MS + 4_000, 4)):
        same(kcat(ctx, "-Q", "-t", f"{topic}:0:{time}").out.strip(), f"{topic} [0] offset {offset}", f"at {time}")
    out = kcat(ctx, "-C", "-t", topic, "-p", "0", "-o", "-3", "-e", "-q")
    same(out.lines(), ["7", "8", "9"], "the last three")
    out = kcat(ctx, "-C", "-t", topic, "-p", "0", "-o", f"s@{BASE_MS + 5_000}", "-e", "-q")
    same(out.lines(), ["5", "6", "7", "8", "9"], "from a timestamp")


@check("kcat-group", needs=NEEDS)
def group(ctx):
    topic = ctx.topic(partitions=2)
    kcat(ctx, "-P", "-t", topic, "-p", "0", stdin="a\nb\n")
    kcat(ctx, "-P", "-t", topic, "-p", "1", stdin="c\nd\n")
    args = ("-G", ctx.name + "-group", "-X", "auto.offset.reset=earliest", "-q", "-e")
    same(sorted(kcat(ctx, *args, topic).lines()), ["a", "b", "c", "d"], "first run")
    kcat(ctx, "-P", "-t", topic, "-p", "1", stdin="e\n")
    same(kcat(ctx, *args, topic).lines(), ["e"], "second run")


@check("kcat-idempotent", needs=NEEDS)
def idempotent(ctx):
    topic = ctx.topic()
    sent = [f"record {i}" for i in range(3000)]
    kcat(ctx, "-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "linger.ms=1", "-X", "batch.num.messages=50", stdin="\n".join(sent) + "\n")
    same(kcat(ctx, "-C", "-t", topic, "-o", "beginning", "-e", "-q").lines(), sent, "order")
