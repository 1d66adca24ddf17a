import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;

/**
 * Records in transactions, and what each isolation level sees of them.
 *
 * <p>transactions and read as in ../README.md, by way of Records · read-both BOOTSTRAP TOPIC... (all of each topic as
 * read_uncommitted sees it, an empty line, all of it as read_committed sees it, an empty line)
 */
public final class Transactions {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    /** What the consumer handed out and no step has asked for yet. */
    private final ArrayDeque<ConsumerRecord<String, String>> ahead = new ArrayDeque<>();
    /** Where the group goes on after what steps have polled. */
    private final Map<TopicPartition, OffsetAndMetadata> polled = new HashMap<>();

    public static void main(String[] args) throws Exception {
        for (String topic : Arrays.asList(args).subList(2, args.length)) {
            for (String isolation : List.of("read_uncommitted", "read_committed")) {
                read(args[1], topic, isolation);
                System.out.println();
            }
        }
    }

    private Transactions(String bootstrap, String id, String timeoutMs, String topic, String group) {
        Properties p = Settings.producer(bootstrap);
        p.put("transactional.id", id);
        p.put("transaction.timeout.ms", timeoutMs);
        // The first transaction waits until the broker has made its transaction log.
        p.put("max.block.ms", "60000");
        p.put("delivery.timeout.ms", "60000");
        p.put("linger.ms", "20");
        producer = new KafkaProducer<>(p);
        if (group == null) {
            consumer = null;
            return;
        }
        Properties c = Settings.group(bootstrap, group);
        c.put("isolation.level", "read_committed");
        // Whoever comes back under this name takes the place of a killed process at once.
        c.put("group.instance.id", id);
        consumer = new KafkaConsumer<>(c);
        consumer.subscribe(List.of(topic));
    }

    static void steps(String[] args) throws Exception {
        boolean member = args.length > 4;
        var t = new Transactions(args[1], args[2], args[3], member ? args[4] : null, member ? args[5] : null);
        answer(() -> {
            t.producer.initTransactions();
            return JSON.createObjectNode();
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            JsonNode step = JSON.readTree(line);
            answer(() -> t.step(step));
        }
        if (t.consumer != null) {
            t.consumer.close();
        }
        t.producer.close(Duration.ofSeconds(10));
    }

    private interface Step {
        ObjectNode take() throws Exception;
    }

    private static void answer(Step step) throws Exception {
        ObjectNode answer;
        try {
            answer = step.take();
        } catch (Exception e) {
            int code = -1;
            // The client wraps what the broker said in what it means for the program.
            for (Throwable t = e; t != null && code == -1; t = t.getCause()) {
                code = Errors.forException(t).code();
            }
            for (Errors known : Errors.values()) {
                // What it has no exception for, it passes on as text only.
                if (code == -1 && known != Errors.UNKNOWN_SERVER_ERROR && String.valueOf(e).endsWith("; " + known.message())) {
                    code = known.code();
                }
            }
            answer = JSON.createObjectNode().put("error", String.valueOf(e)).put("code", code);
        }
        System.out.write((JSON.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8));
        System.out.flush();
    }

    private ObjectNode step(JsonNode step) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        switch (step.get("do").asText()) {
            case "begin" -> producer.beginTransaction();
            case "send" -> {
                List<Future<RecordMetadata>> pending = new ArrayList<>();
                for (JsonNode r : step.get("records")) {
                    pending.add(producer.send(Records.record(step.get("topic").asText(), r)));
                }
                for (Future<RecordMetadata> f : pending) {
                    f.get();
                }
            }
            case "poll" -> poll(step.get("count").asInt(), step.get("seconds").asInt(), answer.putArray("records"));
            case "offsets" -> producer.sendOffsetsToTransaction(polled, consumer.groupMetadata());
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(step.toString());
        }
        return answer;
    }

    private void poll(int count, int seconds, ArrayNode records) {
        long deadline = System.currentTimeMillis() + seconds * 1000L;
        while (ahead.isEmpty() && System.currentTimeMillis() < deadline) {
            consumer.poll(Duration.ofMillis(200)).forEach(ahead::add);
        }
        while (!ahead.isEmpty() && records.size() < count) {
            ConsumerRecord<String, String> r = ahead.remove();
            records.add(Records.line(r));
            polled.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
        }
    }

    static void read(String bootstrap, String topic, String isolation) throws Exception {
        Properties p = Settings.consumer(bootstrap);
        p.put("isolation.level", isolation);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(p)) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(i -> partitions.add(new TopicPartition(topic, i.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            // For read_committed the end is the last stable offset.
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = System.currentTimeMillis() + 30_000;
            while (!partitions.stream().allMatch(tp -> consumer.position(tp) >= ends.get(tp))) {
                Settings.check(System.currentTimeMillis() < deadline, "the end " + ends + " was not reached");
                for (var r : consumer.poll(Duration.ofMillis(200))) {
                    Records.print(r);
                }
            }
        }
    }
}
