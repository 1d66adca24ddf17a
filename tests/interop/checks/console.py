"""kafka-console-producer and kafka-console-consumer."""
import re

from harness.check import check, same
from harness.records import BASE_MS

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FORMAT = [a for p in ("key", "headers", "partition", "offset", "timestamp") for a in ("--formatter-property", f"print.{p}=true")]


def consume(ctx, topic, count, *extra):
    return ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", count, "--timeout-ms", 20000, *extra).lines()


@check("console-keys-and-headers")
def keys_and_headers(ctx):
    topic = ctx.topic()
    ctx.tool(
        "console-producer", "--topic", topic, "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        "--reader-property", "null.marker=NULL",
        stdin="h1:v1,h2:v2\tkey-0\tvalue-0\nh1:a,h1:b\tkey-1\twért ✓\nNULL\tNULL\tNULL\nh:\t\t\n",
    )
    lines = consume(ctx, topic, 4, *FORMAT)
    times = [int(re.match(r"CreateTime:(\d+)\t", line).group(1)) for line in lines]
    assert times == sorted(times) and times[0] > 1_600_000_000_000, times
    same([line.split("\t", 1)[1] for line in lines], [
        "Partition:0\tOffset:0\th1:v1,h2:v2\tkey-0\tvalue-0",
        "Partition:0\tOffset:1\th1:a,h1:b\tkey-1\twért ✓",
        "Partition:0\tOffset:2\tNO_HEADERS\tnull\tnull",
        "Partition:0\tOffset:3\th:\t\t",
    ], "records")


@check("console-codecs", seconds=150)
def codecs(ctx):
    for codec in CODECS:
        topic = ctx.topic("-" + codec)
        sent = [f"{codec} {i} " + "abc" * (i % 50) for i in range(500)]
        ctx.tool("console-producer", "--topic", topic, "--compression-codec", codec, stdin="\n".join(sent) + "\n")
        same(consume(ctx, topic, 500), sent, codec)


@check("console-acks")
def acks(ctx):
    topic = ctx.topic()
    sent = []
    for how in ("0", "1", "-1"):
        lines = [f"acks {how} record {i}" for i in range(100)]
        ctx.tool("console-producer", "--topic", topic, "--command-property", f"acks={how}", "--command-property", "enable.idempotence=false", stdin="\n".join(lines) + "\n")
        sent += lines
    same(consume(ctx, topic, 300), sent, "records")


@check("console-group-resumes")
def group_resumes(ctx):
    topic = ctx.topic()
    ctx.tool("console-producer", "--topic", topic, stdin="".join(f"r{i}\n" for i in range(10)))
    group = ["--group", ctx.name + "-group"]
    same(consume(ctx, topic, 4, *group), ["r0", "r1", "r2", "r3"], "first")
    same(consume(ctx, topic, 3, *group), ["r4", "r5", "r6"], "second starts after the committed offset")
    same(consume(ctx, topic, 3, *group), ["r7", "r8", "r9"], "third")
    out = ctx.tool("console-consumer", "--topic", topic, "--max-messages", 1, "--timeout-ms", 3000, *group, code=None)
    same(out.lines(), [], "nothing is left")


@check("console-offset-and-partition")
def one_partition(ctx):
    topic = ctx.topic(partitions=2)
    for p in range(2):
        sent = [{"partition": p, "timestamp": BASE_MS, "key": None, "value": f"p{p}-{i}", "headers": []} for i in range(6)]
        ctx.produce("java", topic, "none", sent)
    out = ctx.tool("console-consumer", "--topic", topic, "--partition", 1, "--offset", 4, "--max-messages", 2, "--timeout-ms", 15000)
    same(out.lines(), ["p1-4", "p1-5"], "from an offset")


@check("console-large-records", seconds=150)
def large(ctx):
    topic = ctx.topic()
    sent = [chr(97 + i) * 900_000 for i in range(6)]
    ctx.tool("console-producer", "--topic", topic, stdin="\n".join(sent) + "\n")
    same(consume(ctx, topic, 6), sent, "records near the limit")
