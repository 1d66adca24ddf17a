"""The files of a stopped broker, read by Kafka's own tools."""
import re

from harness.check import check, same
from harness.records import records

# Kafka makes the 50 partitions of each of its own logs one by one.
FEW_PARTITIONS = {"offsets__topic__num__partitions": 3, "transaction__state__log__num__partitions": 3}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH = re.compile(
    r"^baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) baseSequence: (?P<sequence>-?\d+) .*?"
    r"producerId: (?P<producer>-?\d+) producerEpoch: (?P<epoch>-?\d+) partitionLeaderEpoch: (?P<leader>\d+) isTransactional: (?P<txn>\w+) "
    r"isControl: (?P<control>\w+) .*?position: (?P<position>\d+) CreateTime: (?P<time>-?\d+) size: (?P<size>\d+) magic: (?P<magic>\d+) "
    r"compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: (?P<valid>\w+)")
RECORD = re.compile(
    r"^\| offset: (?P<offset>\d+) CreateTime: (?P<time>\d+) keySize: (?P<key_size>-?\d+) valueSize: (?P<value_size>-?\d+) "
    r"sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<headers>[^\]]*)\](?: key: (?P<key>\S*))?(?: payload: (?P<payload>.*))?$")


def dump(ctx, *args, files):
    return ctx.local_tool("dump-log", *args, "--files", ",".join(map(str, files))).lines()


def segments(directory, suffix=".log"):
    return sorted(directory.glob("*" + suffix))


def size(text):
    return -1 if text is None else len(text.encode())


@check("dump-log-of-every-codec", own_broker=True, seconds=120)
def every_codec(ctx):
    broker = ctx.new_broker()
    topic = ctx.topic()
    sent = []
    for codec in CODECS:
        more = records(40, first=len(sent))
        ctx.produce("java", topic, codec, more)
        sent += more
    broker.stop()
    lines = dump(ctx, "--print-data-log", "--deep-iteration", files=segments(broker.data / (topic + "-0")))
    batches = [m.groupdict() for m in map(BATCH.match, lines) if m]
    same(set(b["codec"] for b in batches), set(CODECS), "codecs are kept")
    expected = position = 0
    for b in batches:
        same((int(b["base"]), int(b["position"])), (expected, position), "batches follow each other")
        same((b["valid"], b["magic"], b["leader"], b["txn"], b["control"]), ("true", "2", "0", "false", "false"), "batch header")
        same(int(b["last"]) - int(b["base"]) + 1, int(b["count"]), "count")
        assert int(b["producer"]) >= 0 and b["epoch"] == "0", b
        expected, position = int(b["last"]) + 1, position + int(b["size"])
    same(expected, len(sent), "end offset")
    got = [m.groupdict() for m in map(RECORD.match, lines) if m]
    same(len(got), len(sent), "records")
    for i, (g, s) in enumerate(zip(got, sent)):
        wanted = (i, s["timestamp"], size(s["key"]), size(s["value"]), ",".join(h[0] for h in s["headers"]))
        same((int(g["offset"]), int(g["time"]), int(g["key_size"]), int(g["value_size"]), g["headers"]), wanted, f"record {i}")
        if s["key"] is not None:
            same(g["key"], s["key"], f"key {i}")
        if s["value"]:
            same(g["payload"], s["value"], f"payload {i}")


