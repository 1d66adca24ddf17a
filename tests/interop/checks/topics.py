"""kafka-topics and kafka-configs: what they create, change, print and are refused."""
import re

from harness.check import check, same
from harness.process import until


def describe(ctx, topic):
    """Topic line and partition lines of `kafka-topics --describe` as dictionaries."""
    lines = ctx.tool("topics", "--describe", "--topic", topic).lines()
    # Fields are separated by tabs; "Configs:" may be empty and has commas.
    parse = lambda line: {k.strip(): v.strip() for k, v in (f.split(":", 1) for f in line.strip().split("\t") if ":" in f)}
    return parse(lines[0]), [parse(line) for line in lines[1:]]


@check("topics-create-describe")
def create_describe(ctx):
    topic = ctx.topic(partitions=3, retention__ms=123456, cleanup__policy="compact")
    head, partitions = describe(ctx, topic)
    same(head["Topic"], topic, "name")
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", head["TopicId"]), head
    same((head["PartitionCount"], head["ReplicationFactor"]), ("3", "1"), "shape")
    configs = dict(c.split("=") for c in head["Configs"].split(","))
    same((configs.get("retention.ms"), configs.get("cleanup.policy")), ("123456", "compact"), "configs")
    same([p["Partition"] for p in partitions], ["0", "1", "2"], "partitions")
    for p in partitions:
        assert p["Leader"] == p["Replicas"] == p["Isr"] and p["Leader"].isdigit(), p


@check("topics-create-refusals")
def create_refusals(ctx):
    topic = ctx.topic()
    for extra, wanted in (
        (["--topic", topic], "already exists"),
        (["--topic", "not a name"], "is invalid"),
        (["--topic", topic + "-rf", "--replication-factor", "2"], "replication factor"),
        (["--topic", topic + "-config", "--config", "no.such.config=1"], "no.such.config"),
        (["--topic", topic + "-value", "--config", "retention.ms=soon"], "soon"),
    ):
        out = ctx.tool("topics", "--create", *extra, code=1)
        assert wanted.lower() in (out.out + out.err).lower(), (wanted, out.out, out.err)
    ctx.tool("topics", "--create", "--topic", topic, "--if-not-exists")


@check("topics-list")
def listing(ctx):
    wanted = {ctx.topic("-a"), ctx.topic("-b", partitions=2)}
    listed = set(ctx.tool("topics", "--list").lines())
    assert wanted <= listed, listed
    assert "__cluster_metadata" not in listed, listed


@check("topics-more-partitions")
def more_partitions(ctx):
    topic = ctx.topic(partitions=2)
    ctx.tool("console-producer", "--topic", topic, stdin="a\nb\nc\n")
    before = ctx.offsets(topic, -1)
    ctx.tool("topics", "--alter", "--topic", topic, "--partitions", 5)
    until("five partitions", lambda: len(describe(ctx, topic)[1]) == 5)
    after = ctx.offsets(topic, -1)
    same(sorted(after), [0, 1, 2, 3, 4], "partitions with offsets")
    same({p: after[p] for p in before}, before, "records of the first partitions")
    out = ctx.tool("topics", "--alter", "--topic", topic, "--partitions", 3, code=1, alone=True)
    assert "InvalidPartitions" in out.out + out.err, out.out + out.err


@check("topics-delete-and-create-again")
def delete(ctx):
    topic = ctx.topic()
    ctx.tool("console-producer", "--topic", topic, stdin="old\n")
    first = describe(ctx, topic)[0]["TopicId"]
    ctx.tool("topics", "--delete", "--topic", topic)
    until("the topic is not listed", lambda: topic not in ctx.tool("topics", "--list").lines())
    out = ctx.tool("topics", "--describe", "--topic", topic, code=1)
    assert "does not exist" in out.out + out.err, out.out + out.err
    out = ctx.tool("topics", "--delete", "--topic", topic, code=1)
    assert "does not exist" in out.out + out.err, out.out + out.err
    ctx.topic()
    assert describe(ctx, topic)[0]["TopicId"] != first
    same(ctx.offsets(topic, -1), {0: 0}, "a topic made again is empty")
    ctx.tool("console-producer", "--topic", topic, stdin="new\n")
    got = ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 1, "--timeout-ms", 15000)
    same(got.lines(), ["new"], "records")


