"""Other people's clients, each against its own work and against the others'."""
from harness import process
from harness.check import check, same
from harness.records import plain, records, with_offsets

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Client: the part of the kit that brings it, the codecs it can write, and whether it acknowledges each record (KafkaJS
# and Confluent's JavaScript client answer one base offset a partition).
CLIENTS = {
    "java": ("java", CODECS, True),
    "franz-go": ("go", CODECS, True),
    "kafka-python": ("python", CODECS, True),
    "confluent-kafka": ("python", CODECS, True),
    "kafkajs": ("node", ("none", "gzip"), False),
    "confluent-kafka-javascript": ("node", CODECS, False),
}
COUNT = 60


def acknowledged(acks, base, each, what):
    wanted = [{"partition": 0, "offset": base + i} for i in range(COUNT if each else 1)]
    same(acks, wanted, what)


def stored(client, sent):
    """What a broker holds of what a client was told to send: Confluent's JavaScript client sends an empty value as null."""
    if client != "confluent-kafka-javascript":
        return sent
    return [{**r, "value": r["value"] or None} for r in sent]


def client_checks(client, part, codecs, each):
    needs = ("java", part) if part != "java" else ("java",)

    @check(f"{client}-produce-consume", needs=needs, seconds=120)
    def produce_consume(ctx):
        topic = ctx.topic()
        sent = []
        for codec in codecs:
            more = records(COUNT, first=len(sent))
            acknowledged(ctx.produce(client, topic, codec, more), len(sent), each, f"acknowledged with {codec}")
            sent += more
        wanted = with_offsets(stored(client, sent))
        same(plain(ctx.consume(client, topic, len(sent))), wanted, f"read by {client}")
        if client != "java":
            same(plain(ctx.consume("java", topic, len(sent))), wanted, "read by the Java client")

    @check(f"{client}-reads-the-java-client", needs=needs, seconds=150)
    def reads_java(ctx):
        topic = ctx.topic()
        sent = []
        for codec in codecs:
            more = records(COUNT, first=len(sent))
            acknowledged(ctx.produce("java", topic, codec, more), len(sent), True, f"acknowledged with {codec}")
            sent += more
        same(plain(ctx.consume(client, topic, len(sent))), with_offsets(sent), "records")

    @check(f"{client}-group-resumes", needs=needs, seconds=150)
    def group_resumes(ctx):
        topic, group = ctx.topic(), ctx.name + "-group"
        wanted = with_offsets(stored(client, records(COUNT)))
        ctx.produce(client, topic, "none", records(COUNT))
        same(plain(ctx.group(client, topic, group, 25)), wanted[:25], "first run")
        same(plain(ctx.group(client, topic, group, COUNT - 25)), wanted[25:], "second run starts at the committed offset")
        lines = ctx.tool("consumer-groups", "--describe", "--group", group).lines()
        row = next(line.split() for line in lines if line.startswith(group))
        same(row[2:6], ["0", str(COUNT), str(COUNT), "0"], "partition, committed, end and lag")

    if client == "java":
        return

    @check(f"{client}-rebalance", needs=needs, seconds=150)
    def rebalance(ctx):
        topic = ctx.topic(partitions=4)
        out = process.run(ctx.kit.client(client, "rebalance", ctx.bootstrap, topic, ctx.name + "-group"), seconds=80)
        same(out.lines()[-1], "ok", "last word")

    @check(f"{client}-admin", needs=needs, seconds=150)
    def admin(ctx):
        out = process.run(ctx.kit.client(client, "admin", ctx.bootstrap, ctx.name), seconds=50)
        same(out.lines()[-1], "ok", "last word")


for name, (part, codecs, each) in CLIENTS.items():
    client_checks(name, part, codecs, each)


@check("one-group-of-different-clients", needs=("java", "go", "python", "node"), seconds=120)
def mixed(ctx):
    """Clients of different languages go on, one after the other, where the one before committed."""
    topic, group = ctx.topic(), ctx.name + "-group"
    wanted = with_offsets(records(COUNT))
    ctx.produce("java", topic, "gzip", records(COUNT))
    share = COUNT // len(CLIENTS)
    for i, client in enumerate(CLIENTS):
        same(plain(ctx.group(client, topic, group, share)), wanted[i * share:(i + 1) * share], client)
