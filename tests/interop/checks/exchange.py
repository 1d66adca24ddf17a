"""A stopped Kafka's directory opens in the broker under test, and the other way round."""
import json
import re
import shutil

from checks import transactions
from checks.files import BATCH, FEW_PARTITIONS, dump, segments
from harness import process
from harness.broker import Highwater, Kafka
from harness.check import check, same
from harness.process import until
from harness.records import BASE_MS, plain, records, with_offsets

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def identify(ctx, topic):
    """Topic, id, shape and configuration, without the settings that only Highwater knows."""
    return re.sub(r",?highwater\.[a-z.]+=[^,]*", "", ctx.tool("topics", "--describe", "--topic", topic).lines()[0])


def opens(ctx, first, second, **settings):
    """What one broker wrote, the other serves and goes on with."""
    writer = ctx.new_broker(kind=first, **settings)
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
    # Stamped and compressed again by the broker.
    stamped = ctx.topic("-stamped", message__timestamp__type="LogAppendTime", compression__type="zstd")
    ctx.produce("java", stamped, "lz4", sent[:20])
    shown = plain(ctx.consume("java", stamped, 20))
    same([r["value"] for r in shown], [r["value"] for r in sent[:20]], "records stamped by the broker")
    assert min(r["timestamp"] for r in shown) > BASE_MS + 3_000_000, shown
    gone = ctx.topic("-gone")
    ctx.tool("topics", "--delete", "--topic", gone)
    identity = identify(ctx, topic)
    writer.stop()
    left = [f.name for f in writer.data.iterdir() if "journal" in f.name]
    same(left, [], "journals after a controlled stop")

    opener = ctx.new_broker(kind=second, directory="opener", prepare=lambda b: shutil.copytree(writer.data, b.data), **settings)
    same(identify(ctx, topic), identity, "topic, id and configuration")
    assert gone not in ctx.tool("topics", "--list").lines(), "a deleted topic is back"
    same((ctx.offsets(topic, -2), ctx.offsets(topic, -1)), ({0: 0, 1: 4}, {0: len(sent), 1: 9}), "first and end offsets")
    wanted = with_offsets(sent)
    read = [r for r in plain(ctx.consume("java", topic, len(sent) + 5))]
    same([r for r in read if r["partition"] == 0], wanted, "records")
    same([r for r in read if r["partition"] == 1], with_offsets(records(9, partition=1))[4:], "records after a deletion")
    same(plain(ctx.consume("java", stamped, 20)), shown, "records that the other had stamped")
    rest = plain(ctx.group("java", topic, group, len(sent) - 30 + 5))
    same([r for r in rest if r["partition"] == 0], wanted[30:], "the group goes on where it was")
    acks = [a["offset"] for a in ctx.produce("java", topic, "zstd", records(5))]
    same(acks, list(range(len(sent), len(sent) + 5)), "offsets go on")
    ctx.topic("-new")
    opener.stop()
    for name, mark in ((topic, ""), (stamped, "compresscodec: zstd")):
        lines = ctx.local_tool("dump-log", "--files", ",".join(sorted(map(str, (opener.data / (name + "-0")).glob("*.log"))))).lines()
        batches = [line for line in lines if line.startswith("baseOffset")]
        assert batches and all(line.endswith("isvalid: true") and mark in line for line in batches), batches[-3:]


@check("kafka-directory-opens-here", own_broker=True, seconds=180)
def kafka_opens_here(ctx):
    opens(ctx, Kafka, ctx.kind)


@check("directory-opens-in-kafka", own_broker=True, seconds=180)
def opens_in_kafka(ctx):
    opens(ctx, ctx.kind, Kafka)


# The other rows of durability: written past the page cache and flushed, by the journal where many partitions are.
DIRECT = {"highwater__segment__io": "direct", "log__flush__interval__messages": 1}


@check("directory-of-direct-flushed-segments-opens-in-kafka", own_broker=True, seconds=180)
def direct_opens_in_kafka(ctx):
    opens(ctx, ctx.kind, Kafka, **DIRECT)


