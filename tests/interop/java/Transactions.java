import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Records in transactions, and what each isolation level sees of them.
 *
 * <p>write BOOTSTRAP TOPIC TRANSACTIONAL_ID (on standard input records, and between them {"do": "begin" | "commit" | "abort"
 * | "leave"}; leave ends the program with the transaction open) · read BOOTSTRAP TOPIC... (all of each topic as
 * read_uncommitted sees it, an empty line, all of it as read_committed sees it, an empty line)
 */
public final class Transactions {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "write" -> write(args[1], args[2], args[3]);
            case "read" -> {
                for (String topic : Arrays.asList(args).subList(2, args.length)) {
                    read(args[1], topic, "read_uncommitted");
                    read(args[1], topic, "read_committed");
                }
            }
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    private static void write(String bootstrap, String topic, String id) throws Exception {
        ObjectMapper json = new ObjectMapper();
        Properties p = Settings.producer(bootstrap);
        p.put("transactional.id", id);
        // A transaction that is left open stays open for as long as a check takes.
        p.put("transaction.timeout.ms", "600000");
        // The first transaction waits until Kafka has made its transaction log.
        p.put("max.block.ms", "60000");
        p.put("linger.ms", "20");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            producer.initTransactions();
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line; (line = in.readLine()) != null; ) {
                JsonNode step = json.readTree(line);
                switch (step.path("do").asText()) {
                    case "begin" -> producer.beginTransaction();
                    case "commit" -> producer.commitTransaction();
                    case "abort" -> {
                        // Without this an abort would drop what has not been sent yet.
                        producer.flush();
                        producer.abortTransaction();
                    }
                    case "leave" -> {
                        producer.flush();
                        Runtime.getRuntime().halt(0);
                    }
                    default -> producer.send(Records.record(topic, step));
                }
            }
        }
    }

    private static void read(String bootstrap, String topic, String isolation) throws Exception {
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
            System.out.println();
        }
    }
}