@check("dump-log-of-indexes-and-snapshots", own_broker=True, seconds=120)
def indexes(ctx):
    broker = ctx.new_broker()
    topic = ctx.topic(segment__bytes=1048576)
    for i in range(3):
        process_args = ("--topic", topic, "--num-records", 1500, "--record-size", 1024, "--throughput", -1)
        ctx.tool("producer-perf-test", *process_args, "--command-property", "batch.size=16384")
    same(ctx.offsets(topic, -1), {0: 4500}, "records")
    broker.stop()
    directory = broker.data / (topic + "-0")
    logs = segments(directory)
    assert len(logs) >= 4, f"4.5 MB in segments of 1 MiB made {len(logs)} segments"
    bases = [int(p.stem) for p in logs]
    ends = bases[1:] + [4500]
    for log, base, end in zip(logs, bases, ends):
        batches = [m.groupdict() for m in map(BATCH.match, dump(ctx, files=[log])) if m]
        assert all(b["valid"] == "true" for b in batches), log
        same((int(batches[0]["base"]), int(batches[-1]["last"])), (base, end - 1), f"{log.name} holds")
        positions = {int(b["position"]): (int(b["base"]), int(b["last"])) for b in batches}
        times = {int(b["last"]): int(b["time"]) for b in batches}
        index = dump(ctx, files=[log.with_suffix(".index")])
        entries = [tuple(map(int, m)) for m in re.findall(r"offset: (\d+) position: (\d+)", "\n".join(index))]
        assert len(entries) > 10, f"{log.name}: {len(entries)} index entries"
        for offset, position in entries:
            low, high = positions[position]
            assert low <= offset <= high, f"{log.name}: index entry {offset} -> {position} is the batch {low}..{high}"
        index = dump(ctx, files=[log.with_suffix(".timeindex")])
        entries = [tuple(map(int, m)) for m in re.findall(r"timestamp: (\d+) offset: (\d+)", "\n".join(index))]
        assert entries and entries == sorted(entries), entries
        assert entries[-1][0] == max(times.values()), f"{log.name}: the last time index entry is not the largest timestamp"
        problems = [line for line in index if re.search(r"[Mm]ismatch|[Oo]ut of order|not found", line)]
        same(problems, [], "time index")
    out = dump(ctx, "--index-sanity-check", files=[log.with_suffix(".index") for log in logs])
    same(sum("passed sanity check" in line for line in out), len(logs), "indexes that pass the sanity check")
    out = dump(ctx, "--verify-index-only", files=[log.with_suffix(".index") for log in logs])
    same([line for line in out if "ismatch" in line], [], "index verification")
    snapshots = segments(directory, ".snapshot")
    assert snapshots and int(snapshots[-1].stem) == 4500, snapshots
    lines = dump(ctx, files=[snapshots[-1]])
    producers = re.findall(r"producerId: (\d+) producerEpoch: (\d+) .*?lastSequence: (\d+) lastOffset: (\d+)", "\n".join(lines))
    same(sorted(int(p[2]) for p in producers), [1499, 1499, 1499], "last sequence of each producer")
    same(sorted(int(p[3]) for p in producers), [1499, 2999, 4499], "last offset of each producer")
    same((directory / "leader-epoch-checkpoint").read_text().split(), ["0", "1", "0", "0"], "leader epochs")
    text = (directory / "partition.metadata").read_text()
    assert re.fullmatch(r"version: 0\ntopic_id: [A-Za-z0-9_-]{22}\n?", text), text


@check("dump-log-of-group-offsets", own_broker=True, seconds=150)
def group_offsets(ctx):
    broker = ctx.new_broker(offsets__topic__num__partitions=3)
    topic, group = ctx.topic(), ctx.name + "-group"
    ctx.produce("java", topic, "none", records(10))
    ctx.group("java", topic, group, 7)
    broker.stop()
    logs = [p for d in sorted(broker.data.glob("__consumer_offsets-*")) for p in segments(d) if p.stat().st_size]
    same(len(logs), 1, "one group lives in one partition of __consumer_offsets")
    text = "\n".join(dump(ctx, "--offsets-decoder", files=logs))
    commits = re.findall(r'key: \{"type":"1","data":\{"group":"%s","topic":"%s","partition":0\}\} payload: (\{.*\})' % (group, topic), text)
    assert commits and '"offset":7' in commits[-1], text[-2000:]
    members = re.findall(r'key: \{"type":"2","data":\{"group":"%s"\}\} payload: (\{.*\})' % group, text)
    assert any('"protocol":"range"' in m and '"clientHost":"/127.0.0.1"' in m for m in members), text[-2000:]
    assert '"members":[]' in members[-1], members[-1]
    assert "isvalid: false" not in text


@check("dump-log-of-cluster-metadata", own_broker=True)
def cluster_metadata(ctx):
    broker = ctx.new_broker()
    topic = ctx.topic(partitions=2, retention__ms=123456)
    broker.stop()
    text = "\n".join(dump(ctx, "--cluster-metadata-decoder", files=segments(broker.data / "__cluster_metadata-0")))
    assert "isvalid: false" not in text
    assert '"type":"REGISTER_BROKER_RECORD"' in text, text[:2000]
    made = re.search(r'"type":"TOPIC_RECORD","version":\d+,"data":\{"name":"%s","topicId":"([^"]{22})"\}' % topic, text)
    assert made, text[-3000:]
    partitions = re.findall(r'"type":"PARTITION_RECORD","version":\d+,"data":\{"partitionId":(\d),"topicId":"%s"' % re.escape(made.group(1)), text)
    same(sorted(partitions), ["0", "1"], "partition records")
    assert re.search(r'"type":"CONFIG_RECORD","version":\d+,"data":\{"resourceType":2,"resourceName":"%s","name":"retention.ms","value":"123456"\}' % topic, text), text[-3000:]
    offsets = [int(o) for o in re.findall(r"^baseOffset: (\d+)", text, re.M)]
    assert offsets and offsets == sorted(offsets), offsets
