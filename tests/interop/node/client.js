// Drives KafkaJS, or Confluent's JavaScript client through its KafkaJS-shaped interface.
//   node client.js kafkajs|confluent COMMAND ARGUMENTS (as in ../README.md)
'use strict';
const assert = require('node:assert');
const readline = require('node:readline');

const flavour = process.argv[2];
const confluent = flavour === 'confluent';
const library = confluent ? require('@confluentinc/kafka-javascript').KafkaJS : require('kafkajs');
const { Kafka, CompressionTypes, logLevel } = library;

// The timestamp of first records: an hour ago, so that neither retention nor the check for the future touches them.
const baseMs = Math.floor(Date.now() / 1000) * 1000 - 3600000;

function client(bootstrap) {
  const settings = { clientId: flavour, brokers: bootstrap.split(','), logLevel: logLevel.ERROR };
  // Not even a look at the metadata of a topic that is being deleted may bring it back.
  return new Kafka(confluent ? { kafkaJS: settings, 'allow.auto.create.topics': false } : settings);
}

function producerOf(kafka, codec, transactional = {}) {
  if (confluent) {
    const compression = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.SNAPPY,
      lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD }[codec];
    return kafka.producer({ kafkaJS: { acks: -1, compression, idempotent: true, ...transactional } });
  }
  return kafka.producer({ allowAutoTopicCreation: false, idempotent: true, maxInFlightRequests: 1, ...transactional });
}

function consumerOf(kafka, groupId, readUncommitted = false) {
  if (confluent) {
    return kafka.consumer({
      kafkaJS: { groupId, fromBeginning: true, autoCommit: false, sessionTimeout: 10000, heartbeatInterval: 200, readUncommitted },
    });
  }
  return kafka.consumer({
    groupId, sessionTimeout: 10000, heartbeatInterval: 200, rebalanceTimeout: 10000, maxWaitTimeInMs: 200, readUncommitted,
  });
}

function subscribe(consumer, topic) {
  return consumer.subscribe(confluent ? { topics: [topic] } : { topics: [topic], fromBeginning: true });
}