def sound(ctx, broker, topics):
    """
    The files of stopped topics (partition 0) are as Kafka's tool wants them; where ours is under test, it says the same.
    Answers how many records each batch of each topic holds.
    """
    counts = {}
    for topic in topics:
        directory = broker.data / (topic + "-0")
        logs = segments(directory)
        indexes = [log.with_suffix(".index") for log in logs]
        times = [log.with_suffix(".timeindex") for log in logs]
        files = logs + indexes + times + segments(directory, ".snapshot") + segments(directory, ".txnindex")
        kafka = ctx.local_tool("dump-log", "--deep-iteration", "--files", ",".join(map(str, files)))
        batches = [m.groupdict() for m in map(BATCH.match, kafka.lines()) if m]
        same({b["valid"] for b in batches}, {"true"}, f"{topic}: batches are valid")
        counts[topic] = [int(b["count"]) for b in batches]
        checked = dump(ctx, "--index-sanity-check", files=indexes + times)
        same(sum(line.endswith(("passed sanity check.", "is empty.")) for line in checked), 2 * len(logs), f"{topic}: sane indexes")
        compared = process.run(ctx.command("dump-log", "--verify-index-only", "--files", ",".join(map(str, indexes))))
        found = re.findall(r"^ *Index(?:ed)? (?:offset|timestamp): .*", compared.out + compared.err + kafka.out + kafka.err, re.M)
        # The cleaner keeps a producer's last batch without its records, and indexes it by the time in its header; Kafka's
        # tool looks for that time in the records.
        emptied = {f"Index timestamp: {b['time']}, log timestamp: -1" for b in batches if b["count"] == "0"}
        same([line for line in found if line.strip() not in emptied], [], f"{topic}: indexes")
        if ctx.kind is Highwater:
            ours = process.run([ctx.kit.highwater, "dump-log", "--deep-iteration", "--files", ",".join(map(str, files))])
            same(ours.lines(), kafka.lines(), f"{topic}: what highwater dump-log prints")
            # Kafka's tool tells of gaps in an order of its own.
            same(sorted(ours.err.splitlines()), sorted(kafka.err.splitlines()), f"{topic}: what highwater dump-log finds")
    return counts


def internal_logs(ctx, broker):
    """Our tool puts the records of a stopped broker's own logs into the words of Kafka's."""
    if ctx.kind is not Highwater:
        return
    for topic, decoder in (
        ("__transaction_state", "--transaction-log-decoder"), ("__consumer_offsets", "--offsets-decoder"),
        ("__cluster_metadata", "--cluster-metadata-decoder"),
    ):
        logs = [log for d in sorted(broker.data.glob(topic + "-*")) for log in segments(d) if log.stat().st_size]
        assert logs or topic != "__cluster_metadata", "no metadata log"
        if logs:
            ours = process.run([ctx.kit.highwater, "dump-log", decoder, "--files", ",".join(map(str, logs))])
            same(ours.lines(), dump(ctx, decoder, files=logs), f"{topic} in words")


def seen(ctx, topics):
    """What each isolation level sees of each topic."""
    read = process.run(ctx.kit.java("Transactions", "read-both", ctx.bootstrap, *topics), seconds=120).out.split("\n\n")
    reads = iter([json.loads(line) for line in part.splitlines()] for part in read)
    return {topic: {level: next(reads) for level in ("read_uncommitted", "read_committed")} for topic in topics}


def serves(ctx, wanted, what):
    for topic, levels in seen(ctx, wanted).items():
        for level, read in levels.items():
            same(read, wanted[topic][level], f"{what}: {topic}, {level}")


def in_transactions(ctx, topic, name, *steps):
    """Steps are "begin", "commit", "abort", "leave" (the transaction open), or a list of records."""
    producer = ctx.transactional("java", name)
    for step in steps:
        if step == "leave":
            producer.kill()
        elif isinstance(step, str):
            producer.step(step)
        else:
            producer.send(topic, step)
    producer.end()


