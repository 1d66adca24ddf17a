import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;

/**
 * Offsets, positions and acknowledgements, each against known contents.
 *
 * <p>positions|idempotent|acks|longpoll BOOTSTRAP TOPIC (one partition)
 */
public final class Reading {
    public static void main(String[] args) throws Exception {
        TopicPartition tp = new TopicPartition(args[2], 0);
        switch (args[0]) {
            case "positions" -> positions(args[1], tp);
            case "idempotent" -> idempotent(args[1], tp);
            case "acks" -> acks(args[1], tp);
            case "longpoll" -> longPoll(args[1], tp);
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("ok");
    }

    private static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> c, int count) {
        List<ConsumerRecord<String, String>> out = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 45_000;
        while (out.size() < count && System.currentTimeMillis() < deadline) {
            c.poll(Duration.ofMillis(200)).forEach(out::add);
        }
        Settings.check(out.size() >= count, "wanted " + count + ", got " + out.size());
        return out;
    }

    private static void positions(String bootstrap, TopicPartition tp) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Settings.producer(bootstrap))) {
            for (int i = 0; i < 100; i++) {
                producer.send(new ProducerRecord<>(tp.topic(), 0, Settings.BASE_MS + i * 1000L, "k" + i, "v" + i)).get();
            }
        }
        Properties p = Settings.group(bootstrap, tp.topic() + "-group");
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(p)) {
            c.assign(List.of(tp));
            Settings.check(c.beginningOffsets(List.of(tp)).get(tp) == 0L, "beginning");
            Settings.check(c.endOffsets(List.of(tp)).get(tp) == 100L, "end");
            Map<TopicPartition, Long> times = new HashMap<>();
            times.put(tp, Settings.BASE_MS + 42_500L);
            OffsetAndTimestamp found = c.offsetsForTimes(times).get(tp);
            Settings.check(found.offset() == 43 && found.timestamp() == Settings.BASE_MS + 43_000, "offsetsForTimes " + found);
            times.put(tp, Settings.BASE_MS + 42_000L);
            Settings.check(c.offsetsForTimes(times).get(tp).offset() == 42, "exact timestamp");
            times.put(tp, Settings.BASE_MS + 10_000_000);
            Settings.check(c.offsetsForTimes(times).get(tp) == null, "a time after the last record has no offset");
            for (long at : new long[] {0, 17, 99, 50}) {
                c.seek(tp, at);
                ConsumerRecord<String, String> r = read(c, 1).get(0);
                Settings.check(r.offset() == at && r.value().equals("v" + at) && r.key().equals("k" + at), "seek " + at + " gave " + r);
                Settings.check(r.timestamp() == Settings.BASE_MS + at * 1000L, "timestamp at " + at);
            }
            c.seek(tp, 90);
            List<ConsumerRecord<String, String>> rest = read(c, 10);
            Settings.check(rest.size() == 10 && c.position(tp) == 100, "position after the end is " + c.position(tp));
            Settings.check(c.currentLag(tp).isPresent() && c.currentLag(tp).getAsLong() == 0, "lag");
            c.seek(tp, 1_000_000);
            Settings.check(read(c, 1).get(0).offset() == 0, "out of range resets to the earliest");
            Settings.check(c.committed(java.util.Set.of(tp)).get(tp) == null, "nothing is committed yet");
            c.commitSync(Map.of(tp, new OffsetAndMetadata(33, java.util.Optional.of(0), "a note")));
            OffsetAndMetadata m = c.committed(java.util.Set.of(tp)).get(tp);
            Settings.check(m.offset() == 33 && m.metadata().equals("a note"), "committed " + m);
        }
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(p)) {
            c.assign(List.of(tp));
            Settings.check(read(c, 1).get(0).offset() == 33, "resumes at the committed offset");
        }
    }

    private static void idempotent(String bootstrap, TopicPartition tp) throws Exception {
        Properties p = Settings.producer(bootstrap);
        p.put("enable.idempotence", "true");
        p.put("acks", "all");
        p.put("max.in.flight.requests.per.connection", "5");
        p.put("linger.ms", "0");
        p.put("batch.size", "200");
        int count = 2000;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            List<java.util.concurrent.Future<RecordMetadata>> pending = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                pending.add(producer.send(new ProducerRecord<>(tp.topic(), 0, null, "v" + i)));
            }
            for (int i = 0; i < count; i++) {
                Settings.check(pending.get(i).get().offset() == i, "record " + i + " got offset " + pending.get(i).get().offset());
            }
        }
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(Settings.consumer(bootstrap))) {
            c.assign(List.of(tp));
            c.seekToBeginning(List.of(tp));
            List<ConsumerRecord<String, String>> all = read(c, count);
            for (int i = 0; i < count; i++) {
                Settings.check(all.get(i).value().equals("v" + i) && all.get(i).offset() == i, "order at " + i);
            }
        }
    }

    private static void acks(String bootstrap, TopicPartition tp) throws Exception {
        int offset = 0;
        for (String acks : new String[] {"0", "1", "all"}) {
            Properties p = Settings.producer(bootstrap);
            p.put("enable.idempotence", "false");
            p.put("acks", acks);
            p.put("max.request.size", "8000000");
            p.put("buffer.memory", "16000000");
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
                for (int i = 0; i < 10; i++, offset++) {
                    RecordMetadata m = producer.send(new ProducerRecord<>(tp.topic(), 0, null, acks + "-" + i)).get();
                    if (!acks.equals("0")) {
                        Settings.check(m.offset() == offset, "acks=" + acks + " offset " + m.offset() + ", wanted " + offset);
                    } else {
                        Settings.check(!m.hasOffset(), "acks=0 knows no offset");
                    }
                }
                if (!acks.equals("0")) {
                    try {
                        producer.send(new ProducerRecord<>(tp.topic(), 0, null, "x".repeat(2_000_000))).get();
                        throw new AssertionError("a record over message.max.bytes was taken");
                    } catch (java.util.concurrent.ExecutionException e) {
                        Settings.check(e.getCause() instanceof RecordTooLargeException, "wrong error " + e.getCause());
                    }
                }
            }
        }
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(Settings.consumer(bootstrap))) {
            c.assign(List.of(tp));
            c.seekToBeginning(List.of(tp));
            List<ConsumerRecord<String, String>> all = read(c, 30);
            Settings.check(all.size() == 30, "30 records, got " + all.size());
            for (int i = 0; i < 30; i++) {
                String want = new String[] {"0", "1", "all"}[i / 10] + "-" + i % 10;
                Settings.check(all.get(i).value().equals(want), "at " + i + ": " + all.get(i).value());
            }
        }
    }

    /** fetch.max.wait.ms is spent in the broker, and ends early when bytes arrive. */
    private static void longPoll(String bootstrap, TopicPartition tp) throws Exception {
        Properties p = Settings.consumer(bootstrap);
        p.put("fetch.max.wait.ms", "10000");
        p.put("fetch.min.bytes", "1");
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(p);
                KafkaProducer<String, String> producer = new KafkaProducer<>(Settings.producer(bootstrap))) {
            // Whatever comes with a first record is over before time is taken.
            producer.send(new ProducerRecord<>(tp.topic(), 0, "", "first")).get();
            c.assign(List.of(tp));
            c.seekToBeginning(List.of(tp));
            Settings.check(read(c, 1).get(0).value().equals("first"), "the first record");
            Settings.check(c.poll(Duration.ofMillis(1000)).isEmpty(), "there is one record");
            Thread sender = new Thread(() -> {
                try {
                    Thread.sleep(500);
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
                producer.send(new ProducerRecord<>(tp.topic(), 0, "" + System.nanoTime(), "bell"));
                producer.flush();
            });
            sender.start();
            ConsumerRecord<String, String> r = read(c, 1).get(0);
            long lateMs = (System.nanoTime() - Long.parseLong(r.key())) / 1_000_000;
            Settings.check(lateMs < 5000, "a waiting fetch was answered " + lateMs + " ms after the record");
            sender.join();
            double requests = metric(c, "fetch-total");
            long begun = System.currentTimeMillis();
            double idle = 0;
            // The wait under way ends within 10 s, or some time later on a slow machine.
            while (idle < 1 && System.currentTimeMillis() - begun < 60_000) {
                Settings.check(c.poll(Duration.ofMillis(100)).isEmpty(), "no more records");
                idle = metric(c, "fetch-total") - requests;
            }
            long end = System.currentTimeMillis() + 2000;
            while (System.currentTimeMillis() < end) {
                Settings.check(c.poll(Duration.ofMillis(100)).isEmpty(), "no more records");
            }
            idle = metric(c, "fetch-total") - requests;
            double idleMs = System.currentTimeMillis() - begun;
            Settings.check(idle >= 1 && idle <= idleMs / 10_000 + 2, idleMs + " ms idle took " + idle + " fetches of 10 s");
        }
    }

    private static double metric(KafkaConsumer<String, String> c, String name) {
        return c.metrics().entrySet().stream()
                .filter(e -> e.getKey().name().equals(name) && e.getKey().group().equals("consumer-fetch-manager-metrics"))
                .mapToDouble(e -> ((Number) e.getValue().metricValue()).doubleValue()).sum();
    }
}
