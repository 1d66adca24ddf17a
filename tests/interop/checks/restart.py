"""A broker that stops, or is killed, and starts again on its data."""
import re

from harness import process
from harness.check import check, same
from harness.process import until
from harness.records import plain, records, with_offsets


@check("restart-keeps-data-and-offsets", own_broker=True, seconds=120)
def restart(ctx):
    broker = ctx.new_broker()
    topic, group = ctx.topic(retention__ms=123456789), ctx.name + "-group"
    other = ctx.topic("-other", partitions=3)
    identity = ctx.tool("topics", "--describe", "--topic", topic).lines()[0]
    ctx.produce("java", topic, "lz4", records(50))
    ctx.group("java", topic, group, 20)
    ctx.produce("java", other, "none", records(9, partition=2))
    broker.stop()
    assert (broker.data / ".kafka_cleanshutdown").exists(), "a controlled shutdown leaves its marker"
    broker.start()
    same(ctx.tool("topics", "--describe", "--topic", topic).lines()[0], identity, "topic, id and configuration")
    same(ctx.offsets(topic, -1), {0: 50}, "end offset")
    same(ctx.offsets(other, -1), {0: 0, 1: 0, 2: 9}, "end offsets of the other topic")
    wanted = with_offsets(records(50))
    same(plain(ctx.consume("java", topic, 50)), wanted, "records")
    same(plain(ctx.group("java", topic, group, 10)), wanted[20:30], "the group goes on where it was")
    same([a["offset"] for a in ctx.produce("java", topic, "zstd", records(5))], list(range(50, 55)), "offsets go on")


@check("restart-under-a-producer-and-a-consumer", own_broker=True, seconds=150)
def restart_under_load(ctx):
    """An idempotent producer and a group ride over a controlled restart: every record once, in order."""
    broker = ctx.new_broker()
    topic, group, count = ctx.topic(), ctx.name + "-group", 3000
    settings = ctx.directory / "producer.properties"
    # The tool's own default is not to retry.
    settings.write_text("enable.idempotence=true\nretries=2147483647\nreconnect.backoff.max.ms=200\n")
    producer = ctx.background(ctx.command(
        "verifiable-producer", "--bootstrap-server", ctx.bootstrap, "--topic", topic, "--max-messages", count, "--throughput", 300, "--acks", -1,
        "--command-config", settings), "producer.log")
    until("the producer is on its way", lambda: sum(ctx.offsets(topic, -1).values()) > 200)
    first = ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", 100, "--timeout-ms", 20000).lines()
    broker.stop()
    broker.start()
    process.until("the producer has ended", lambda: producer.poll() is not None, seconds=150)
    log = (ctx.directory / "producer.log").read_text()
    same(len(re.findall(r'"name":"producer_send_success"', log)), count, "acknowledged records")
    same(ctx.offsets(topic, -1), {0: count}, "records on the broker: no loss, no duplicate")
    rest = ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--group", group, "--max-messages", count - 100, "--timeout-ms", 20000).lines()
    same(first + rest, [str(i) for i in range(count)], "values in order over both halves")


@check("kill-loses-nothing-acknowledged", own_broker=True, seconds=150)
def kill(ctx):
    """kill -9 of the process, not of the host: what was acknowledged is in the page cache and must be there again."""
    broker = ctx.new_broker()
    topic, group = ctx.topic(segment__bytes=1048576), ctx.name + "-group"
    ctx.produce("java", topic, "none", records(30))
    ctx.group("java", topic, group, 12)
    out = ctx.tool("producer-perf-test", "--topic", topic, "--num-records", 3000, "--record-size", 1024, "--throughput", -1, "--command-property", "acks=all")
    assert "3000 records sent" in out.out, out.out
    broker.kill()
    broker.start()
    same(ctx.offsets(topic, -1), {0: 3030}, "end offset")
    wanted = with_offsets(records(30))
    same(plain(ctx.consume("java", topic, 30)), wanted, "records")
    same(plain(ctx.group("java", topic, group, 18)), wanted[12:], "the group goes on where it was")
    ctx.produce("java", topic, "gzip", records(5))
    broker.stop()
    lines = ctx.local_tool("dump-log", "--files", ",".join(sorted(map(str, (broker.data / (topic + "-0")).glob("*.log"))))).lines()
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert batches and all(line.endswith("isvalid: true") for line in batches), batches[-3:]
    same(re.search(r"lastOffset: (\d+)", batches[-1]).group(1), "3034", "last offset in the files")
    assert len(list((broker.data / (topic + "-0")).glob("*.log"))) >= 3, "segments"