def keyed(first, keys, value):
    """Records that are 50 ms apart, for a compacted topic."""
    return [
        {"partition": 0, "timestamp": BASE_MS + (first + i) * 50, "key": key, "value": value, "headers": []}
        for i, key in enumerate(keys)
    ]


def cleaned(broker, topic):
    """Waits until the cleaner has been everywhere but in the segment that is written to."""
    checkpoint = broker.data / "cleaner-offset-checkpoint"

    def done():
        active = int(segments(broker.data / (topic + "-0"))[-1].stem)
        return checkpoint.exists() and f"{topic} 0 {active}\n" in checkpoint.read_text() + "\n"

    until("the cleaner has reached the active segment", done, seconds=60)


def values(read):
    return [(r["key"], r["value"]) for r in read]


def cleaned_opens(ctx, first, second):
    """Committed, aborted and open transactions, and what the one broker's cleaner left, are served by the other that opens them."""
    writer = ctx.new_broker(
        kind=first, log__cleaner__backoff__ms=100, log__flush__offset__checkpoint__interval__ms=500, **FEW_PARTITIONS)
    # Segments roll by the timestamps of records. A transaction's marker bears the present time, records that of an hour ago.
    ended, pending = ctx.topic("-ended", segment__ms=100, index__interval__bytes=100), ctx.topic("-pending")
    compacted = ctx.topic(
        "-compacted", cleanup__policy="compact", segment__ms=100, index__interval__bytes=100, min__cleanable__dirty__ratio=0.01, max__compaction__lag__ms=1000)

    r = records(100)
    in_transactions(
        ctx, ended, "ended", "begin", r[:15], "commit", "begin", r[15:30], "abort", "begin", r[30:45], "commit", "begin", r[45:60], "leave")
    ctx.produce("java", ended, "lz4", r[60:80])
    # Whoever takes over a transactional id aborts what was left open.
    in_transactions(ctx, ended, "ended", "begin", r[80:90], "abort", "begin", r[90:], "commit")
    in_transactions(ctx, pending, "pending", "begin", r[:3], "commit", "begin", r[3:6], "leave")
    ctx.produce("java", pending, "none", r[6:9])

    keys = [f"k{i}" for i in range(10)]
    ctx.produce("java", compacted, "none", keyed(0, keys, "first"))
    # Nothing of this producer is kept but its last sequence number, in a batch without records.
    ctx.produce("java", compacted, "lz4", keyed(4, keys[:3], "superseded"))
    in_transactions(
        ctx, compacted, "compacted", "begin", keyed(10, keys[:5], "committed"), "commit", "begin", keyed(20, keys, "aborted"), "abort")
    ctx.produce("java", compacted, "zstd", keyed(30, keys[8:], None) + keyed(40, keys[:3], "second"))
    # The last marker begins the segment that is written to, so that all before it can be cleaned.
    in_transactions(ctx, compacted, "compacted", "begin", keyed(50, ["last"], "last"), "commit")
    cleaned(writer, compacted)
    topics = (ended, pending, compacted)
    wanted = seen(ctx, topics)
    ends = {topic: ctx.offsets(topic, -1) for topic in topics}

    # What the first says, held against what was sent: else two wrong reads could agree.
    committed = r[:15] + r[30:45] + r[60:80] + r[90:]
    same([x["value"] for x in wanted[ended]["read_uncommitted"]], [x["value"] for x in r], "all of the transactions")
    same([x["value"] for x in wanted[ended]["read_committed"]], [x["value"] for x in committed], "committed transactions")
    same([len(read) for read in wanted[pending].values()], [9, 3], "seen of an open transaction")
    kept = [(k, "first") for k in keys[5:8]] + [(k, "committed") for k in keys[3:5]]
    kept += [(k, None) for k in keys[8:]] + [(k, "second") for k in keys[:3]] + [("last", "last")]
    same(values(wanted[compacted]["read_committed"]), kept, "what compaction keeps")
    offsets = [x["offset"] for x in wanted[compacted]["read_uncommitted"]]
    assert offsets[0] > 0 and offsets[-1] - offsets[0] > len(offsets), f"no gap in {offsets}"
    writer.stop()
    assert 0 in sound(ctx, writer, topics)[compacted], "no batch without records"
    internal_logs(ctx, writer)

    opener = ctx.new_broker(
        kind=second, directory="opener", prepare=lambda b: shutil.copytree(writer.data, b.data), **FEW_PARTITIONS)
    same({topic: ctx.offsets(topic, -1) for topic in topics}, ends, "end offsets")
    serves(ctx, wanted, "opened")
    more = [{**x, "timestamp": BASE_MS + 60_000 + i * 50, "key": f"more-{i}"} for i, x in enumerate(records(40))]
    for topic in topics:
        at = ends[topic][0]
        same([a["offset"] for a in ctx.produce("java", topic, "gzip", more)], list(range(at, at + 40)), f"{topic}: offsets go on")
    opener.stop()
    sound(ctx, opener, topics)

    def without_what_can_be_made_again(broker):
        shutil.copytree(opener.data, broker.data)
        (broker.data / ".kafka_cleanshutdown").unlink()
        for topic in topics:
            for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
                for file in segments(broker.data / (topic + "-0"), suffix):
                    file.unlink()

    for topic in topics:
        for level, read in wanted[topic].items():
            # An open transaction holds back whatever comes after it.
            if (topic, level) != (pending, "read_committed"):
                read += with_offsets(more, ends[topic][0])
    bare = ctx.new_broker(kind=second, directory="bare", prepare=without_what_can_be_made_again, **FEW_PARTITIONS)
    serves(ctx, wanted, "opened without indexes and snapshots")
    bare.stop()
    sound(ctx, bare, topics)

    ctx.new_broker(kind=first, directory="again", prepare=lambda b: shutil.copytree(opener.data, b.data), **FEW_PARTITIONS)
    serves(ctx, wanted, "back where it came from")


