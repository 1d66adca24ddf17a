"""Drives confluent-kafka (librdkafka): the commands of ../README.md."""
import sys
import time

from confluent_kafka import (
    OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType,
)

from lines import BASE_MS, print_ack, print_record, record_line, records_in, steps, until, wire


def produce(bootstrap, topic, codec):
    producer = Producer({
        "bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20,
        "enable.idempotence": True, "message.timeout.ms": 20000,
    })
    acks = {}

    def delivered(i):
        def report(err, msg):
            if err is not None:
                raise KafkaException(err)
            acks[i] = (msg.partition(), msg.offset())
        return report

    count = 0
    for p, t, k, v, h in records_in():
        producer.produce(topic, partition=p, timestamp=t, key=k, value=v, headers=h, on_delivery=delivered(count))
        count += 1
    left = producer.flush(20)
    assert left == 0 and len(acks) == count, f"{left} records were never acknowledged"
    for i in range(count):
        print_ack(*acks[i])


def settings(bootstrap, group):
    return {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "enable.auto.offset.store": False,
        "session.timeout.ms": 10000, "heartbeat.interval.ms": 200, "check.crcs": True,
    }


def read(consumer, count):
    seen = 0
    last = {}

    def more():
        nonlocal seen
        msg = consumer.poll(0.2)
        if msg is not None:
            if msg.error():
                raise KafkaException(msg.error())
            print_record(msg.partition(), msg.offset(), msg.timestamp()[1], msg.key(), msg.value(), msg.headers())
            last[msg.partition()] = msg.offset() + 1
            seen += 1
        return seen >= count

    until(f"{count} records are read", more)
    return last


def consume(bootstrap, topic, count):
    consumer = Consumer(settings(bootstrap, "unused"))
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    read(consumer, int(count))
    consumer.close()


def visible(bootstrap, topic, isolation):
    consumer = Consumer({**settings(bootstrap, "unused"), "isolation.level": isolation, "enable.partition.eof": True})
    partitions = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])

    def at_the_end():
        msg = consumer.poll(0.2)
        if msg is None:
            return False
        if not msg.error():
            print_record(msg.partition(), msg.offset(), msg.timestamp()[1], msg.key(), msg.value(), msg.headers())
        elif msg.error().code() == KafkaError._PARTITION_EOF:
            partitions.discard(msg.partition())
        else:
            raise KafkaException(msg.error())
        return not partitions

    until("every partition is read to its end", at_the_end)
    consumer.close()


class Transactional:
    def __init__(self, bootstrap, identity, timeout_ms, topic=None, group=None):
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": identity, "transaction.timeout.ms": int(timeout_ms), "linger.ms": 20,
            # With its only broker gone librdkafka 2.16 starts over from the bootstrap servers, and the group's coordinator that it
            # remembers is then one that it never connects to again.
            "metadata.recovery.strategy": "none",
            # A record may not live longer than the transaction that it is in.
            "message.timeout.ms": min(int(timeout_ms), 60000),
        })
        self.topic = topic
        self.polled = {}
        self.consumer = None
        if group is not None:
            self.consumer = Consumer({
                # Whoever comes back under this name takes the place of a killed process at once.
                **settings(bootstrap, group), "group.instance.id": identity, "isolation.level": "read_committed",
            })
            self.consumer.subscribe([topic])

    def init(self):
        self.producer.init_transactions(60)

    def begin(self):
        self.producer.begin_transaction()

    def send(self, topic, records):
        failed = []
        for p, t, k, v, h in map(wire, records):
            self.producer.produce(topic, partition=p, timestamp=t, key=k, value=v, headers=h,
                                  on_delivery=lambda err, _: err and failed.append(err))
        left = self.producer.flush(60)
        assert left == 0, f"{left} records were never acknowledged"
        if failed:
            raise KafkaException(failed[0])

    def poll(self, count, seconds):
        records = []
        deadline = time.monotonic() + seconds
        while len(records) < count and time.monotonic() < deadline:
            msg = self.consumer.poll(0.1)
            if msg is None:
                if records:
                    break
                continue
            if msg.error():
                raise KafkaException(msg.error())
            records.append(record_line(msg.partition(), msg.offset(), msg.timestamp()[1], msg.key(), msg.value(), msg.headers()))
            self.polled[msg.partition()] = msg.offset() + 1
        return {"records": records}

    def offsets(self):
        moved = [TopicPartition(self.topic, p, o) for p, o in self.polled.items()]
        self.producer.send_offsets_to_transaction(moved, self.consumer.consumer_group_metadata(), 30)

    def commit(self):
        self.producer.commit_transaction(60)

    def abort(self):
        self.producer.abort_transaction(60)

    def close(self):
        if self.consumer is not None:
            self.consumer.close()

    @staticmethod
    def code(error):
        return error.args[0].code() if isinstance(error, KafkaException) else -1


