import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A worker: RetryWorker ADDRESS TOPIC GROUP COUNT work|crash. work.py says what it does. */
final class RetryWorker {
    private static final long LIMIT_MS = 60_000;
    private static final int CRASHED = 3;

    private static String hex(byte[] octets) {
        return octets == null ? "null" : '"' + HexFormat.of().formatHex(octets) + '"';
    }

    private static int number(ConsumerRecord<byte[], byte[]> record, String name) {
        var header = record.headers().lastHeader(name);
        return header == null
                ? 0 : Integer.parseInt(new String(header.value(), StandardCharsets.US_ASCII));
    }

    private static void handle(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (var header : record.headers()) {
            headers.add("[\"" + header.key() + "\", " + hex(header.value()) + "]");
        }
        System.out.printf(
                "{\"place\": [\"%s\", %d, %d], \"key\": %s, \"value\": %s, \"headers\": %s}%n",
                record.topic(), record.partition(), record.offset(),
                hex(record.key()), hex(record.value()), headers);
        int attempt = number(record, "x-retry-attempt");
        if (attempt < number(record, "fails")) {
            throw new IllegalStateException("attempt " + attempt + " \u2713 " + ".".repeat(2_000));
        }
    }

    @SuppressWarnings("unchecked")
    private static Consumer<byte[], byte[]> crashingConsumer() {
        return (Consumer<byte[], byte[]>) Proxy.newProxyInstance(
                RetryWorker.class.getClassLoader(), new Class<?>[] {Consumer.class},
                (proxy, method, values) -> {
                    throw new Crash();
                });
    }

    private static final class Crash extends Error {}

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0], topic = arguments[1], group = arguments[2];
        int left = Integer.parseInt(arguments[3]);
        Map<String, Object> reading = Map.of(
                "bootstrap.servers", address,
                "group.id", group,
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false");
        Map<String, Object> writing = Map.of("bootstrap.servers", address);
        var octets = new ByteArraySerializer();
        var decoder = new ByteArrayDeserializer();
        try (var producer = new KafkaProducer<>(writing, octets, octets);
                var consumer = new KafkaConsumer<>(reading, decoder, decoder)) {
            consumer.subscribe(List.of(topic, group + ".retry"));
            Consumer<byte[], byte[]> committing =
                    arguments[4].equals("crash") ? crashingConsumer() : consumer;
            long deadlineMs = System.currentTimeMillis() + LIMIT_MS;
            while (left > 0 && System.currentTimeMillis() < deadlineMs) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    Retry.handleOrRetry(
                            committing, producer, group, record, RetryWorker::handle);
                    left -= 1;
                }
            }
        } catch (Crash crash) {
            System.exit(CRASHED);
        }
    }

    private RetryWorker() {}
}
