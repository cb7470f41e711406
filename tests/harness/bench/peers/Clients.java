import java.io.BufferedOutputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.SplittableRandom;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What stands around a measurement: an ordinary producer (its defaults, and a linger), and a consumer of committed records.
 *
 * produce BOOTSTRAP TOPIC PARTITIONS LINGER_MS RECORD_BYTES FILE: the records of a file, to partitions drawn at random with a seed;
 * consume BOOTSTRAP TOPIC PARTITIONS FILE: the values of a topic up to its end, a line each.
 */
public class Clients {
    public static void main(String[] given) throws Exception {
        if (given[0].equals("produce")) {
            produce(given[1], given[2], Integer.parseInt(given[3]), given[4], Integer.parseInt(given[5]), Path.of(given[6]));
        } else {
            consume(given[1], given[2], Integer.parseInt(given[3]), Path.of(given[4]));
        }
    }

    static void produce(String bootstrap, String topic, int partitions, String linger, int bytes, Path file) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", linger);
        settings.put("acks", "1");
        SplittableRandom draw = new SplittableRandom(7);
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, plain, plain);
                FileChannel read = FileChannel.open(file, StandardOpenOption.READ)) {
            ByteBuffer chunk = ByteBuffer.allocate(bytes * 10_000);
            while (read.read(chunk) >= 0 || chunk.position() > 0) {
                chunk.flip();
                while (chunk.remaining() >= bytes) {
                    byte[] value = new byte[bytes];
                    chunk.get(value);
                    producer.send(new ProducerRecord<>(topic, draw.nextInt(partitions), null, value), (done, error) -> {
                        if (error != null) {
                            error.printStackTrace();
                            System.exit(1);
                        }
                    });
                }
                chunk.compact();
            }
        }
    }

    static void consume(String bootstrap, String topic, int partitions, Path file) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        List<TopicPartition> places = new ArrayList<>();
        for (int number = 0; number < partitions; number++) places.add(new TopicPartition(topic, number));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, plain, plain);
                OutputStream out = new BufferedOutputStream(Files.newOutputStream(file), 1 << 20)) {
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            while (places.stream().anyMatch(place -> consumer.position(place) < ends.get(place))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    out.write(record.value());
                    out.write('\n');
                }
            }
        }
    }
}
