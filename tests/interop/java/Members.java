import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/**
 * Two members of one group, polled in turn by one thread, over a topic of four partitions.
 *
 * <p>rebalance|cooperative|static BOOTSTRAP TOPIC GROUP
 */
public final class Members {
    private static final Duration POLL = Duration.ofMillis(50);

    /** A consumer with what its rebalance listener saw and what it read. */
    private static final class Member implements AutoCloseable, ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final AtomicInteger revocations = new AtomicInteger();
        final Set<Integer> revoked = new HashSet<>();
        final Map<String, Integer> read;
        int commitsPutOff;

        Member(Properties p, String topic, Map<String, Integer> read) {
            this.read = read;
            consumer = new KafkaConsumer<>(p);
            consumer.subscribe(List.of(topic), this);
        }

        Set<Integer> assigned() {
            Set<Integer> s = new TreeSet<>();
            consumer.assignment().forEach(tp -> s.add(tp.partition()));
            return s;
        }

        void poll() {
            for (ConsumerRecord<String, String> r : consumer.poll(POLL)) {
                read.merge(r.partition() + ":" + r.offset() + "=" + r.value(), 1, Integer::sum);
            }
            try {
                consumer.commitSync();
            } catch (RebalanceInProgressException e) {
                // A cooperative member goes on polling during a rebalance; the next poll commits.
                commitsPutOff++;
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (!partitions.isEmpty()) {
                revocations.incrementAndGet();
                partitions.forEach(tp -> revoked.add(tp.partition()));
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

        @Override
        public void close() {
            consumer.close();
        }
    }

    public static void main(String[] args) throws Exception {
        String bootstrap = args[1];
        String topic = args[2];
        String group = args[3];
        switch (args[0]) {
            case "rebalance" -> twoMembers(bootstrap, topic, group, RangeAssignor.class.getName(), false);
            case "cooperative" -> twoMembers(bootstrap, topic, group, CooperativeStickyAssignor.class.getName(), true);
            case "static" -> staticMember(bootstrap, topic, group);
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.out.println("ok");
    }

    private static void until(String what, BooleanSupplier done, Member... members) {
        long deadline = System.currentTimeMillis() + 25_000;
        while (!done.getAsBoolean()) {
            Settings.check(System.currentTimeMillis() < deadline, "never happened: " + what);
            for (Member m : members) {
                m.poll();
            }
        }
    }

    private static void produce(String bootstrap, String topic, int from, int to) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Settings.producer(bootstrap))) {
            for (int i = from; i < to; i++) {
                producer.send(new ProducerRecord<>(topic, i % 4, null, "value-" + i)).get();
            }
        }
    }

    private static void twoMembers(String bootstrap, String topic, String group, String assignor, boolean cooperative)
            throws Exception {
        Properties p = Settings.group(bootstrap, group);
        p.put("partition.assignment.strategy", assignor);
        Map<String, Integer> read = new HashMap<>();
        produce(bootstrap, topic, 0, 40);
        Member one = new Member(p, topic, read);
        until("one member owns all four partitions", () -> one.assigned().size() == 4, one);
        until("the first 40 records are read", () -> read.size() == 40, one);
        try (Member two = new Member(p, topic, read)) {
            until("two members own two partitions each",
                    () -> one.assigned().size() == 2 && two.assigned().size() == 2, one, two);
            Set<Integer> all = new TreeSet<>(one.assigned());
            all.addAll(two.assigned());
            Settings.check(all.equals(Set.of(0, 1, 2, 3)), "shares overlap or miss: " + one.assigned() + two.assigned());
            if (cooperative) {
                Settings.check(one.revoked.size() == 2, "cooperative members give up only what moves: " + one.revoked);
            } else {
                Settings.check(one.revoked.size() == 4, "eager members give up everything: " + one.revoked);
            }
            produce(bootstrap, topic, 40, 80);
            until("the second 40 records are read", () -> read.size() == 80, one, two);
        }
        until("the first member owns everything again", () -> one.assigned().size() == 4, one);
        produce(bootstrap, topic, 80, 120);
        until("the third 40 records are read", () -> read.size() == 120, one);
        one.close();
        for (Map.Entry<String, Integer> e : read.entrySet()) {
            Settings.check(e.getValue() == 1, "read " + e.getValue() + " times: " + e.getKey());
        }
        for (int i = 0; i < 120; i++) {
            String wanted = (i % 4) + ":" + (i / 4) + "=value-" + i;
            Settings.check(read.containsKey(wanted), "never read " + wanted);
        }
    }

    /** A static member that comes back keeps its partitions: nobody else sees a rebalance. */
    private static void staticMember(String bootstrap, String topic, String group) throws Exception {
        Map<String, Integer> read = new HashMap<>();
        Properties first = Settings.group(bootstrap, group);
        first.put("group.instance.id", "instance-1");
        first.put("partition.assignment.strategy", RangeAssignor.class.getName());
        Properties second = Settings.group(bootstrap, group);
        second.put("group.instance.id", "instance-2");
        second.put("partition.assignment.strategy", RangeAssignor.class.getName());
        Member one = new Member(first, topic, read);
        until("one owns all", () -> one.assigned().size() == 4, one);
        Member two = new Member(second, topic, read);
        until("two each", () -> one.assigned().size() == 2 && two.assigned().size() == 2, one, two);
        Set<Integer> before = two.assigned();
        int generation = one.consumer.groupMetadata().generationId();
        int revocations = one.revocations.get();
        two.close();
        Member back = new Member(second, topic, read);
        until("the static member is back", () -> back.assigned().size() == 2, one, back);
        Settings.check(back.assigned().equals(before), "came back with " + back.assigned() + ", had " + before);
        Settings.check(one.consumer.groupMetadata().generationId() == generation, "the generation moved");
        Settings.check(one.revocations.get() == revocations, "the other member was rebalanced");
        back.close();
        one.close();
    }
}
