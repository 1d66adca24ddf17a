import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeProducersResult;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/**
 * The admin client over topics, partitions, configurations, offsets, groups, producers and log directories.
 *
 * <p>topics|configs|offsets|groups|producers BOOTSTRAP PREFIX
 */
public final class AdminSweep {
    public static void main(String[] args) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", args[1]);
        p.put("default.api.timeout.ms", "20000");
        p.put("request.timeout.ms", "10000");
        try (Admin admin = Admin.create(p)) {
            switch (args[0]) {
                case "topics" -> topics(admin, args[2]);
                case "configs" -> configs(admin, args[2]);
                case "offsets" -> offsets(admin, args[1], args[2]);
                case "groups" -> groups(admin, args[1], args[2]);
                case "producers" -> producers(admin, args[1], args[2]);
                default -> throw new IllegalArgumentException(args[0]);
            }
        }
        System.out.println("ok");
    }

    private static <T> T get(KafkaFuture<T> f) throws Exception {
        return f.get(20, TimeUnit.SECONDS);
    }

    private static void refused(KafkaFuture<?> f, Class<? extends Exception> wanted) throws Exception {
        try {
            get(f);
        } catch (ExecutionException e) {
            Settings.check(wanted.isInstance(e.getCause()), "wanted " + wanted.getSimpleName() + ", got " + e.getCause());
            return;
        }
        throw new AssertionError("not refused: wanted " + wanted.getSimpleName());
    }

    private static void create(Admin admin, String name, int partitions) throws Exception {
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all());
        awaitLeaders(admin, name, partitions);
    }

    private static void awaitLeaders(Admin admin, String name, int partitions) throws Exception {
        for (int i = 0; i < 100; i++) {
            try {
                TopicDescription d = get(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
                if (d.partitions().size() == partitions && d.partitions().stream().allMatch(x -> x.leader() != null)) {
                    return;
                }
            } catch (ExecutionException e) {
                Settings.check(e.getCause() instanceof UnknownTopicOrPartitionException, "describe: " + e.getCause());
            }
            Thread.sleep(50);
        }
        throw new AssertionError(name + " never had " + partitions + " partitions with leaders");
    }

    private static void fill(String bootstrap, String topic, int partition, int count) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Settings.producer(bootstrap))) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, partition, Settings.BASE_MS + i * 1000L, "k" + i, "v" + i)).get();
            }
        }
    }

    private static void topics(Admin admin, String prefix) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        Collection<Node> nodes = get(cluster.nodes());
        Node node = get(cluster.controller());
        Settings.check(nodes.size() == 1 && get(cluster.clusterId()).length() == 22, "one node and a cluster id");
        Settings.check(nodes.contains(node), "the controller is one of the nodes");

        String a = prefix + "-a";
        String b = prefix + "-b";
        CreateTopicsResult dry = admin.createTopics(List.of(new NewTopic(a, 2, (short) 1)), new CreateTopicsOptions().validateOnly(true));
        get(dry.all());
        Settings.check(!get(admin.listTopics().names()).contains(a), "validateOnly creates nothing");
        CreateTopicsResult made = admin.createTopics(List.of(
                new NewTopic(a, 2, (short) 1).configs(Map.of("retention.ms", "7777")),
                new NewTopic(b, Optional.empty(), Optional.empty())));
        get(made.all());
        Uuid id = get(made.topicId(a));
        Settings.check(get(made.numPartitions(a)) == 2 && get(made.replicationFactor(a)) == 1, "create answers the shape");
        Settings.check(get(made.config(a)).get("retention.ms").value().equals("7777"), "create answers the configuration");
        Settings.check(get(made.numPartitions(b)) == 1, "num.partitions is the default");
        awaitLeaders(admin, a, 2);
        TopicDescription d = get(admin.describeTopics(List.of(a)).allTopicNames()).get(a);
        Settings.check(d.topicId().equals(id) && !d.isInternal(), "the id of create and describe are one");
        d.partitions().forEach(p -> Settings.check(
                p.leader().id() == node.id() && p.replicas().size() == 1 && p.isr().size() == 1, "partition " + p));
        TopicDescription byId = get(admin.describeTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id);
        Settings.check(byId.name().equals(a), "describe by id");

        refused(admin.createTopics(List.of(new NewTopic(a, 1, (short) 1))).all(), TopicExistsException.class);
        refused(admin.createTopics(List.of(new NewTopic("bad name!", 1, (short) 1))).all(), InvalidTopicException.class);
        refused(admin.createTopics(List.of(new NewTopic(prefix + "-rf", 1, (short) 3))).all(), InvalidReplicationFactorException.class);
        refused(admin.createTopics(List.of(new NewTopic(prefix + "-np", 0, (short) 1))).all(), InvalidPartitionsException.class);
        refused(admin.createTopics(List.of(new NewTopic(prefix + "-cfg", 1, (short) 1).configs(Map.of("retention.ms", "soon")))).all(),
                InvalidConfigurationException.class);

        get(admin.createPartitions(Map.of(a, NewPartitions.increaseTo(5))).all());
        awaitLeaders(admin, a, 5);
        refused(admin.createPartitions(Map.of(a, NewPartitions.increaseTo(4))).all(), InvalidPartitionsException.class);
        refused(admin.createPartitions(Map.of(prefix + "-none", NewPartitions.increaseTo(4))).all(), UnknownTopicOrPartitionException.class);

        get(admin.deleteTopics(List.of(a)).all());
        refused(admin.deleteTopics(List.of(prefix + "-none")).all(), UnknownTopicOrPartitionException.class);
        for (int i = 0; i < 100 && get(admin.listTopics().names()).contains(a); i++) {
            Thread.sleep(50);
        }
        refused(admin.describeTopics(List.of(a)).allTopicNames(), UnknownTopicOrPartitionException.class);
        create(admin, a, 1);
        Uuid second = get(admin.describeTopics(List.of(a)).allTopicNames()).get(a).topicId();
        Settings.check(!second.equals(id), "a topic made again has a new id");
    }

    private static void configs(Admin admin, String prefix) throws Exception {
        String topic = prefix + "-t";
        create(admin, topic, 1);
        ConfigResource r = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config before = get(admin.describeConfigs(List.of(r)).all()).get(r);
        Settings.check(before.get("segment.bytes").value().equals("1073741824") && before.get("segment.bytes").isDefault(), "segment.bytes");
        Settings.check(before.get("cleanup.policy").value().equals("delete"), "cleanup.policy");
        alter(admin, r, "retention.ms", "123456", AlterConfigOp.OpType.SET);
        alter(admin, r, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        Config after = await(admin, r, "retention.ms", "123456");
        Settings.check(after.get("retention.ms").source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "source");
        Set<String> policies = new HashSet<>(Arrays.asList(await(admin, r, "cleanup.policy", "delete,compact").get("cleanup.policy").value().split(",")));
        Settings.check(policies.equals(Set.of("delete", "compact")), "append to a list: " + policies);
        alter(admin, r, "cleanup.policy", "compact", AlterConfigOp.OpType.SUBTRACT);
        await(admin, r, "cleanup.policy", "delete");
        alter(admin, r, "retention.ms", "", AlterConfigOp.OpType.DELETE);
        await(admin, r, "retention.ms", "604800000");
        refused(admin.incrementalAlterConfigs(Map.of(r, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "x"), AlterConfigOp.OpType.SET)))).all(),
                InvalidConfigurationException.class);
        refused(admin.incrementalAlterConfigs(Map.of(r, List.of(new AlterConfigOp(new ConfigEntry("no.such.config", "1"), AlterConfigOp.OpType.SET)))).all(),
                InvalidConfigurationException.class);
        ConfigResource none = new ConfigResource(ConfigResource.Type.TOPIC, prefix + "-none");
        refused(admin.describeConfigs(List.of(none)).all(), UnknownTopicOrPartitionException.class);

        Node node = get(admin.describeCluster().controller());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "" + node.id());
        Config b = get(admin.describeConfigs(List.of(broker)).all()).get(broker);
        Settings.check(b.get("message.max.bytes").value().equals("1048588"), "message.max.bytes");
        Settings.check(b.get("log.dirs").value() != null && b.get("log.dirs").isReadOnly(), "log.dirs");
    }

    private static void alter(Admin admin, ConfigResource r, String key, String value, AlterConfigOp.OpType op) throws Exception {
        get(admin.incrementalAlterConfigs(Map.of(r, List.of(new AlterConfigOp(new ConfigEntry(key, value), op)))).all());
    }

    private static Config await(Admin admin, ConfigResource r, String key, String value) throws Exception {
        Config c = null;
        for (int i = 0; i < 100; i++) {
            c = get(admin.describeConfigs(List.of(r)).all()).get(r);
            if (c.get(key).value().equals(value)) {
                return c;
            }
            Thread.sleep(50);
        }
        throw new AssertionError(key + " is " + c.get(key).value() + ", wanted " + value);
    }

    private static ListOffsetsResultInfo offset(Admin admin, TopicPartition tp, OffsetSpec spec) throws Exception {
        return get(admin.listOffsets(Map.of(tp, spec)).all()).get(tp);
    }

    private static void offsets(Admin admin, String bootstrap, String prefix) throws Exception {
        String topic = prefix + "-t";
        create(admin, topic, 2);
        TopicPartition tp = new TopicPartition(topic, 0);
        TopicPartition empty = new TopicPartition(topic, 1);
        fill(bootstrap, topic, 0, 50);
        Settings.check(offset(admin, tp, OffsetSpec.earliest()).offset() == 0, "earliest");
        Settings.check(offset(admin, tp, OffsetSpec.latest()).offset() == 50, "latest");
        ListOffsetsResultInfo max = offset(admin, tp, OffsetSpec.maxTimestamp());
        Settings.check(max.offset() == 49 && max.timestamp() == Settings.BASE_MS + 49_000, "max timestamp " + max);
        ListOffsetsResultInfo at = offset(admin, tp, OffsetSpec.forTimestamp(Settings.BASE_MS + 10_001));
        Settings.check(at.offset() == 11 && at.timestamp() == Settings.BASE_MS + 11_000, "for a timestamp " + at);
        Settings.check(at.leaderEpoch().isPresent(), "the leader epoch comes with the offset");
        Settings.check(offset(admin, tp, OffsetSpec.forTimestamp(Settings.BASE_MS + 10_000_000)).offset() == -1, "after the last");
        Settings.check(offset(admin, empty, OffsetSpec.maxTimestamp()).offset() == -1, "max timestamp of nothing");
        Settings.check(offset(admin, empty, OffsetSpec.latest()).offset() == 0, "latest of nothing");
        Settings.check(offset(admin, tp, OffsetSpec.earliestLocal()).offset() == 0, "earliest local");

        long low = get(admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(20))).lowWatermarks().get(tp)).lowWatermark();
        Settings.check(low == 20, "low watermark " + low);
        Settings.check(offset(admin, tp, OffsetSpec.earliest()).offset() == 20, "earliest after deletion");
        refused(admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(51))).all(), OffsetOutOfRangeException.class);
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(Settings.consumer(bootstrap))) {
            c.assign(List.of(tp));
            c.seekToBeginning(List.of(tp));
            ConsumerRecords<String, String> first = c.poll(Duration.ofSeconds(5));
            for (int more = 0; more < 12 && first.isEmpty(); more++) {
                first = c.poll(Duration.ofSeconds(5));
            }
            Settings.check(first.iterator().next().value().equals("v20"), "reading begins at the low watermark");
        }
        low = get(admin.deleteRecords(Map.of(tp, RecordsToDelete.beforeOffset(-1))).lowWatermarks().get(tp)).lowWatermark();
        Settings.check(low == 50, "-1 deletes up to the high watermark, got " + low);
        fill(bootstrap, topic, 0, 1);
        Settings.check(offset(admin, tp, OffsetSpec.latest()).offset() == 51, "offsets go on after deletion");

        Node node = get(admin.describeCluster().controller());
        Map<String, LogDirDescription> dirs = get(admin.describeLogDirs(List.of(node.id())).allDescriptions()).get(node.id());
        LogDirDescription dir = dirs.values().iterator().next();
        Settings.check(dirs.size() == 1 && dir.error() == null && dir.replicaInfos().containsKey(tp), "log directory");
        Settings.check(dir.totalBytes().isPresent() && dir.totalBytes().getAsLong() > dir.usableBytes().getAsLong(), "bytes of the volume");
    }

    private static void groups(Admin admin, String bootstrap, String prefix) throws Exception {
        String topic = prefix + "-t";
        String group = prefix + "-g";
        create(admin, topic, 2);
        fill(bootstrap, topic, 0, 10);
        TopicPartition tp = new TopicPartition(topic, 0);
        TopicPartition other = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(Settings.group(bootstrap, group))) {
            c.subscribe(List.of(topic));
            for (int i = 0; i < 100 && c.assignment().size() != 2; i++) {
                c.poll(Duration.ofMillis(100));
            }
            c.commitSync(Map.of(tp, new OffsetAndMetadata(4, "four"), other, new OffsetAndMetadata(0)));
            ConsumerGroupDescription d = get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
            Settings.check(d.groupState() == GroupState.STABLE && d.members().size() == 1, "stable with one member: " + d);
            Settings.check(d.members().iterator().next().assignment().topicPartitions().equals(Set.of(tp, other)), "assignment " + d);
            Settings.check(d.partitionAssignor().equals("range") && d.coordinator() != null, "assignor " + d);
            refused(admin.deleteConsumerGroups(List.of(group)).all(), GroupNotEmptyException.class);
        }
        ConsumerGroupDescription d = get(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
        Settings.check(d.groupState() == GroupState.EMPTY && d.members().isEmpty(), "empty after leaving: " + d);
        GroupListing listing = get(admin.listGroups().all()).stream().filter(g -> g.groupId().equals(group)).findFirst().orElseThrow();
        Settings.check(listing.protocol().equals("consumer") && listing.groupState().get() == GroupState.EMPTY, "listing " + listing);

        Map<TopicPartition, OffsetAndMetadata> committed = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        Settings.check(committed.get(tp).offset() == 4 && committed.get(tp).metadata().equals("four"), "committed " + committed);
        get(admin.alterConsumerGroupOffsets(group, Map.of(tp, new OffsetAndMetadata(7))).all());
        committed = get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        Settings.check(committed.get(tp).offset() == 7 && committed.get(other).offset() == 0, "altered " + committed);
        try (KafkaConsumer<String, String> c = new KafkaConsumer<>(Settings.group(bootstrap, group))) {
            c.subscribe(List.of(topic));
            String first = null;
            for (int i = 0; i < 100 && first == null; i++) {
                var records = c.poll(Duration.ofMillis(100));
                first = records.isEmpty() ? null : records.iterator().next().value();
            }
            Settings.check("v7".equals(first), "resumes at the altered offset, read " + first);
        }
        get(admin.deleteConsumerGroupOffsets(group, Set.of(other)).all());
        Map<TopicPartition, OffsetAndMetadata> left = new HashMap<>(get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()));
        left.values().removeAll(Collections.singleton(null));
        Settings.check(left.keySet().equals(Set.of(tp)), "one offset deleted, left " + left);
        get(admin.deleteConsumerGroups(List.of(group)).all());
        refused(admin.deleteConsumerGroups(List.of(group)).all(), GroupIdNotFoundException.class);
        Settings.check(get(admin.listGroups().all()).stream().noneMatch(g -> g.groupId().equals(group)), "the group is gone");
    }

    private static void producers(Admin admin, String bootstrap, String prefix) throws Exception {
        String topic = prefix + "-t";
        create(admin, topic, 1);
        TopicPartition tp = new TopicPartition(topic, 0);
        fill(bootstrap, topic, 0, 25);
        DescribeProducersResult.PartitionProducerState s = get(admin.describeProducers(List.of(tp)).partitionResult(tp));
        Settings.check(s.activeProducers().size() == 1, "one active producer: " + s);
        ProducerState p = s.activeProducers().get(0);
        Settings.check(p.producerId() >= 0 && p.producerEpoch() == 0 && p.lastSequence() == 24, "producer " + p);
        Settings.check(p.currentTransactionStartOffset().isEmpty(), "no open transaction");
        Settings.check(get(admin.listTransactions().all()).stream().noneMatch(t -> t.transactionalId().startsWith(prefix)), "no transactions of ours");
        fill(bootstrap, topic, 0, 1);
        s = get(admin.describeProducers(List.of(tp)).partitionResult(tp));
        Set<Long> ids = new HashSet<>();
        s.activeProducers().forEach(x -> ids.add(x.producerId()));
        Settings.check(ids.size() == 2, "every producer has its own id: " + s);
    }
}
