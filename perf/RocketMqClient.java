/*
 * RocketMQ's own client, for perf/rivals.py. It runs as `java -cp JARS RocketMqClient.java NAMESRV
 * BROKER`, reads commands from standard input and answers each on standard output:
 *
 *   topic NAME                  makes a topic of four queues: "done"
 *   schedule NAME COUNT         then COUNT lines with due times in us: "scheduled ACKNOWLEDGED"
 *   take NAME                   "done"; from then on "got DUE_US NOW_US" for each message
 *   pending                     "pending COUNT", by the slots of the broker's time wheel
 *
 * What goes wrong ends the process, with the reason on standard error.
 */
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Instant;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

public class RocketMqClient {
        static final int RECORD_BYTES = 200;
        static final int QUEUES = 4;
        static final int IN_FLIGHT = 8000;
        static final int PREFETCHED = 60000;

        static final PrintStream out = new PrintStream(System.out, false);
        static final BufferedReader in = new BufferedReader(new InputStreamReader(System.in));

        static long nowUs() {
                Instant now = Instant.now();
                return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
        }

        static void say(String line) {
                synchronized (out) {
                        out.println(line);
                        out.flush();
                }
        }

        static void schedule(DefaultMQProducer producer, String topic, int count) throws Exception {
                Semaphore free = new Semaphore(IN_FLIGHT);
                AtomicInteger acknowledged = new AtomicInteger();
                SendCallback note = new SendCallback() {
                        public void onSuccess(SendResult result) {
                                if (result.getSendStatus() == SendStatus.SEND_OK)
                                        acknowledged.incrementAndGet();
                                free.release();
                        }
                        public void onException(Throwable error) {
                                System.err.println(error);
                                free.release();
                        }
                };
                for (int number = 0; number < count; number++) {
                        long dueUs = Long.parseLong(in.readLine());
                        ByteBuffer body = ByteBuffer.allocate(RECORD_BYTES);
                        body.order(ByteOrder.LITTLE_ENDIAN).putLong(dueUs).putLong(number);
                        Message message = new Message(topic, body.array());
                        message.setDeliverTimeMs(dueUs / 1000);
                        free.acquire();
                        producer.send(message, note);
                }
                free.acquire(IN_FLIGHT);
                say("scheduled " + acknowledged.get());
        }

        static void take(String nameServer, String topic) throws Exception {
                DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + topic);
                consumer.setNamesrvAddr(nameServer);
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                consumer.setPullThresholdForQueue(PREFETCHED);
                consumer.setPullBatchSize(1000);
                consumer.setConsumeMessageBatchMaxSize(1000);
                consumer.subscribe(topic, "*");
                MessageListenerConcurrently listener = (messages, context) -> {
                        StringBuilder lines = new StringBuilder();
                        long at = nowUs();
                        for (Message each : messages) {
                                ByteBuffer body = ByteBuffer.wrap(each.getBody());
                                long due = body.order(ByteOrder.LITTLE_ENDIAN).getLong();
                                lines.append("got " + due + " " + at + "\n");
                        }
                        synchronized (out) {
                                out.print(lines);
                                out.flush();
                        }
                        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                };
                consumer.registerMessageListener(listener);
                consumer.start();
                say("done");
        }

        public static void main(String[] arguments) throws Exception {
                String nameServer = arguments[0], broker = arguments[1];
                DefaultMQAdminExt admin = new DefaultMQAdminExt();
                admin.setNamesrvAddr(nameServer);
                admin.setInstanceName("admin");
                admin.start();
                DefaultMQProducer producer = new DefaultMQProducer("bench");
                producer.setNamesrvAddr(nameServer);
                producer.setSendMsgTimeout(60_000);
                producer.start();
                admin.fetchBrokerRuntimeStats(broker);
                say("ready");
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                        String[] words = line.split(" ");
                        switch (words[0]) {
                        case "topic":
                                TopicConfig config = new TopicConfig(words[1], QUEUES, QUEUES);
                                admin.createAndUpdateTopicConfig(broker, config);
                                say("done");
                                break;
                        case "schedule":
                                schedule(producer, words[1], Integer.parseInt(words[2]));
                                break;
                        case "take":
                                take(nameServer, words[1]);
                                break;
                        default:
                                say("pending "
                                    + admin.fetchBrokerRuntimeStats(broker).getTable().get(
                                        "timerCongestNum"));
                        }
                }
                System.exit(0);
        }
}
