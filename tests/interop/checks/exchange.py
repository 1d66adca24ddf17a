"""A stopped Kafka's directory opens in the broker under test, and the other way round."""
import json
import re
import shutil

from harness.broker import Kafka
from harness.check import check, same
from harness.records import plain, records, with_offsets

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def identify(ctx, topic):
    """Topic, id, shape and configuration, without the settings that only Highwater knows."""
    return re.sub(r",?highwater\.[a-z.]+=[^,]*", "", ctx.tool("topics", "--describe", "--topic", topic).lines()[0])


def opens(ctx, first, second):
    """What one broker wrote, the other serves and goes on with."""
    writer = ctx.new_broker(kind=first)
    topic, group = ctx.topic(partitions=2, retention__ms=123456789), ctx.name + "-group"
    sent = []
    for codec in CODECS:
        more = records(20, first=len(sent))
        ctx.produce("java", topic, codec, more)
        sent += more
    ctx.group("java", topic, group, 30)
    ctx.produce("java", topic, "none", records(9, partition=1))
    plan = ctx.directory / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 1, "offset": 4}]}))
    ctx.tool("delete-records", "--offset-json-file", plan)
    gone = ctx.topic("-gone")
    ctx.tool("topics", "--delete", "--topic", gone)
    identity = identify(ctx, topic)
    writer.stop()

    opener = ctx.new_broker(kind=second, directory="opener", prepare=lambda b: shutil.copytree(writer.data, b.data))
    same(identify(ctx, topic), identity, "topic, id and configuration")
    assert gone not in ctx.tool("topics", "--list").lines(), "a deleted topic is back"
    same((ctx.offsets(topic, -2), ctx.offsets(topic, -1)), ({0: 0, 1: 4}, {0: len(sent), 1: 9}), "first and end offsets")
    wanted = with_offsets(sent)
    read = [r for r in plain(ctx.consume("java", topic, len(sent) + 5))]
    same([r for r in read if r["partition"] == 0], wanted, "records")
    same([r for r in read if r["partition"] == 1], with_offsets(records(9, partition=1))[4:], "records after a deletion")
    rest = plain(ctx.group("java", topic, group, len(sent) - 30 + 5))
    same([r for r in rest if r["partition"] == 0], wanted[30:], "the group goes on where it was")
    acks = [a["offset"] for a in ctx.produce("java", topic, "zstd", records(5))]
    same(acks, list(range(len(sent), len(sent) + 5)), "offsets go on")
    ctx.topic("-new")
    opener.stop()
    lines = ctx.local_tool("dump-log", "--files", ",".join(sorted(map(str, (opener.data / (topic + "-0")).glob("*.log"))))).lines()
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert batches and all(line.endswith("isvalid: true") for line in batches), batches[-3:]


@check("kafka-directory-opens-here", own_broker=True, seconds=180)
def kafka_opens_here(ctx):
    opens(ctx, Kafka, ctx.kind)


@check("directory-opens-in-kafka", own_broker=True, seconds=180)
def opens_in_kafka(ctx):
    opens(ctx, ctx.kind, Kafka)