def group(bootstrap, topic, name, count):
    consumer = Consumer(settings(bootstrap, name))
    consumer.subscribe([topic])
    last = read(consumer, int(count))
    done = consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in last.items()], asynchronous=False)
    assert all(tp.error is None for tp in done), done
    consumer.close()


def rebalance(bootstrap, topic, name):
    def held(consumer):
        return {tp.partition for tp in consumer.assignment()}

    for strategy in ("range", "cooperative-sticky"):
        conf = {**settings(bootstrap, f"{name}-{strategy}"), "partition.assignment.strategy": strategy}
        one, two = Consumer(conf), Consumer(conf)
        one.subscribe([topic])

        def whole():
            one.poll(0.05)
            return len(held(one)) == 4

        until(f"{strategy}: one member owns all four partitions", whole)
        two.subscribe([topic])

        def split():
            one.poll(0.05)
            two.poll(0.05)
            return len(held(one)) == 2 and len(held(two)) == 2

        until(f"{strategy}: two members own two partitions each", split)
        assert held(one) | held(two) == {0, 1, 2, 3}, (held(one), held(two))
        two.close()
        until(f"{strategy}: the first member owns everything again", whole)
        one.close()
    print("ok")


def only(futures):
    return [f.result(timeout=20) for f in futures.values()][0]


def admin(bootstrap, prefix):
    client = AdminClient({"bootstrap.servers": bootstrap})
    topic, name = prefix + "-t", prefix + "-g"
    only(client.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "7654321"})]))

    def partitions():
        found = client.list_topics(timeout=10).topics.get(topic)
        return 0 if found is None else len(found.partitions)

    until("the topic has two partitions", lambda: partitions() == 2)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert only(client.describe_configs([resource]))["retention.ms"].value == "7654321"
    only(client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[
        ConfigEntry("retention.ms", "1234567", incremental_operation=AlterConfigOpType.SET)])]))
    until("retention.ms is altered", lambda: only(client.describe_configs([resource]))["retention.ms"].value == "1234567")
    only(client.create_partitions([NewPartitions(topic, 3)]))
    until("the third partition is there", lambda: partitions() == 3)
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(10):
        producer.produce(topic, partition=0, value=b"%d" % i, timestamp=BASE_MS + i)
    assert producer.flush(20) == 0
    tp = TopicPartition(topic, 0)
    for spec, want in ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 10), (OffsetSpec.max_timestamp(), 9),
                       (OffsetSpec.for_timestamp(BASE_MS + 4), 4)):
        got = only(client.list_offsets({tp: spec})).offset
        assert got == want, (spec, got, want)
    consumer = Consumer(settings(bootstrap, name))
    assert consumer.get_watermark_offsets(tp, timeout=10) == (0, 10)
    consumer.commit(offsets=[TopicPartition(topic, 0, 6)], asynchronous=False)
    consumer.close()
    described = only(client.describe_consumer_groups([name]))
    assert described.group_id == name and not described.members, described
    listed = only(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])).topic_partitions
    assert [(t.partition, t.offset) for t in listed] == [(0, 6)], listed
    only(client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, 8)])]))
    listed = only(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])).topic_partitions
    assert [(t.partition, t.offset) for t in listed] == [(0, 8)], listed
    groups = client.list_consumer_groups().result(timeout=20)
    assert name in [g.group_id for g in groups.valid] and not groups.errors, groups
    low = only(client.delete_records([TopicPartition(topic, 0, 5)])).low_watermark
    assert low == 5, low
    cluster = client.describe_cluster().result(timeout=20)
    assert len(cluster.nodes) == 1 and cluster.cluster_id, cluster
    only(client.delete_consumer_groups([name]))
    only(client.delete_topics([topic]))
    until("the topic is gone", lambda: partitions() == 0)
    print("ok")


if __name__ == "__main__":
    {
        "produce": produce, "consume": consume, "group": group, "rebalance": rebalance, "admin": admin, "read": visible,
        "transactions": lambda *args: steps(Transactional(*args)),
    }[sys.argv[1]](*sys.argv[2:])
