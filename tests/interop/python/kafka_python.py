"""Drives kafka-python: the commands of ../README.md.

A poll() of a group's member must not end while the member joins. This client (3.0.12) loses a join that outlasts the
poll it began in: need_rejoin() in kafka/coordinator/consumer.py does not count the join that is under way, and the leader
makes `_assignment_snapshot` equal to `_metadata_snapshot` as soon as JoinGroup is answered. Once it has, the next poll()
finds nothing to do, and never takes the answer to SyncGroup out of `_join_task`: the member holds its partitions for the
broker, and none for its program; it sends no heartbeat, and never joins again. Where need_rejoin() is still true and
`_join_task` is done, the next poll() throws that answer away and joins anew, so two members polled in turn may rebalance
for ever. Both happen with Apache Kafka as well, the more often the shorter the polls are; with `_join_task is not None`
added to need_rejoin() neither does. So members are polled here for longer than any join takes; records end a poll at
once, and the members of one group are polled in threads of their own.
"""
import re
import sys
import threading
import time

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from lines import print_ack, print_record, record_line, records_in, steps, until, wire

# Two of these make one wait of `until`.
OUTLASTS_A_JOIN_MS = 20_000


def produce(bootstrap, topic, codec):
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=20,
        compression_type=None if codec == "none" else codec,
    )
    sent = [
        producer.send(topic, partition=p, timestamp_ms=t, key=k, value=v, headers=h)
        for p, t, k, v, h in records_in()
    ]
    producer.flush(timeout=20)
    for future in sent:
        done = future.get(timeout=20)
        print_ack(done.partition, done.offset)
    producer.close(timeout=10)


def read(consumer, count):
    seen = 0

    def more():
        nonlocal seen
        for batch in consumer.poll(timeout_ms=OUTLASTS_A_JOIN_MS, max_records=count - seen).values():
            for r in batch:
                print_record(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
                seen += 1
        return seen >= count

    until(f"{count} records are read", more)


def consume(bootstrap, topic, count):
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    read(consumer, int(count))
    consumer.close()


def member(bootstrap, topic, group, **more):
    return KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=10000, heartbeat_interval_ms=200, **more,
    )


def group(bootstrap, topic, name, count):
    consumer = member(bootstrap, topic, name)
    read(consumer, int(count))
    consumer.commit()
    consumer.close()