@check("kafka-transactions-and-compaction-open-here", own_broker=True, seconds=400)
def transactions_open_here(ctx):
    cleaned_opens(ctx, Kafka, ctx.kind)


@check("transactions-and-compaction-open-in-kafka", own_broker=True, seconds=400)
def transactions_open_in_kafka(ctx):
    cleaned_opens(ctx, ctx.kind, Kafka)


@check("kafka-compacts-what-was-written-here", own_broker=True, seconds=240)
def kafka_compacts(ctx):
    """Kafka's cleaner goes over segments and indexes of the broker under test, which then opens what it left."""
    writer = ctx.new_broker(**FEW_PARTITIONS)
    topic = ctx.topic(
        cleanup__policy="compact", segment__ms=100, index__interval__bytes=100, min__cleanable__dirty__ratio=0.01,
        max__compaction__lag__ms=1000)
    keys = [f"k{i}" for i in range(10)]
    for i, codec in enumerate(CODECS):
        ctx.produce("java", topic, codec, keyed(10 * i, keys[i:], codec))
    ctx.produce("java", topic, "lz4", keyed(50, keys[9:], "superseded"))
    ctx.produce("java", topic, "none", keyed(60, keys[9:], None) + keyed(70, ["last"], "last"))
    assert len(segments(writer.data / (topic + "-0"))) >= 4, "segments"
    writer.stop()
    sound(ctx, writer, [topic])

    kafka = ctx.new_broker(
        kind=Kafka, directory="kafka", prepare=lambda b: shutil.copytree(writer.data, b.data), log__cleaner__backoff__ms=100,
        **FEW_PARTITIONS)
    # A marker of the present time begins a segment, so that all before it can be cleaned.
    in_transactions(ctx, topic, ctx.name, "begin", keyed(80, ["marked"], "marked"), "commit")
    cleaned(kafka, topic)
    wanted = seen(ctx, [topic])
    kept = [(k, c) for k, c in zip(keys, CODECS)][:4] + [(k, CODECS[4]) for k in keys[4:9]]
    same(values(wanted[topic]["read_committed"]), kept + [("k9", None), ("last", "last"), ("marked", "marked")], "what compaction keeps")
    kafka.stop()
    assert 0 in sound(ctx, kafka, [topic])[topic], "no batch without records"

    opener = ctx.new_broker(directory="opener", prepare=lambda b: shutil.copytree(kafka.data, b.data), **FEW_PARTITIONS)
    serves(ctx, wanted, "opened after Kafka's cleaner")
    ctx.produce("java", topic, "zstd", keyed(90, keys, "new"))
    opener.stop()
    sound(ctx, opener, [topic])