async function until(what, done, seconds = 120) {
  const deadline = Date.now() + seconds * 1000;
  while (!(await done())) {
    if (Date.now() > deadline) throw new Error(`never happened: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function wire(r) {
  const headers = {};
  for (const [k, v] of r.headers) headers[k] = k in headers ? [].concat(headers[k], v) : v;
  return { partition: r.partition, timestamp: String(r.timestamp), key: r.key, value: r.value, headers };
}

async function produce(bootstrap, topic, codec) {
  const messages = [];
  for await (const line of readline.createInterface({ input: process.stdin })) messages.push(wire(JSON.parse(line)));
  const producer = producerOf(client(bootstrap), codec);
  await producer.connect();
  const request = { topic, messages };
  if (!confluent) {
    request.acks = -1;
    request.compression = codec === 'gzip' ? CompressionTypes.GZIP : CompressionTypes.None;
  }
  // Both answer one base offset per partition, not one offset per record.
  for (const m of await producer.send(request)) {
    console.log(JSON.stringify({ partition: m.partition, offset: Number(m.baseOffset ?? m.offset) }));
  }
  await producer.disconnect();
}

function lineOf({ partition, message }) {
  const headers = [];
  const add = (k, v) => headers.push([k, v.toString()]);
  for (const [k, v] of Object.entries(message.headers ?? {})) {
    if (Array.isArray(v)) v.forEach((one) => add(k, one));
    else add(k, v);
  }
  return {
    partition, offset: Number(message.offset), timestamp: Number(message.timestamp),
    key: message.key == null ? null : message.key.toString(),
    value: message.value == null ? null : message.value.toString(),
    headers,
  };
}

function print(m) {
  console.log(JSON.stringify(lineOf(m)));
}

// KafkaJS takes the commit mode with run(), Confluent's client with the consumer.
function run(consumer, eachMessage) {
  return consumer.run(confluent ? { eachMessage } : { autoCommit: false, eachMessage });
}

// Reads exactly `count` records as a member of a group, commits them, and leaves.
async function group(bootstrap, topic, groupId, count) {
  count = Number(count);
  const consumer = consumerOf(client(bootstrap), groupId);
  await consumer.connect();
  await subscribe(consumer, topic);
  const last = new Map();
  let seen = 0;
  await run(consumer, async (m) => {
    if (seen >= count) return;
    print(m);
    seen += 1;
    last.set(m.partition, String(Number(m.message.offset) + 1));
  });
  await until(`${count} records are read`, () => seen >= count);
  await consumer.commitOffsets([...last].map(([partition, offset]) => ({ topic, partition, offset })));
  await consumer.disconnect();
}

// KafkaJS reads only as a member of a group, so plain consumption uses a group of its own.
function consume(bootstrap, topic, count) {
  return group(bootstrap, topic, `consume-${topic}-${process.pid}-${Date.now()}`, count);
}

// Neither client tells a program that it has reached the end, so this ends once nothing has come for a while.
async function visible(bootstrap, topic, isolation) {
  const consumer = consumerOf(client(bootstrap), `read-${topic}-${process.pid}-${Date.now()}`, isolation === 'read_uncommitted');
  await consumer.connect();
  await subscribe(consumer, topic);
  let seen = false;
  let quiet = 0;
  await run(consumer, async (m) => {
    print(m);
    seen = true;
    quiet = 0;
  });
  // Counted in looks of 20 ms, between which records are taken in: a process that stood still has not looked.
  await until('records and then none', () => {
    quiet += 1;
    return seen && quiet > 100;
  });
  await consumer.disconnect();
}

// Answers each step of standard input; the first answer is that of the initialisation.
async function transactions(bootstrap, transactionalId, timeoutMs, topic, groupId) {
  const kafka = client(bootstrap);
  const producer = producerOf(kafka, 'none', { transactionalId, transactionTimeout: Number(timeoutMs) });
  const consumer = groupId && consumerOf(kafka, groupId);
  const ahead = [];
  const polled = new Map();
  let transaction;
  // KafkaJS takes its transactional id over when a transaction begins, not when it connects.
  let first = null;
  const take = {
    init: async () => {
      await producer.connect();
      if (!confluent) first = await producer.transaction();
      if (!consumer) return;
      await consumer.connect();
      await subscribe(consumer, topic);
      await run(consumer, async (m) => { ahead.push(lineOf(m)); });
    },
    begin: async () => {
      transaction = first ?? await producer.transaction();
      first = null;
    },
    send: async (step) => { await transaction.send({ topic: step.topic, messages: step.records.map(wire) }); },
    poll: async ({ count, seconds }) => {
      const deadline = Date.now() + seconds * 1000;
      while (ahead.length === 0 && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 20));
      const records = ahead.splice(0, count);
      for (const r of records) polled.set(r.partition, String(r.offset + 1));
      return { records };
    },
    offsets: async () => {
      const partitions = [...polled].map(([partition, offset]) => ({ partition, offset }));
      await transaction.sendOffsets({ ...(confluent ? { consumer } : { consumerGroupId: groupId }), topics: [{ topic, partitions }] });
    },
    commit: () => transaction.commit(),
    abort: () => transaction.abort(),
  };
  const answer = async (step) => {
    let said;
    try {
      said = await take[step.do](step) ?? {};
    } catch (e) {
      said = { error: String(e), code: (e.cause ?? e).code ?? -1 };
    }
    console.log(JSON.stringify(said));
  };
  await answer({ do: 'init' });
  for await (const line of readline.createInterface({ input: process.stdin })) await answer(JSON.parse(line));
  if (consumer) await consumer.disconnect();
  await producer.disconnect();
}

async function rebalance(bootstrap, topic, groupId) {
  const kafka = client(bootstrap);
  const member = async () => {
    const consumer = consumerOf(kafka, groupId);
    const m = { consumer, held: new Set() };
    if (!confluent) {
      consumer.on(consumer.events.GROUP_JOIN, (e) => { m.held = new Set(e.payload.memberAssignment[topic] ?? []); });
      consumer.on(consumer.events.REBALANCING, () => { m.held = new Set(); });
    }
    await consumer.connect();
    await subscribe(consumer, topic);
    await run(consumer, async () => {});
    return m;
  };
  const held = (m) => (confluent ? new Set(m.consumer.assignment().map((tp) => tp.partition)) : m.held);
  const one = await member();
  await until('one member owns all four partitions', () => held(one).size === 4);
  const two = await member();
  await until('two members own two partitions each', () => held(one).size === 2 && held(two).size === 2
    && new Set([...held(one), ...held(two)]).size === 4);
  await two.consumer.disconnect();
  await until('the first member owns everything again', () => held(one).size === 4);
  await one.consumer.disconnect();
  console.log('ok');
}

async function admin(bootstrap, prefix) {
  const kafka = client(bootstrap);
  const topic = `${prefix}-t`;
  const groupId = `${prefix}-g`;
  const adm = kafka.admin();
  await adm.connect();
  assert.strictEqual(await adm.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] }), true);
  await until('the topic is listed', async () => (await adm.listTopics()).includes(topic));
  const shape = async () => {
    const answer = await adm.fetchTopicMetadata({ topics: [topic] });
    return (answer.topics ?? answer)[0].partitions.length;
  };
  assert.strictEqual(await shape(), 2);
  if (!confluent) {
    await adm.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    await until('the third partition is there', async () => (await shape()) === 3);
    const cluster = await adm.describeCluster();
    assert.strictEqual(cluster.brokers.length, 1);
    const configs = await adm.describeConfigs({ includeSynonyms: false, resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }] });
    assert.strictEqual(configs.resources[0].configEntries[0].configValue, '604800000');
    await adm.alterConfigs({ resources: [{ type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '1234567' }] }] });
    await until('retention.ms is altered', async () => (await adm.describeConfigs({
      includeSynonyms: false, resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }],
    })).resources[0].configEntries[0].configValue === '1234567');
  }
  const producer = producerOf(kafka, 'none');
  await producer.connect();
  await producer.send({ topic, messages: [...Array(10).keys()].map((i) => ({ partition: 0, value: String(i), timestamp: String(baseMs + i) })) });
  await producer.disconnect();
  const ends = await adm.fetchTopicOffsets(topic);
  const zero = ends.find((p) => p.partition === 0);
  assert.deepStrictEqual([zero.low, zero.high].map(Number), [0, 10]);
  const at = await adm.fetchTopicOffsetsByTimestamp(topic, baseMs + 4);
  assert.strictEqual(Number(at.find((p) => p.partition === 0).offset), 4);
  const consumer = consumerOf(kafka, groupId);
  await consumer.connect();
  await subscribe(consumer, topic);
  let seen = 0;
  await run(consumer, async () => { seen += 1; });
  await until('ten records are read', () => seen === 10);
  await consumer.commitOffsets([{ topic, partition: 0, offset: '6' }]);
  const live = await adm.describeGroups([groupId]);
  assert.strictEqual(live.groups[0].members.length, 1);
  await consumer.disconnect();
  assert.ok((await adm.listGroups()).groups.some((g) => g.groupId === groupId));
  const committed = await adm.fetchOffsets({ groupId, topics: [topic] });
  const offsets = committed[0].partitions.filter((p) => p.partition === 0).map((p) => Number(p.offset));
  assert.deepStrictEqual(offsets, [6]);
  await adm.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '5' }] });
  await until('the low watermark is 5', async () => Number((await adm.fetchTopicOffsets(topic)).find((p) => p.partition === 0).low) === 5);
  await adm.deleteGroups([groupId]);
  assert.ok(!(await adm.listGroups()).groups.some((g) => g.groupId === groupId));
  await adm.deleteTopics({ topics: [topic] });
  await until('the topic is gone', async () => !(await adm.listTopics()).includes(topic));
  await adm.disconnect();
  console.log('ok');
}

const command = { produce, consume, group, rebalance, admin, read: visible, transactions }[process.argv[3]];
command(...process.argv.slice(4)).then(
  () => process.exit(0),
  (e) => { console.error(e); process.exit(1); },
);
