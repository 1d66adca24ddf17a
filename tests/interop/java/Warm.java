import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.tools.TopicCommand;

/**
 * Loads what every tool and program loads, against a port where nobody listens. The JVM writes an archive of these
 * classes at the end, which halves the processor time of each later start.
 */
public final class Warm {
    public static void main(String[] args) throws Exception {
        String nobody = "127.0.0.1:1";
        Properties p = new Properties();
        p.put("bootstrap.servers", nobody);
        p.put("request.timeout.ms", "500");
        p.put("default.api.timeout.ms", "1000");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Settings.producer(nobody));
                KafkaConsumer<String, String> consumer = new KafkaConsumer<>(Settings.group(nobody, "warm"))) {
            consumer.subscribe(List.of("warm"));
            consumer.poll(java.time.Duration.ofMillis(100));
            producer.close(java.time.Duration.ofMillis(100));
        }
        try (Admin admin = Admin.create(p)) {
            admin.listTopics().names().get(5, TimeUnit.SECONDS);
        } catch (java.util.concurrent.ExecutionException e) {
            TopicCommand.main(new String[] {"--help"});
        }
    }
}