def visible(bootstrap, topic, isolation):
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, isolation_level=isolation)
    partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    # For read_committed the end is the last stable offset.
    ends = consumer.end_offsets(partitions)

    def at_the_end():
        for batch in consumer.poll(timeout_ms=200).values():
            for r in batch:
                print_record(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
        return all(consumer.position(tp) >= ends[tp] for tp in partitions)

    until("every partition is read to its end", at_the_end)
    consumer.close()


class Transactional:
    def __init__(self, bootstrap, identity, timeout_ms, topic=None, group=None):
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=identity, transaction_timeout_ms=int(timeout_ms), linger_ms=20,
            max_block_ms=60000)
        # Whoever comes back under this name takes the place of a killed process at once.
        self.consumer = group and member(bootstrap, topic, group, group_instance_id=identity, isolation_level="read_committed")
        self.polled = {}

    def init(self):
        self.producer.init_transactions()

    def begin(self):
        self.producer.begin_transaction()

    def send(self, topic, records):
        sent = [
            self.producer.send(topic, partition=p, timestamp_ms=t, key=k, value=v, headers=h)
            for p, t, k, v, h in map(wire, records)
        ]
        for future in sent:
            future.get(timeout=60)

    def poll(self, count, seconds):
        got = self.consumer.poll(timeout_ms=seconds * 1000, max_records=count)
        records = [r for batch in got.values() for r in batch]
        for r in records:
            self.polled[TopicPartition(r.topic, r.partition)] = OffsetAndMetadata(r.offset + 1, "", -1)
        return {"records": [record_line(r.partition, r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]}

    def offsets(self):
        self.producer.send_offsets_to_transaction(self.polled, self.consumer.group_metadata())

    def commit(self):
        self.producer.commit_transaction()

    def abort(self):
        self.producer.abort_transaction()

    def close(self):
        if self.consumer is not None:
            self.consumer.close()
        self.producer.close(timeout=10)

    @staticmethod
    def code(error):
        # The client wraps what the broker said in what it means for the program, or passes it on as text only.
        said = re.search(r"\[Error (\d+)\]", repr(error))
        return int(said.group(1)) if said else getattr(error, "errno", -1)


class Polled(threading.Thread):
    """A member of a group, polled in a thread of its own until it leaves."""

    def __init__(self, bootstrap, topic, group):
        super().__init__(daemon=True)
        self.topic = topic
        self.consumer = member(bootstrap, topic, group)
        self.leaving = False
        self.start()

    def run(self):
        while not self.leaving:
            self.consumer.poll(timeout_ms=OUTLASTS_A_JOIN_MS)
        self.consumer.close()

    def holds(self):
        assert self.is_alive(), "the member's thread has ended"
        return {tp.partition for tp in self.consumer.assignment()}

    def leave(self, producer):
        """A record ends the poll; its thread then leaves the group."""
        partition = min(self.holds())
        self.leaving = True
        producer.send(self.topic, partition=partition, value=b"end of a poll").get(timeout=20)
        self.join(timeout=20)
        assert not self.is_alive(), "the member did not read the record"


def rebalance(bootstrap, topic, name):
    def soon(what, done):
        until(what, lambda: done() or time.sleep(0.02))

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    one = Polled(bootstrap, topic, name)
    soon("one member owns all four partitions", lambda: len(one.holds()) == 4)
    two = Polled(bootstrap, topic, name)
    soon("two members own two partitions each", lambda: len(one.holds()) == 2 and len(two.holds()) == 2)
    assert one.holds() | two.holds() == {0, 1, 2, 3}, (one.holds(), two.holds())
    two.leave(producer)
    soon("the first member owns everything again", lambda: len(one.holds()) == 4)
    one.leave(producer)
    producer.close(timeout=10)
    print("ok")


def admin(bootstrap, prefix):
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    topic = prefix + "-t"
    client.create_topics([NewTopic(topic, 2, 1)], wait_for_metadata=True)
    assert topic in client.list_topics(), client.list_topics()
    described = client.describe_topics([topic])[0]
    assert len(described["partitions"]) == 2, described
    cluster = client.describe_cluster()
    assert len(cluster["brokers"]) == 1 and cluster["cluster_id"], cluster
    client.create_partitions({topic: 3})
    until("the third partition is there", lambda: len(client.describe_topics([topic])[0]["partitions"]) == 3)
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for i in range(10):
        producer.send(topic, partition=0, value=b"%d" % i).get(timeout=20)
    producer.close()
    consumer = member(bootstrap, topic, prefix + "-g")
    tp = TopicPartition(topic, 0)

    def all_read():
        consumer.poll(timeout_ms=OUTLASTS_A_JOIN_MS)
        return tp in consumer.assignment() and consumer.position(tp) == 10

    until("ten records are read", all_read)
    consumer.commit()
    consumer.close()
    assert any(g["group_id"] == prefix + "-g" for g in client.list_groups()), client.list_groups()
    state = client.describe_groups([prefix + "-g"])[prefix + "-g"]
    assert state["group_state"] == "Empty", state
    offsets = client.list_group_offsets({prefix + "-g": None})[prefix + "-g"]
    assert offsets[tp].offset == 10, offsets
    client.delete_groups([prefix + "-g"])
    assert all(g["group_id"] != prefix + "-g" for g in client.list_groups()), client.list_groups()
    client.delete_topics([topic])
    until("the topic is gone", lambda: topic not in client.list_topics())
    client.close()
    print("ok")


if __name__ == "__main__":
    {
        "produce": produce, "consume": consume, "group": group, "rebalance": rebalance, "admin": admin, "read": visible,
        "transactions": lambda *args: steps(Transactional(*args)),
    }[sys.argv[1]](*sys.argv[2:])
