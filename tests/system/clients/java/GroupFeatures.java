import static java.util.stream.Collectors.toList;

import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** Consumer groups. */
final class GroupFeatures {
    static void addTo(Map<String, Suite.Feature> features) {
        features.put("subscribe", GroupFeatures::subscribe);
        features.put("commit", GroupFeatures::commit);
        features.put("resume", GroupFeatures::resume);
        features.put("rebalance", name -> shareOut(name));
        features.put("cooperative", name -> shareOut(
                name, "partition.assignment.strategy", CooperativeStickyAssignor.class.getName()));
        features.put("static_member", GroupFeatures::staticMember);
        features.put("list_groups", GroupFeatures::listGroups);
        features.put("describe_group", GroupFeatures::describeGroup);
        features.put("set_offsets", GroupFeatures::setOffsets);
        features.put("delete_offsets", GroupFeatures::deleteOffsets);
        features.put("delete_group", GroupFeatures::deleteGroup);
    }

    /** Poll all of them until each has so many partitions. */
    @SafeVarargs
    private static void waitForShares(int count, KafkaConsumer<String, String>... members) {
        long deadlineMs = System.currentTimeMillis() + Client.LIMIT_MS;
        while (!Arrays.stream(members).allMatch(one -> one.assignment().size() == count)) {
            Client.check(System.currentTimeMillis() < deadlineMs, "not everybody has " + count);
            for (var member : members) {
                member.poll(Duration.ofMillis(50));
            }
        }
    }

    private static void subscribe(String name) throws Exception {
        Client.create(name, 3);
        Client.send(List.of(Client.record(name, 0, "0"), Client.record(name, 1, "1"),
                Client.record(name, 2, "2")));
        try (var consumer = Client.member(name)) {
            consumer.subscribe(List.of(name));
            var found = Client.values(Client.receive(consumer, 3));
            Client.checkEqual(List.of("0", "1", "2"), found.stream().sorted().collect(toList()));
        }
    }

    private static void commit(String name) throws Exception {
        Client.create(name, 2);
        TopicPartition one = new TopicPartition(name, 0);
        TopicPartition other = new TopicPartition(name, 1);
        OffsetAndMetadata committed = new OffsetAndMetadata(5, Client.METADATA);
        try (var consumer = Client.member(name)) {
            consumer.assign(List.of(one, other));
            consumer.commitSync(Map.of(one, committed));
            var found = consumer.committed(Set.of(one, other));
            Client.checkEqual(committed, found.get(one));
            Client.checkEqual(null, found.get(other));
        }
        var listed = Client.ADMIN.get().listConsumerGroupOffsets(name);
        Client.checkEqual(Map.of(one, committed),
                Client.await(listed.partitionsToOffsetAndMetadata()));
    }

    /** A topic with three records, and a group that has read them and left. */
    private static void readInGroup(String name) throws Exception {
        Client.create(name, 1);
        Client.sendValues(name, "one", "two", "three");
        try (var consumer = Client.member(name)) { // commits by itself when it is closed
            consumer.subscribe(List.of(name));
            Client.receive(consumer, 3);
        }
    }

    private static void resume(String name) throws Exception {
        readInGroup(name);
        Client.sendValues(name, "four");
        try (var consumer = Client.member(name)) {
            consumer.subscribe(List.of(name));
            Client.checkEqual(List.of("four"), Client.values(Client.receive(consumer, 1)));
        }
    }

    private static void shareOut(String name, String... pairs) throws Exception {
        Client.create(name, 4);
        try (var first = Client.member(name, pairs)) {
            first.subscribe(List.of(name));
            waitForShares(4, first);
            try (var second = Client.member(name, pairs)) {
                second.subscribe(List.of(name));
                waitForShares(2, first, second);
                Set<TopicPartition> taken = new HashSet<>(first.assignment());
                taken.addAll(second.assignment());
                Client.checkEqual(4, taken.size());
            }
            waitForShares(4, first);
        }
    }

    private static void staticMember(String name) throws Exception {
        Client.create(name, 2);
        AtomicInteger revocations = new AtomicInteger();
        ConsumerRebalanceListener counting = new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                revocations.incrementAndGet();
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
        };
        try (var first = Client.member(name, "group.instance.id", "first")) {
            first.subscribe(List.of(name), counting);
            Set<TopicPartition> had;
            try (var second = Client.member(name, "group.instance.id", "second")) {
                second.subscribe(List.of(name));
                waitForShares(1, first, second);
                had = second.assignment();
            }
            int before = revocations.get();
            try (var second = Client.member(name, "group.instance.id", "second")) {
                second.subscribe(List.of(name));
                waitForShares(1, first, second);
                Client.checkEqual(had, second.assignment());
            }
            Client.checkEqual(before, revocations.get());
        }
    }

    private static Set<String> groups() throws Exception {
        return Client.await(Client.ADMIN.get().listConsumerGroups().all()).stream()
                .map(group -> group.groupId()).collect(java.util.stream.Collectors.toSet());
    }

    private static void listGroups(String name) throws Exception {
        Client.create(name, 1);
        try (var consumer = Client.member(name)) {
            consumer.subscribe(List.of(name));
            waitForShares(1, consumer);
            Client.check(groups().contains(name), groups());
        }
    }

    private static void describeGroup(String name) throws Exception {
        Client.create(name, 1);
        try (var consumer = Client.member(name, "client.id", "me")) {
            consumer.subscribe(List.of(name));
            waitForShares(1, consumer);
            var all = Client.await(Client.ADMIN.get().describeConsumerGroups(Set.of(name)).all());
            var shown = all.get(name);
            Client.checkEqual("Stable", shown.state().toString());
            Client.checkEqual("range", shown.partitionAssignor());
            Client.checkEqual(1, shown.members().size());
            var member = shown.members().iterator().next();
            Client.checkEqual("me", member.clientId());
            Client.checkEqual("/127.0.0.1", member.host());
            Client.checkEqual(Set.of(new TopicPartition(name, 0)),
                    member.assignment().topicPartitions());
        }
    }

    private static void setOffsets(String name) throws Exception {
        readInGroup(name);
        var wanted = Map.of(new TopicPartition(name, 0), new OffsetAndMetadata(1));
        Client.await(Client.ADMIN.get().alterConsumerGroupOffsets(name, wanted).all());
        try (var consumer = Client.member(name)) {
            consumer.subscribe(List.of(name));
            Client.checkEqual(List.of("two", "three"), Client.values(Client.receive(consumer, 2)));
        }
    }

    private static void deleteOffsets(String name) throws Exception {
        readInGroup(name);
        var admin = Client.ADMIN.get();
        var partitions = Set.of(new TopicPartition(name, 0));
        Client.await(admin.deleteConsumerGroupOffsets(name, partitions).all());
        var listed = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata();
        Client.checkEqual(Map.of(), Client.await(listed));
    }

    private static void deleteGroup(String name) throws Exception {
        readInGroup(name);
        Client.await(Client.ADMIN.get().deleteConsumerGroups(Set.of(name)).all());
        Client.check(!groups().contains(name), groups());
    }

    private GroupFeatures() {}
}
