import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * Records in and out as JSON lines.
 *
 * <p>produce BOOTSTRAP TOPIC CODEC (records on standard input, one acknowledgement line each) ·
 * consume BOOTSTRAP TOPIC COUNT · group BOOTSTRAP TOPIC GROUP COUNT · read and transactions as in ../README.md
 */
public final class Records {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "produce" -> produce(args[1], args[2], args[3]);
            case "consume" -> consume(args[1], args[2], Integer.parseInt(args[3]));
            case "group" -> group(args[1], args[2], args[3], Integer.parseInt(args[4]));
            case "read" -> {
                Transactions.read(args[1], args[2], args[3]);
                System.out.flush();
            }
            case "transactions" -> Transactions.steps(args);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties p = Settings.producer(bootstrap);
        p.put("compression.type", codec);
        p.put("linger.ms", "20");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            List<Future<RecordMetadata>> pending = new ArrayList<>();
            for (String line; (line = in.readLine()) != null; ) {
                JsonNode r = JSON.readTree(line);
                pending.add(producer.send(record(topic, r)));
            }
            for (Future<RecordMetadata> f : pending) {
                RecordMetadata m = f.get();
                System.out.println("{\"partition\":" + m.partition() + ",\"offset\":" + m.offset() + "}");
            }
        }
    }

    static ProducerRecord<String, String> record(String topic, JsonNode r) {
        ProducerRecord<String, String> record = new ProducerRecord<>(
                topic, r.get("partition").asInt(), r.get("timestamp").asLong(),
                r.get("key").isNull() ? null : r.get("key").asText(),
                r.get("value").isNull() ? null : r.get("value").asText());
        for (JsonNode h : r.get("headers")) {
            record.headers().add(h.get(0).asText(), h.get(1).asText().getBytes(StandardCharsets.UTF_8));
        }
        return record;
    }

    static ObjectNode line(ConsumerRecord<String, String> r) {
        ObjectNode o = JSON.createObjectNode();
        o.put("partition", r.partition());
        o.put("offset", r.offset());
        o.put("timestamp", r.timestamp());
        o.put("key", r.key());
        o.put("value", r.value());
        ArrayNode headers = o.putArray("headers");
        for (Header h : r.headers()) {
            headers.addArray().add(h.key()).add(new String(h.value(), StandardCharsets.UTF_8));
        }
        return o;
    }

    static void print(ConsumerRecord<String, String> r) throws Exception {
        System.out.write((JSON.writeValueAsString(line(r)) + "\n").getBytes(StandardCharsets.UTF_8));
    }

    private static int read(KafkaConsumer<String, String> consumer, int count) throws Exception {
        int seen = 0;
        long deadline = System.currentTimeMillis() + 40_000;
        while (seen < count && System.currentTimeMillis() < deadline) {
            ConsumerRecords<String, String> batch = consumer.poll(Duration.ofMillis(200));
            for (ConsumerRecord<String, String> r : batch) {
                if (seen < count) {
                    print(r);
                    seen++;
                }
            }
        }
        System.out.flush();
        Settings.check(seen == count, "wanted " + count + " records, got " + seen);
        return seen;
    }

    private static void consume(String bootstrap, String topic, int count) throws Exception {
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(Settings.consumer(bootstrap))) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(i -> partitions.add(new TopicPartition(topic, i.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            read(consumer, count);
        }
    }

    private static void group(String bootstrap, String topic, String group, int count) throws Exception {
        Properties p = Settings.group(bootstrap, group);
        p.put("max.poll.records", "1");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p)) {
            consumer.subscribe(Arrays.asList(topic));
            read(consumer, count);
            consumer.commitSync();
        }
    }
}
