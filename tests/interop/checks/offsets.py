"""kafka-get-offsets and kafka-delete-records."""
import json

from harness.check import check, same
from harness.records import BASE_MS, records


@check("offsets-of-every-kind")
def every_kind(ctx):
    topic = ctx.topic(partitions=2)
    ctx.produce("java", topic, "none", records(10) + records(5, first=10))
    late = dict(records(1)[0], timestamp=BASE_MS + 1_000_000)
    ctx.produce("java", topic, "gzip", [late])
    ctx.produce("java", topic, "none", records(4, first=20))
    same(ctx.offsets(topic, -1), {0: 20, 1: 0}, "latest")
    same(ctx.offsets(topic, "latest"), {0: 20, 1: 0}, "latest by name")
    same(ctx.offsets(topic, -2), {0: 0, 1: 0}, "earliest")
    same(ctx.offsets(topic, -3), {0: 15}, "offset of the largest timestamp")
    same(ctx.offsets(topic, -4), {0: 0, 1: 0}, "earliest local")
    same(ctx.offsets(topic, BASE_MS), {0: 0}, "at the first timestamp")
    same(ctx.offsets(topic, BASE_MS + 31), {0: 4}, "between two timestamps")
    same(ctx.offsets(topic, BASE_MS + 145), {0: 15}, "first at or after, not nearest")
    same(ctx.offsets(topic, BASE_MS + 2_000_000), {}, "after the last")
    same({k: v for k, v in ctx.offsets(topic, -1).items() if k == 1}, {1: 0}, "an empty partition")


@check("delete-records")
def delete_records(ctx):
    topic = ctx.topic(partitions=2)
    ctx.produce("java", topic, "none", records(20) + records(6, partition=1))
    plan = ctx.directory / "plan.json"

    def delete(*offsets, code=0):
        plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": p, "offset": o} for p, o in offsets]}))
        out = ctx.tool("delete-records", "--offset-json-file", plan, code=code)
        return out.out + out.err

    out = delete((0, 7), (1, -1))
    assert f"partition: {topic}-0\tlow_watermark: 7" in out and f"partition: {topic}-1\tlow_watermark: 6" in out, out
    same(ctx.offsets(topic, -2), {0: 7, 1: 6}, "earliest")
    same(ctx.offsets(topic, -1), {0: 20, 1: 6}, "latest stays")
    got = ctx.tool("console-consumer", "--topic", topic, "--partition", 0, "--offset", "earliest", "--max-messages", 13, "--timeout-ms", 15000,
                   "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false")
    same(got.lines(), [f"Offset:{o}" for o in range(7, 20)], "offsets that are left")
    out = delete((0, 3))
    assert "low_watermark: 7" in out, "the low watermark never moves back: " + out
    out = delete((0, 21), code=None)
    assert "OffsetOutOfRange" in out or "out of range" in out.lower(), out
    same(ctx.offsets(topic, -2), {0: 7, 1: 6}, "a refused deletion changes nothing")