def killed(ctx, first, second, **settings):
    """kill -9 of one broker under load; the other opens what was left, and what a restart and a controlled stop made of it."""
    writer = ctx.new_broker(kind=first, **FEW_PARTITIONS, **settings)
    group = ctx.name + "-group"
    topic, loaded = ctx.topic(), ctx.topic("-loaded", segment__bytes=1048576, index__interval__bytes=1024)
    topics = [topic, loaded]
    sent = []
    for codec in CODECS:
        more = records(20, first=len(sent))
        ctx.produce("java", topic, codec, more)
        sent += more
    ctx.group("java", topic, group, 30)
    out = ctx.tool("producer-perf-test", "--topic", loaded, "--num-records", 2500, "--record-size", 1024, "--throughput", -1)
    assert "2500 records sent" in out.out, out.out
    in_parts = ctx.topic("-transactions", segment__ms=100)
    topics.append(in_parts)
    in_transactions(
        ctx, in_parts, "transactions", "begin", sent[:20], "commit", "begin", sent[20:40], "abort", "begin", sent[40:50], "commit",
        "begin", sent[50:60], "leave")
    log = ctx.directory / "producer.log"
    producer = ctx.background(ctx.command(
        "verifiable-producer", "--bootstrap-server", ctx.bootstrap, "--topic", loaded, "--max-messages", 1000000, "--throughput", 2000,
        "--acks", -1), log.name)
    until("the producer is at work", lambda: log.read_text().count("producer_send_success") > 1500, seconds=40)
    writer.kill()
    process.end(producer)
    acknowledged = [json.loads(line) for line in log.read_text().splitlines() if '"producer_send_success"' in line and line.endswith("}")]

    def holds_all(what):
        """Everything acknowledged is there, once and in order; answers what is there."""
        read = seen(ctx, topics)
        same(plain(read[topic]["read_uncommitted"])[:len(sent)], with_offsets(sent), f"{what}: records")
        served = {r["offset"]: r["value"] for r in read[loaded]["read_uncommitted"]}
        same(sorted(served), list(range(len(served))), f"{what}: offsets")
        same([served.get(a["offset"]) for a in acknowledged], [a["value"] for a in acknowledged], f"{what}: acknowledged")
        ended = read[in_parts]
        same([r["value"] for r in ended["read_uncommitted"]], [r["value"] for r in sent[:60]], f"{what}: all of the transactions")
        committed = sent[:20] + sent[40:50]
        same([r["value"] for r in ended["read_committed"]], [r["value"] for r in committed], f"{what}: committed")
        return read

    left = ctx.directory / "left"
    shutil.copytree(writer.data, left)
    opener = ctx.new_broker(kind=second, directory="opens-what-was-left", prepare=lambda b: shutil.copytree(left, b.data), **FEW_PARTITIONS)
    holds_all("opened after the kill")
    opener.stop()
    sound(ctx, opener, topics)

    writer.start()
    ctx.broker = writer
    holds_all("restarted after the kill")
    same([a["offset"] for a in ctx.produce("java", topic, "zstd", records(5))], list(range(len(sent), len(sent) + 5)), "offsets go on")
    same(plain(ctx.group("java", topic, group, 10)), with_offsets(sent)[30:40], "the group goes on where it was")
    wanted = holds_all("after more records")
    writer.stop()
    sound(ctx, writer, topics)
    internal_logs(ctx, writer)

    opener = ctx.new_broker(kind=second, directory="opens-what-was-stopped", prepare=lambda b: shutil.copytree(writer.data, b.data), **FEW_PARTITIONS)
    serves(ctx, wanted, "opened after a controlled stop")
    same(plain(ctx.group("java", topic, group, 10)), with_offsets(sent)[40:50], "the group goes on where it was, in the opener")
    first_new = len(wanted[loaded]["read_uncommitted"])
    same([a["offset"] for a in ctx.produce("java", loaded, "lz4", records(5))], list(range(first_new, first_new + 5)), "the opener's offsets go on")
    opener.stop()
    sound(ctx, opener, topics)


