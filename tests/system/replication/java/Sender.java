import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends 0, 1, 2, ... to partition 0 with the default settings of the client, until its standard
 * input ends. Prints how many are acknowledged, again and again, and at last "sent" and how many.
 */
final class Sender {
    private static final long PAUSE_MS = 2;
    private static final long REPORT_EACH = 50;

    private Sender() {}

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        AtomicLong acknowledged = new AtomicLong();
        AtomicReference<Exception> failure = new AtomicReference<>();
        long count = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            while (System.in.available() == 0 && failure.get() == null) {
                String value = Long.toString(count++);
                producer.send(
                        new ProducerRecord<>(arguments[1], 0, null, value),
                        (metadata, error) -> {
                            if (error != null) {
                                failure.compareAndSet(null, error);
                            } else if (acknowledged.incrementAndGet() % REPORT_EACH == 0) {
                                System.out.println(acknowledged.get());
                            }
                        });
                Thread.sleep(PAUSE_MS);
            }
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        System.out.println("sent " + count);
    }
}
