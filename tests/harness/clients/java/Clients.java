import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.MappingIterator;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own clients: `produce` and `consume`, by a script as that of the Go clients; `partitions` tells where keys go. */
public class Clients {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] words) throws Exception {
        MappingIterator<JsonNode> script = JSON.readerFor(JsonNode.class).readValues(System.in);
        JsonNode said = script.next();
        switch (words[0]) {
            case "produce" -> produce(said, script);
            case "consume" -> consume(said);
            case "partitions" -> partitions(said, script);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static byte[] bytes(JsonNode node) throws Exception {
        return node == null || node.isNull() ? null : node.binaryValue();
    }

    private static Properties common(JsonNode said) {
        Properties found = new Properties();
        found.put("bootstrap.servers", said.get("bootstrap").asText());
        for (var names = said.path("more").fields(); names.hasNext();) {
            var one = names.next();
            found.put(one.getKey(), one.getValue().asText());
        }
        return found;
    }

    private static void produce(JsonNode said, MappingIterator<JsonNode> script) throws Exception {
        Properties settings = common(said);
        String codec = said.path("codec").asText("none");
        settings.put("compression.type", codec);
        if (said.hasNonNull("level") && List.of("gzip", "lz4", "zstd").contains(codec)) {
            settings.put("compression." + codec + ".level", said.get("level").asText());
        }
        boolean transactional = !said.path("transactional").asText("").isEmpty();
        boolean idempotent = transactional || said.path("idempotent").asBoolean();
        settings.put("enable.idempotence", Boolean.toString(idempotent));
        settings.put("acks", idempotent ? "all" : said.path("acks").asText("all"));
        settings.put("linger.ms", "20");
        if (said.path("batch_bytes").asInt() > 0) {
            settings.put("batch.size", said.get("batch_bytes").asText());
        }
        settings.put("max.request.size", Integer.toString(16 << 20));
        if (transactional) {
            settings.put("transactional.id", said.get("transactional").asText());
            settings.put("transaction.timeout.ms", said.path("timeout_ms").asText("60000"));
        }
        int each = said.path("batch_records").asInt();
        int sent = 0;
        var serializer = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, serializer, serializer)) {
            if (transactional) {
                producer.initTransactions();
            }
            while (script.hasNext()) {
                JsonNode one = script.next();
                switch (one.path("do").asText("")) {
                    case "begin" -> producer.beginTransaction();
                    case "commit" -> producer.commitTransaction();
                    case "abort" -> producer.abortTransaction();
                    case "flush" -> producer.flush();
                    default -> {
                        List<Header> headers = new ArrayList<>();
                        for (JsonNode h : one.path("h")) {
                            headers.add(new RecordHeader(new String(h.get("n").binaryValue(), StandardCharsets.UTF_8), bytes(h.get("v"))));
                        }
                        Long time = one.hasNonNull("t") ? one.get("t").asLong() : null;
                        producer.send(
                            new ProducerRecord<>(said.get("topic").asText(), one.get("p").asInt(), time, bytes(one.get("k")), bytes(one.get("v")), headers),
                            (at, error) -> {
                                if (error != null) {
                                    System.err.println(error);
                                }
                            });
                        if (each > 0 && ++sent % each == 0) {
                            producer.flush();
                        }
                    }
                }
            }
            producer.flush();
        }
    }

    private static void consume(JsonNode said) throws Exception {
        Properties settings = common(said);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        var deserializer = new ByteArrayDeserializer();
        var out = new PrintStream(new BufferedOutputStream(System.out, 1 << 20));
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, deserializer, deserializer)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int i = 0; i < said.get("ends").size(); i++) {
                partitions.add(new TopicPartition(said.get("topic").asText(), i));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    ObjectNode one = JSON.createObjectNode();
                    one.put("p", r.partition()).put("o", r.offset()).put("t", r.timestamp()).put("k", r.key()).put("v", r.value());
                    ArrayNode headers = one.putArray("h");
                    for (Header h : r.headers()) {
                        headers.addObject().put("n", h.key().getBytes(StandardCharsets.UTF_8)).put("v", h.value());
                    }
                    out.println(one);
                }
                boolean done = true;
                for (int i = 0; i < partitions.size(); i++) {
                    done &= consumer.position(partitions.get(i)) >= said.get("ends").get(i).asLong();
                }
                if (done) {
                    break;
                }
            }
        }
        out.flush();
    }

    private static void partitions(JsonNode said, MappingIterator<JsonNode> script) throws Exception {
        int count = said.get("partitions").asInt();
        while (script.hasNext()) {
            byte[] key = bytes(script.next().get("k"));
            System.out.println(org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey(key, count));
        }
    }
}
