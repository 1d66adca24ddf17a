import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.internals.Exit;
import org.apache.kafka.tools.ConfigCommand;
import org.apache.kafka.tools.GetOffsetShell;
import org.apache.kafka.tools.TopicCommand;
import org.apache.kafka.tools.consumer.ConsoleConsumer;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

/**
 * Loads what brokers, tools and programs load: a Kafka broker in this process, and clients and tools that use it. The JVM
 * writes an archive of these classes at the end, which takes two thirds of the processor time off each later start of a
 * broker.
 */
public final class Warm {
    private static final class Ended extends RuntimeException {}

    private interface Main {
        void call(String... args) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        String properties = args[0];
        String bootstrap = args[1];
        Thread broker = new Thread(() -> kafka.Kafka.main(new String[] {properties}), "broker");
        broker.setDaemon(true);
        broker.start();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "60000"))) {
            makeTopic(admin);
            sendAndRead(bootstrap);
            admin.listOffsets(Map.of(new TopicPartition("warm", 0), OffsetSpec.latest())).all().get(20, TimeUnit.SECONDS);
        }
        String[] at = {"--bootstrap-server", bootstrap};
        tool(TopicCommand::main, at, "--describe", "--topic", "warm");
        tool(ConfigCommand::main, at, "--describe", "--all", "--topic", "warm");
        tool(ConsumerGroupCommand::main, at, "--describe", "--group", "warm");
        tool(GetOffsetShell::main, at, "--topic", "warm");
        tool(ConsoleConsumer::main, at, "--topic", "warm", "--from-beginning", "--max-messages", "1");
        System.exit(0);
    }

    private static void makeTopic(Admin admin) throws Exception {
        for (int left = 60; ; left--) {
            try {
                admin.createTopics(List.of(new NewTopic("warm", 1, (short) 1))).all().get(60, TimeUnit.SECONDS);
                return;
            } catch (ExecutionException e) {
                if (left == 0) {
                    throw e;
                }
                Thread.sleep(500);
            }
        }
    }

    private static void sendAndRead(String bootstrap) {
        var settings = Settings.producer(bootstrap);
        settings.put("transactional.id", "warm");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
                KafkaConsumer<String, String> consumer = new KafkaConsumer<>(Settings.group(bootstrap, "warm"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("warm", "key", "value"));
            producer.commitTransaction();
            consumer.subscribe(List.of("warm"));
            for (int left = 60; left > 0 && consumer.poll(Duration.ofMillis(500)).isEmpty(); left--) {}
            consumer.commitSync();
        }
    }

    /** Runs a tool that would end the process, up to there. */
    private static void tool(Main main, String[] at, String... args) throws Exception {
        String[] all = new String[at.length + args.length];
        System.arraycopy(at, 0, all, 0, at.length);
        System.arraycopy(args, 0, all, at.length, args.length);
        Exit.setExitProcedure((code, message) -> {
            throw new Ended();
        });
        try {
            main.call(all);
        } catch (Ended e) {
            return;
        } finally {
            Exit.resetExitProcedure();
        }
    }
}