@check("topics-auto-create")
def auto_create(ctx):
    topic = ctx.name
    ctx.tool("console-producer", "--topic", topic, stdin="first\n")
    assert topic in ctx.tool("topics", "--list").lines()
    got = ctx.tool("console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 1, "--timeout-ms", 15000)
    same(got.lines(), ["first"], "records")


def configs(ctx, *entity, every=False):
    """name -> (value, synonyms) as kafka-configs prints them."""
    lines = ctx.tool("configs", *entity, "--describe", *(["--all"] if every else [])).lines()
    out = {}
    for line in lines:
        m = re.match(r"\s+(\S+?)=(.*) sensitive=(true|false) synonyms=\{(.*)\}$", line)
        if m:
            out[m.group(1)] = (m.group(2), m.group(4))
    return out


@check("configs-topic")
def topic_configs(ctx):
    topic = ctx.topic()
    entity = ["--entity-type", "topics", "--entity-name", topic]
    same(configs(ctx, *entity), {}, "nothing is set at first")
    ctx.tool("configs", *entity, "--alter", "--add-config", "retention.ms=123456,cleanup.policy=[compact,delete]")
    got = until("both are set", lambda: (lambda c: c if len(c) == 2 else None)(configs(ctx, *entity)))
    same({k: v[0] for k, v in got.items()}, {"retention.ms": "123456", "cleanup.policy": "compact,delete"}, "set")
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=123456" in got["retention.ms"][1], got
    every = configs(ctx, *entity, every=True)
    for name, value in {
        "segment.bytes": "1073741824", "max.message.bytes": "1048588", "retention.bytes": "-1", "compression.type": "producer",
        "message.timestamp.type": "CreateTime", "min.insync.replicas": "1", "segment.ms": "604800000", "flush.messages": "9223372036854775807",
        "index.interval.bytes": "4096", "segment.index.bytes": "10485760", "delete.retention.ms": "86400000",
        "message.timestamp.after.max.ms": "3600000", "file.delete.delay.ms": "1000", "unclean.leader.election.enable": "false",
    }.items():
        same(every.get(name, (None,))[0], value, name)
    ctx.tool("configs", *entity, "--alter", "--delete-config", "retention.ms")
    until("one is left", lambda: list(configs(ctx, *entity)) == ["cleanup.policy"])
    for bad in ("no.such.config=1", "retention.ms=soon", "cleanup.policy=burn"):
        out = ctx.tool("configs", *entity, "--alter", "--add-config", bad, code=1)
        assert "InvalidConfiguration" in out.out + out.err, (bad, out.out + out.err)
    same(list(configs(ctx, *entity)), ["cleanup.policy"], "refused changes change nothing")


@check("configs-broker")
def broker_configs(ctx):
    node = re.search(r"id: (\d+)", ctx.tool("broker-api-versions").out).group(1)
    every = configs(ctx, "--entity-type", "brokers", "--entity-name", node, every=True)
    for name, value in {
        "message.max.bytes": "1048588", "log.segment.bytes": "1073741824", "num.partitions": "1", "auto.create.topics.enable": "true",
        "socket.request.max.bytes": "104857600", "log.retention.hours": "168", "offsets.topic.num.partitions": "50",
        "group.initial.rebalance.delay.ms": "0", "connections.max.idle.ms": "600000", "fetch.max.bytes": "57671680",
        "group.max.session.timeout.ms": "1800000", "offsets.retention.minutes": "10080",
    }.items():
        same(every.get(name, (None,))[0], value, name)
    assert every["log.dirs"][0], "log.dirs is empty"


@check("configs-take-effect")
def take_effect(ctx):
    topic = ctx.topic(max__message__bytes=1000)
    big = "x" * 3000 + "\n"

    def producer_says():
        # In what it logs, which a machine that stays keeps to itself.
        out = ctx.tool("console-producer", "--topic", topic, stdin=big, code=None, alone=True)
        return out.out + out.err

    assert "RecordTooLarge" in (said := producer_says()), said
    same(ctx.offsets(topic, -1), {0: 0}, "a refused record is not stored")
    ctx.tool("configs", "--entity-type", "topics", "--entity-name", topic, "--alter", "--add-config", "max.message.bytes=10000")
    until("the larger record is taken", lambda: "RecordTooLarge" not in producer_says())
    same(ctx.offsets(topic, -1), {0: 1}, "stored once")


@check("configs-quotas")
def quotas(ctx):
    client = ["--entity-type", "clients", "--entity-name", ctx.name]
    both = ["--entity-type", "users", "--entity-default", *client]

    def described(entity):
        lines = ctx.tool("configs", *entity, "--describe").lines()
        found = [re.match(r"Quota configs for (.*) are (.*)", line) for line in lines]
        return {m[1]: dict(pair.split("=") for pair in m[2].split(", ")) for m in found if m}

    ctx.tool("configs", *client, "--alter", "--add-config", "producer_byte_rate=1048576,consumer_byte_rate=2097152")
    ctx.tool("configs", *both, "--alter", "--add-config", "producer_byte_rate=4096")
    name = f"client-id '{ctx.name}'"
    rates = {k: float(v) for k, v in described(client)[name].items()}
    same(rates, {"producer_byte_rate": 1048576.0, "consumer_byte_rate": 2097152.0}, "quotas of the client id")
    (entity,) = described(both)
    assert entity.endswith(name) and "default user-principal" in entity, entity
    out = ctx.tool("configs", *client, "--alter", "--add-config", "no_such_rate=1", code="not 0")
    assert "no_such_rate" in out.out + out.err, (out.out, out.err)
    ctx.tool("configs", *client, "--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate")
    ctx.tool("configs", *both, "--alter", "--delete-config", "producer_byte_rate")
    same((described(client), described(both)), ({}, {}), "quotas at the end")
