import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What the features use of the client: send, receive, create, and checks. */
final class Client {
    /** For anything that should happen at once. */
    static final long LIMIT_MS = 60_000;

    static final long TIME_MS = 1_700_000_000_000L;
    static final String METADATA = "sp\u00e4ter \u2713";

    static String address;

    /** One administrator for all; made when it is first asked for. */
    static final Supplier<Admin> ADMIN = new Supplier<>() {
        private Admin admin;

        @Override
        public synchronized Admin get() {
            if (admin == null) {
                admin = Admin.create(Map.of("bootstrap.servers", address));
            }
            return admin;
        }
    };

    static void check(boolean isTrue, Object facts) {
        if (!isTrue) {
            throw new AssertionError(facts);
        }
    }

    static void checkEqual(Object expected, Object found) {
        check(Objects.equals(expected, found), "expected " + expected + ", found " + found);
    }

    /** Wait for an answer; what it fails with is thrown as it is. */
    static <T> T await(Future<T> future) throws Exception {
        try {
            return future.get(LIMIT_MS, TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    static void checkThrows(Class<? extends Exception> expected, Suite.Feature action) {
        try {
            action.run("");
        } catch (Exception error) {
            if (expected.isInstance(error)) {
                return;
            }
            throw new AssertionError("expected " + expected, error);
        }
        throw new AssertionError("expected " + expected);
    }

    /** What applications and infrastructure tools set. */
    static final Map<String, String> SETTINGS =
            Map.of(
                    "retention.ms", "604800000",
                    "retention.bytes", "1073741824",
                    "segment.bytes", "104857600",
                    "max.message.bytes", "1000000");

    static void create(String topic, int partitionCount) throws Exception {
        NewTopic created = new NewTopic(topic, partitionCount, (short) 1).configs(SETTINGS);
        await(ADMIN.get().createTopics(Set.of(created)).all());
    }

    static int partitionCount(String topic) throws Exception {
        var shown = ADMIN.get().describeTopics(Set.of(topic)).allTopicNames();
        return await(shown).get(topic).partitions().size();
    }

    static Properties settings(String... pairs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        for (int index = 0; index < pairs.length; index += 2) {
            settings.put(pairs[index], pairs[index + 1]);
        }
        return settings;
    }

    /** A record for a partition, with headers given as name, value, name, value, ... */
    static ProducerRecord<String, String> record(
            String topic, int partition, String value, String... headers) {
        var record = new ProducerRecord<String, String>(topic, partition, null, value);
        for (int index = 0; index < headers.length; index += 2) {
            record.headers().add(headers[index], headers[index + 1].getBytes());
        }
        return record;
    }

    /** Send all in one batch if it is large enough; return the answers. */
    static List<RecordMetadata> send(
            List<ProducerRecord<String, String>> records, String... pairs) throws Exception {
        Properties settings = settings("linger.ms", "30");
        settings.putAll(settings(pairs));
        var strings = new StringSerializer();
        try (var producer = new KafkaProducer<>(settings, strings, strings)) {
            List<Future<RecordMetadata>> futures = new ArrayList<>();
            for (var record : records) {
                futures.add(producer.send(record));
            }
            List<RecordMetadata> answers = new ArrayList<>();
            for (var future : futures) {
                answers.add(await(future));
            }
            return answers;
        }
    }

    static List<RecordMetadata> sendValues(String topic, String... values) throws Exception {
        return send(Arrays.stream(values)
                .map(value -> record(topic, 0, value)).collect(Collectors.toList()));
    }

    static KafkaConsumer<String, String> consumer(String... pairs) {
        Properties settings = settings("auto.offset.reset", "earliest");
        settings.putAll(settings(pairs));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static KafkaConsumer<String, String> member(String group, String... pairs) {
        List<String> all = new ArrayList<>(List.of("group.id", group));
        all.addAll(List.of(pairs));
        return consumer(all.toArray(new String[0]));
    }

    /** A consumer of one partition, without a group. */
    static KafkaConsumer<String, String> reader(String topic, int partition) {
        var consumer = consumer();
        consumer.assign(List.of(new TopicPartition(topic, partition)));
        return consumer;
    }

    static List<ConsumerRecord<String, String>> receive(
            KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long deadlineMs = System.currentTimeMillis() + LIMIT_MS;
        while (records.size() < count) {
            check(System.currentTimeMillis() < deadlineMs, records.size() + " of " + count);
            consumer.poll(Duration.ofMillis(500)).forEach(records::add);
        }
        checkEqual(count, records.size());
        return records;
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).collect(Collectors.toList());
    }

    static void checkDelayed(ConsumerRecord<String, String> record, long sentMs, Long dueMs) {
        long acceptedMs = number(record, "x-accepted-at");
        long dueHeaderMs = number(record, "x-due-at");
        check(acceptedMs >= sentMs, acceptedMs + " before " + sentMs);
        // A delay counts from the end of the millisecond in which the record was accepted.
        long roundedMs = dueMs == null && dueHeaderMs == acceptedMs + 301 ? 1 : 0;
        checkEqual(dueMs == null ? acceptedMs + 300 + roundedMs : dueMs, dueHeaderMs);
        check(System.currentTimeMillis() >= dueHeaderMs, "delivered too early");
    }

    private static long number(ConsumerRecord<String, String> record, String header) {
        return Long.parseLong(new String(record.headers().lastHeader(header).value()));
    }

    private Client() {}
}
