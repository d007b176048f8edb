import static java.util.stream.Collectors.toList;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** Producing, consuming without a group, and delays. */
final class RecordFeatures {
    static void addTo(Map<String, Suite.Feature> features) {
        features.put("auto_create", RecordFeatures::autoCreate);
        features.put("acks_0", name -> withAcks(name, "0"));
        features.put("acks_1", name -> withAcks(name, "1"));
        features.put("acks_all", name -> withAcks(name, "all"));
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            features.put("codec_" + codec, name -> withCodec(name, codec));
        }
        features.put("headers", RecordFeatures::headers);
        features.put("idempotent", RecordFeatures::idempotent);
        features.put("delay", RecordFeatures::delay);
        features.put("deliver_at", RecordFeatures::deliverAt);
        features.put("cancel", RecordFeatures::cancel);
        features.put("replace", RecordFeatures::replace);
        features.put("bad_delay", RecordFeatures::badDelay);
        features.put("assign", RecordFeatures::assign);
        features.put("seek", RecordFeatures::seek);
        features.put("gaps", RecordFeatures::gaps);
        features.put("wait", RecordFeatures::waitForDelayed);
        features.put("ends", RecordFeatures::ends);
        features.put("offsets_by_time", RecordFeatures::offsetsByTime);
    }

    private static String[] numbers(int count) {
        return IntStream.range(0, count).mapToObj(Integer::toString).toArray(String[]::new);
    }

    private static void autoCreate(String name) throws Exception {
        Client.sendValues(name, "first");
        Client.checkEqual(4, Client.partitionCount(name));
    }

    private static void withAcks(String name, String acks) throws Exception {
        Client.create(name, 1);
        var records = List.of(Client.record(name, 0, "one"), Client.record(name, 0, "two"));
        Client.send(records, "acks", acks, "enable.idempotence", "false");
        try (var consumer = Client.reader(name, 0)) {
            Client.checkEqual(List.of("one", "two"), Client.values(Client.receive(consumer, 2)));
        }
    }

    private static void withCodec(String name, String codec) throws Exception {
        Client.create(name, 1);
        List<String> values = Arrays.stream(numbers(100))
                .map(number -> ("value " + number + " ").repeat(50)).collect(toList());
        var records = values.stream().map(value -> Client.record(name, 0, value)).collect(toList());
        List<RecordMetadata> answers = Client.send(records, "compression.type", codec);
        Client.checkEqual(99L, answers.get(99).offset());
        try (var consumer = Client.reader(name, 0)) {
            Client.checkEqual(values, Client.values(Client.receive(consumer, 100)));
        }
    }

    private static void headers(String name) throws Exception {
        Client.create(name, 1);
        var record = Client.record(name, 0, "value", "a", "1");
        record.headers().add("b", new byte[] {0, (byte) 255}).add("a", new byte[0]);
        Client.send(List.of(record));
        try (var consumer = Client.reader(name, 0)) {
            List<String> found = new ArrayList<>();
            for (Header header : Client.receive(consumer, 1).get(0).headers()) {
                found.add(header.key() + "=" + Arrays.toString(header.value()));
            }
            Client.checkEqual(List.of("a=[49]", "b=[0, -1]", "a=[]"), found);
        }
    }

    private static void idempotent(String name) throws Exception {
        Client.create(name, 1);
        List<ProducerRecord<String, String>> records = Arrays.stream(numbers(1_000))
                .map(value -> Client.record(name, 0, value)).collect(toList());
        // So it is by default; small batches make many of them.
        Client.send(records, "batch.size", "500", "linger.ms", "1");
        try (var consumer = Client.reader(name, 0)) {
            List<String> found = new ArrayList<>();
            while (found.size() < 1_000) {
                var some = consumer.poll(Duration.ofMillis(Client.LIMIT_MS));
                Client.check(!some.isEmpty(), found.size());
                some.forEach(record -> found.add(record.value()));
            }
            Client.checkEqual(List.of(numbers(1_000)), found);
        }
    }

    private static void delay(String name) throws Exception {
        Client.create(name, 1);
        long sentMs = System.currentTimeMillis();
        List<RecordMetadata> answers = Client.send(List.of(
                Client.record(name, 0, "late", "a", "1", "x-delay", "300ms"),
                Client.record(name, 0, "now")));
        // It was written as one batch, of which nobody knows the offsets yet.
        Client.check(!answers.get(0).hasOffset(), answers);
        try (var consumer = Client.consumer()) {
            consumer.assign(List.of(new TopicPartition(name, 0)));
            var records = Client.receive(consumer, 2);
            Client.checkEqual(List.of("now", "late"), Client.values(records));
            Client.checkDelayed(records.get(1), sentMs, null);
        }
    }

    private static void deliverAt(String name) throws Exception {
        Client.create(name, 1);
        long sentMs = System.currentTimeMillis();
        long dueMs = sentMs + 400;
        Client.send(List.of(Client.record(name, 0, "late", "x-deliver-at", "" + dueMs)));
        try (var consumer = Client.reader(name, 0)) {
            Client.checkDelayed(Client.receive(consumer, 1).get(0), sentMs, dueMs);
        }
    }

    private static void cancel(String name) throws Exception {
        Client.create(name, 1);
        Client.send(List.of(
                Client.record(name, 0, "cancelled", "x-delay", "500ms", "x-deliver-id", "one"),
                Client.record(name, 0, "", "x-deliver-cancel", "one"),
                Client.record(name, 0, "end", "x-delay", "700ms")));
        try (var consumer = Client.reader(name, 0)) {
            Client.checkEqual(List.of("end"), Client.values(Client.receive(consumer, 1)));
        }
    }

    private static void replace(String name) throws Exception {
        Client.create(name, 1);
        Client.send(List.of(
                Client.record(name, 0, "old", "x-delay", "400ms", "x-deliver-id", "one"),
                Client.record(name, 0, "new", "x-delay", "500ms", "x-deliver-id", "one"),
                Client.record(name, 0, "end", "x-delay", "700ms")));
        try (var consumer = Client.reader(name, 0)) {
            Client.checkEqual(List.of("new", "end"), Client.values(Client.receive(consumer, 2)));
        }
    }

    private static void badDelay(String name) throws Exception {
        Client.create(name, 1);
        var bad = List.of(Client.record(name, 0, "bad", "x-delay", "soon"));
        Client.checkThrows(InvalidRecordException.class, ignored -> Client.send(bad));
    }

    private static void assign(String name) throws Exception {
        Client.create(name, 2);
        Client.send(List.of(Client.record(name, 0, "0"), Client.record(name, 1, "1")));
        try (var consumer = Client.consumer()) {
            consumer.assign(List.of(new TopicPartition(name, 0), new TopicPartition(name, 1)));
            var found = Client.values(Client.receive(consumer, 2));
            Client.checkEqual(List.of("0", "1"), found.stream().sorted().collect(toList()));
        }
    }

    private static void seek(String name) throws Exception {
        Client.create(name, 1);
        Client.sendValues(name, numbers(10));
        try (var consumer = Client.reader(name, 0)) {
            Client.receive(consumer, 10);
            consumer.seek(new TopicPartition(name, 0), 7);
            Client.checkEqual(List.of("7", "8", "9"), Client.values(Client.receive(consumer, 3)));
        }
    }

    /** The topic is there already: tests/support/gap_scene.py. Empty batches close its gaps. */
    private static void gaps(String name) throws Exception {
        long end = 1_009;
        TopicPartition one = new TopicPartition(name, 0);
        try (var consumer = Client.consumer("auto.offset.reset", "none")) {
            consumer.assign(List.of(one));
            consumer.seek(one, 0);
            var found = Client.receive(consumer, 4);
            Client.checkEqual(List.of("a", "b", "c", "d"), Client.values(found));
            Client.checkEqual(7L, found.get(2).offset());
            long deadlineMs = System.currentTimeMillis() + Client.LIMIT_MS;
            while (consumer.position(one) < end) {
                Client.check(System.currentTimeMillis() < deadlineMs, consumer.position(one));
                Client.check(consumer.poll(Duration.ofMillis(100)).isEmpty(), "of the gap");
            }
            Client.sendValues(name, "after");
            for (long start : new long[] {end, 9, 500}) {
                consumer.seek(one, start);
                var after = Client.receive(consumer, 1).get(0);
                Client.checkEqual(end, after.offset());
                Client.checkEqual("after", after.value());
                Client.checkEqual(end + 1, consumer.position(one));
            }
        }
    }

    private static void waitForDelayed(String name) throws Exception {
        Client.create(name, 1);
        try (var consumer = Client.reader(name, 0)) {
            Client.check(consumer.poll(Duration.ofMillis(300)).isEmpty(), "there is nothing yet");
            long sentMs = System.currentTimeMillis();
            Client.send(List.of(Client.record(name, 0, "late", "x-delay", "300ms")));
            Client.checkEqual(List.of("late"), Client.values(Client.receive(consumer, 1)));
            Client.check(System.currentTimeMillis() - sentMs >= 300, "too early");
        }
    }

    private static void ends(String name) throws Exception {
        Client.create(name, 1);
        Client.sendValues(name, "one", "two");
        TopicPartition one = new TopicPartition(name, 0);
        try (var consumer = Client.consumer()) {
            Client.checkEqual(Map.of(one, 0L), consumer.beginningOffsets(List.of(one)));
            Client.checkEqual(Map.of(one, 2L), consumer.endOffsets(List.of(one)));
        }
    }

    private static void offsetsByTime(String name) throws Exception {
        Client.create(name, 1);
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (int index = 0; index < 5; index++) {
            long timeMs = Client.TIME_MS + 1_000 * index;
            records.add(new ProducerRecord<>(name, 0, timeMs, null, "x"));
        }
        Client.send(records);
        TopicPartition one = new TopicPartition(name, 0);
        try (var consumer = Client.consumer()) {
            var found = consumer.offsetsForTimes(Map.of(one, Client.TIME_MS + 2_500)).get(one);
            Client.checkEqual(3L, found.offset());
            Client.checkEqual(Client.TIME_MS + 3_000, found.timestamp());
            var none = consumer.offsetsForTimes(Map.of(one, Client.TIME_MS + 9_000)).get(one);
            Client.checkEqual(null, none);
        }
    }

    private RecordFeatures() {}
}