@check("killed-directory-opens-in-kafka", own_broker=True, seconds=400)
def killed_opens_in_kafka(ctx):
    killed(ctx, ctx.kind, Kafka)


@check("killed-directory-of-direct-flushed-segments-opens-in-kafka", own_broker=True, seconds=400)
def killed_direct_opens_in_kafka(ctx):
    killed(ctx, ctx.kind, Kafka, **DIRECT)


@check("killed-kafka-directory-opens-here", own_broker=True, seconds=400)
def killed_kafka_opens_here(ctx):
    killed(ctx, Kafka, ctx.kind)


def hands_over(ctx, first, second):
    """One broker knows the transactional ids, the open transactions and the offsets in them of the other."""
    writer = ctx.new_broker(kind=first, **FEW_PARTITIONS)
    source, target, group = ctx.topic("-in"), ctx.topic("-out"), ctx.name + "-group"
    sent = records(30)
    ctx.produce("java", source, "none", sent)
    program = ctx.transactional("java", "program", member=(source, group))
    for how in ("commit", "leave"):
        got = program.poll(10)
        program.step("begin")
        program.send(target, got)
        program.step("offsets")
        if how == "commit":
            program.step(how)
    program.kill()
    in_transactions(ctx, target, "left", "begin", records(5, first=50), "leave")
    in_transactions(ctx, target, "ended", "begin", records(5, first=60), "commit", "begin", records(5, first=70), "abort")

    def listed():
        rows = transactions.table(ctx.tool("transactions", "list"))
        return {row.pop("TransactionalId"): row for row in rows}

    until("the abort is complete", lambda: listed()["ended"]["TransactionState"] == "CompleteAbort")
    before = listed()
    same({i: row["TransactionState"] for i, row in before.items()},
         {"program": "Ongoing", "left": "Ongoing", "ended": "CompleteAbort"}, "states")
    wanted = seen(ctx, [target])
    writer.stop()
    internal_logs(ctx, writer)

    opener = ctx.new_broker(kind=second, directory="opener", prepare=lambda b: shutil.copytree(writer.data, b.data), **FEW_PARTITIONS)
    until("the coordinators have loaded", lambda: len(listed()) == len(before))
    same(listed(), before, "transactional ids")
    serves(ctx, wanted, "opened")
    ctx.transactional("java", "new").end()
    assert listed()["new"]["ProducerId"] not in {row["ProducerId"] for row in before.values()}, "a producer id is given twice"
    program = ctx.transactional("java", "program", member=(source, group))
    got = []
    while len(got) < 20:
        more = program.poll(10)
        assert more, f"the group reads {len(got)} records"
        got += more
        program.step("begin")
        program.send(target, more)
        program.step("offsets")
        program.step("commit")
    program.end()
    same(plain(got), with_offsets(sent)[10:], "the group goes on where its last commit was")
    same(transactions.committed_offsets(ctx, group), {0: 30}, "offsets")
    ctx.transactional("java", "left").end()
    committed = sent[:10] + records(5, first=60) + sent[10:]
    same([r["value"] for r in seen(ctx, [target])[target]["read_committed"]], [r["value"] for r in committed], "what was committed")
    opener.stop()
    sound(ctx, opener, [target])
    internal_logs(ctx, opener)


@check("transactions-of-kafka-go-on-here", own_broker=True, seconds=300)
def go_on_here(ctx):
    hands_over(ctx, Kafka, ctx.kind)


@check("transactions-go-on-in-kafka", own_broker=True, seconds=300)
def go_on_in_kafka(ctx):
    hands_over(ctx, ctx.kind, Kafka)
