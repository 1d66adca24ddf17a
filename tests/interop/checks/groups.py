"""kafka-consumer-groups and kafka-groups over the life of a group."""
import datetime

from harness.check import check, same
from harness.process import until
from harness.records import BASE_MS


def at(seconds):
    """The moment of a record, as kafka-consumer-groups wants it."""
    moment = datetime.datetime.fromtimestamp(BASE_MS / 1000 + seconds, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def table(lines):
    """Rows of a table with a header line, as dictionaries."""
    lines = [line.split() for line in lines if line.strip()]
    head = next(i for i, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], row)) for row in lines[head + 1:] if row[0] != "GROUP"]


def rows(ctx, group, *extra):
    out = ctx.tool("consumer-groups", "--describe", "--group", group, *extra, code=None)
    return table(out.lines()) if out.code == 0 and "GROUP" in out.out else []


def fill(ctx, count=10, partitions=2):
    topic = ctx.topic(partitions=partitions)
    for p in range(partitions):
        sent = [{"partition": p, "timestamp": BASE_MS + i * 1000, "key": None, "value": f"p{p}-{i}", "headers": []} for i in range(count)]
        ctx.produce("java", topic, "none", sent)
    return topic


@check("groups-describe", seconds=150)
def describe(ctx):
    topic, group = fill(ctx), ctx.name + "-group"
    member = ctx.background(ctx.command(
        "console-consumer", "--bootstrap-server", ctx.bootstrap, "--topic", topic, "--from-beginning", "--group", group,
        "--command-property", "auto.commit.interval.ms=100", "--command-property", "client.id=describer"), "member.log")
    live = until("the member has committed everything", lambda: [
        r for r in rows(ctx, group) if r["CURRENT-OFFSET"] == "10" and r["LAG"] == "0" and r["CLIENT-ID"] == "describer"][1:])
    assert live[0]["CONSUMER-ID"].startswith("describer-") and live[0]["HOST"] == "/127.0.0.1", live
    states = rows(ctx, group, "--state")
    same([(r["STATE"], r["#MEMBERS"]) for r in states], [("Stable", "1")], "state")
    members = rows(ctx, group, "--members")
    same([r["#PARTITIONS"] for r in members], ["2"], "members")
    assert group in ctx.tool("consumer-groups", "--list").lines()
    listed = [line.split() for line in ctx.tool("groups", "--list").lines()]
    assert [group, "Classic", "consumer"] in listed, listed
    out = ctx.tool("consumer-groups", "--delete", "--group", group, code=None)
    assert "not empty" in (out.out + out.err).lower() or "GroupNotEmpty" in out.out + out.err, out.out + out.err
    member.terminate()
    until("the group is empty", lambda: ["Empty"] == [r["STATE"] for r in rows(ctx, group, "--state")])
    same(sorted((r["PARTITION"], r["CURRENT-OFFSET"], r["LOG-END-OFFSET"], r["LAG"]) for r in rows(ctx, group)),
         [("0", "10", "10", "0"), ("1", "10", "10", "0")], "offsets stay")


@check("groups-reset-offsets", seconds=120)
def reset(ctx):
    topic, group = fill(ctx, partitions=1), ctx.name + "-group"
    ctx.group("java", topic, group, 10)

    def to(*how, execute=True):
        out = ctx.tool("consumer-groups", "--group", group, "--topic", topic, "--reset-offsets", *how, "--execute" if execute else "--dry-run")
        return [r["NEW-OFFSET"] for r in table(out.lines())]

    current = lambda: [r["CURRENT-OFFSET"] for r in rows(ctx, group)]
    same(to("--to-earliest", execute=False), ["0"], "dry run says")
    same(current(), ["10"], "a dry run changes nothing")
    for how, offset in (
        (["--to-earliest"], "0"), (["--to-offset", "4"], "4"), (["--shift-by", "3"], "7"), (["--to-latest"], "10"),
        (["--to-datetime", at(5.5)], "6"), (["--shift-by", "-100"], "0"), (["--to-offset", "3"], "3"),
    ):
        same(to(*how), [offset], " ".join(how))
        same(current(), [offset], "committed after " + " ".join(how))
    same([r["value"] for r in ctx.group("java", topic, group, 2)], ["p0-3", "p0-4"], "consumption goes on there")


@check("groups-delete")
def delete(ctx):
    topic, group = fill(ctx), ctx.name + "-group"
    ctx.group("java", topic, group, 20)
    ctx.tool("consumer-groups", "--group", group, "--delete-offsets", "--topic", topic + ":1")
    same([r["PARTITION"] for r in rows(ctx, group) if r["CURRENT-OFFSET"] != "-"], ["0"], "one offset is left")
    out = ctx.tool("consumer-groups", "--delete", "--group", group)
    assert "successful" in out.out, out.out
    assert group not in ctx.tool("consumer-groups", "--list").lines()
    out = ctx.tool("consumer-groups", "--delete", "--group", group, code=None)
    assert "GroupIdNotFound" in out.out + out.err, out.out + out.err
    same([r["value"] for r in ctx.group("java", topic, group, 20)].count("p0-0"), 1, "a deleted group starts over")
