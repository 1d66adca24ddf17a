import java.util.Properties;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The client properties that every Java check starts from. */
final class Settings {
    /** The timestamp of first records: an hour ago, so that neither retention nor the check for the future touches them. */
    static final long BASE_MS = System.currentTimeMillis() / 1000 * 1000 - 3_600_000;

    private Settings() {}

    static Properties producer(String bootstrap) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.serializer", StringSerializer.class.getName());
        p.put("value.serializer", StringSerializer.class.getName());
        p.put("delivery.timeout.ms", "20000");
        p.put("request.timeout.ms", "10000");
        p.put("max.block.ms", "15000");
        return p;
    }

    static Properties consumer(String bootstrap) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.deserializer", StringDeserializer.class.getName());
        p.put("value.deserializer", StringDeserializer.class.getName());
        p.put("auto.offset.reset", "earliest");
        p.put("enable.auto.commit", "false");
        p.put("default.api.timeout.ms", "20000");
        return p;
    }

    static Properties group(String bootstrap, String group) {
        Properties p = consumer(bootstrap);
        p.put("group.id", group);
        p.put("session.timeout.ms", "10000");
        p.put("heartbeat.interval.ms", "200");
        return p;
    }

    /** Fails the program with a message; assertions that cannot be switched off. */
    static void check(boolean condition, String message) {
        if (!condition) {
            throw new AssertionError(message);
        }
    }
}
