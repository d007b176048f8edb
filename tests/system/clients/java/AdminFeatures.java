import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;

/** Topics, the cluster, and settings. */
final class AdminFeatures {
    static void addTo(Map<String, Suite.Feature> features) {
        features.put("create_topic", AdminFeatures::createTopic);
        features.put("list_topics", AdminFeatures::listTopics);
        features.put("describe_cluster", AdminFeatures::describeCluster);
        features.put("create_partitions", AdminFeatures::createPartitions);
        features.put("describe_configs", AdminFeatures::describeConfigs);
        features.put("alter_configs", AdminFeatures::alterConfigs);
        features.put("delete_records", AdminFeatures::deleteRecords);
        features.put("delete_topic", AdminFeatures::deleteTopic);
    }

    private static void createTopic(String name) throws Exception {
        Client.create(name, 3);
        Client.checkEqual(3, Client.partitionCount(name));
        Client.checkThrows(TopicExistsException.class, ignored -> Client.create(name, 3));
    }

    private static void listTopics(String name) throws Exception {
        Client.create(name, 2);
        Client.check(Client.await(Client.ADMIN.get().listTopics().names()).contains(name), name);
        Client.checkEqual(2, Client.partitionCount(name));
    }

    private static void describeCluster(String name) throws Exception {
        var shown = Client.ADMIN.get().describeCluster();
        var nodes = Client.await(shown.nodes());
        Client.checkEqual(1, nodes.size());
        Client.checkEqual(Client.await(shown.controller()), nodes.iterator().next());
        Client.check(!Client.await(shown.clusterId()).isEmpty(), "no cluster id");
    }

    private static void createPartitions(String name) throws Exception {
        Client.create(name, 1);
        var wanted = Map.of(name, NewPartitions.increaseTo(3));
        Client.await(Client.ADMIN.get().createPartitions(wanted).all());
        Client.checkEqual(3, Client.partitionCount(name));
        Client.send(List.of(Client.record(name, 2, "new")));
        try (var consumer = Client.reader(name, 2)) {
            Client.checkEqual(List.of("new"), Client.values(Client.receive(consumer, 1)));
        }
    }

    private static Config settings(ConfigResource of) throws Exception {
        return Client.await(Client.ADMIN.get().describeConfigs(Set.of(of)).all()).get(of);
    }

    private static void describeConfigs(String name) throws Exception {
        Client.create(name, 1);
        var policy = settings(new ConfigResource(ConfigResource.Type.TOPIC, name))
                .get("cleanup.policy");
        Client.checkEqual("delete", policy.value());
        Client.check(policy.isDefault(), policy);
        String node = Client.await(Client.ADMIN.get().describeCluster().controller()).idString();
        var shown = settings(new ConfigResource(ConfigResource.Type.BROKER, node));
        Client.check(!shown.entries().isEmpty(), shown);
    }

    private static void alterConfigs(String name) throws Exception {
        Client.create(name, 1);
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        var own = ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG;
        for (var given : Client.SETTINGS.entrySet()) {
            var shown = settings(topic).get(given.getKey());
            Client.checkEqual(given.getValue(), shown.value());
            Client.checkEqual(own, shown.source());
        }
        change(topic, AlterConfigOp.OpType.SET, "max.message.bytes", "2000");
        Client.checkEqual("2000", settings(topic).get("max.message.bytes").value());
        change(topic, AlterConfigOp.OpType.SET, "retention.ms", "-1");
        change(topic, AlterConfigOp.OpType.DELETE, "retention.bytes", "");
        Client.checkEqual("-1", settings(topic).get("retention.ms").value());
        var bytes = settings(topic).get("retention.bytes");
        Client.checkEqual("-1", bytes.value());
        Client.check(bytes.isDefault(), bytes);
        Client.checkThrows(InvalidConfigurationException.class,
                ignored -> change(topic, AlterConfigOp.OpType.APPEND, "retention.ms", "1"));
        Client.checkThrows(InvalidConfigurationException.class,
                ignored -> change(topic, AlterConfigOp.OpType.SET, "segment.bytes", "much"));
        Client.checkThrows(RecordTooLargeException.class,
                ignored -> Client.sendValues(name, "x".repeat(3_000)));
    }

    private static void change(
            ConfigResource topic, AlterConfigOp.OpType op, String name, String value)
            throws Exception {
        var change = List.of(new AlterConfigOp(new ConfigEntry(name, value), op));
        Client.await(Client.ADMIN.get().incrementalAlterConfigs(Map.of(topic, change)).all());
    }

    private static void deleteRecords(String name) throws Exception {
        Client.create(name, 1);
        Client.sendValues(name, "0", "1", "2", "3", "4");
        var one = new TopicPartition(name, 0);
        var before = Map.of(one, RecordsToDelete.beforeOffset(3));
        var answer = Client.ADMIN.get().deleteRecords(before).lowWatermarks().get(one);
        Client.checkEqual(3L, Client.await(answer).lowWatermark());
        try (var consumer = Client.reader(name, 0)) {
            Client.checkEqual(List.of("3", "4"), Client.values(Client.receive(consumer, 2)));
        }
    }

    private static void deleteTopic(String name) throws Exception {
        Client.create(name, 1);
        Client.await(Client.ADMIN.get().deleteTopics(Set.of(name)).all());
        Client.check(!Client.await(Client.ADMIN.get().listTopics().names()).contains(name), name);
    }

    private AdminFeatures() {}
}
