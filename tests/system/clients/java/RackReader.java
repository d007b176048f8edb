import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a partition from its begin with `client.rack`: java RackReader ADDRESS TOPIC COUNT RACK
 *
 * <p>Ends when it has COUNT records, and writes how many bytes their values have.
 */
public final class RackReader {
    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[2]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.rack", arguments[3]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        long size = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partition = List.of(new TopicPartition(arguments[1], 0));
            consumer.assign(partition);
            consumer.seekToBeginning(partition);
            while (count > 0) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                for (var each : records) {
                    count--;
                    size += each.value().length;
                }
            }
        }
        System.out.println(size);
    }
}
