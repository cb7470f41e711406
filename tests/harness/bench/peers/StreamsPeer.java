import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;

/** Kafka Streams, exactly once: BOOTSTRAP SOURCE TARGET SHAPE THREADS COMMIT_MS STATE_FOLDER. Windows give an update at each commit. */
public class StreamsPeer {
    static final ObjectMapper JSON = new ObjectMapper();

    @JsonIgnoreProperties(ignoreUnknown = true)
    public static class Event {
        public String key;
        public long ts;
        public long amount;
    }

    public static class Doubled extends Event {
        @com.fasterxml.jackson.annotation.JsonProperty("double")
        public long twice;
    }

    public static class Row {
        public String key;
        public long start, n, total;
    }

    static <T> T read(byte[] data, Class<T> type) {
        try {
            return JSON.readValue(data, type);
        } catch (java.io.IOException error) {
            throw new RuntimeException(error);
        }
    }

    static byte[] write(Object value) {
        try {
            return JSON.writeValueAsBytes(value);
        } catch (java.io.IOException error) {
            throw new RuntimeException(error);
        }
    }

    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer-" + given[2]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, given[4]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, given[5]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[6]);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        Serde<byte[]> bytes = Serdes.ByteArray();
        Serde<Event> events = Serdes.serdeFrom((topic, value) -> write(value), (topic, data) -> read(data, Event.class));
        StreamsBuilder builder = new StreamsBuilder();
        if (given[3].equals("map-1k")) {
            builder.stream(given[1], Consumed.with(bytes, bytes))
                .mapValues(data -> {
                    ObjectNode document = read(data, ObjectNode.class);
                    return write(document.put("double", 2 * document.get("amount").asLong()));
                })
                .to(given[2], Produced.with(bytes, bytes));
            run(builder, settings);
        }
        KStream<byte[], Event> read = builder.stream(
            given[1],
            Consumed.with(bytes, events).withTimestampExtractor((record, before) -> ((Event) record.value()).ts));
        if (given[3].equals("map")) {
            read.mapValues(event -> {
                Doubled made = new Doubled();
                made.key = event.key;
                made.ts = event.ts;
                made.amount = event.amount;
                made.twice = 2 * event.amount;
                return write(made);
            }).to(given[2], Produced.with(bytes, bytes));
        } else {
            TimeWindows windows = TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofDays(1));
            if (given[3].equals("hop")) windows = windows.advanceBy(Duration.ofSeconds(10));
            Serde<long[]> sums = Serdes.serdeFrom(
                (topic, pair) -> pair == null ? null : ByteBuffer.allocate(16).putLong(pair[0]).putLong(pair[1]).array(),
                (topic, data) -> {
                    if (data == null) return null;
                    ByteBuffer whole = ByteBuffer.wrap(data);
                    return new long[] {whole.getLong(), whole.getLong()};
                });
            Serde<Long> amounts = Serdes.Long();
            read.map((none, event) -> KeyValue.pair(event.key, event.amount))
                .groupByKey(Grouped.with(Serdes.String(), amounts))
                .windowedBy(windows)
                .aggregate(
                    () -> new long[2],
                    (key, amount, pair) -> new long[] {pair[0] + 1, pair[1] + amount},
                    Materialized.with(Serdes.String(), sums))
                .toStream()
                .map((window, pair) -> {
                    Row row = new Row();
                    row.key = window.key();
                    row.start = window.window().start();
                    row.n = pair[0];
                    row.total = pair[1];
                    return KeyValue.pair(row.key.getBytes(), write(row));
                })
                .to(given[2], Produced.with(bytes, bytes));
        }
        run(builder, settings);
    }

    /** Until it is ended. */
    static void run(StreamsBuilder builder, Properties settings) throws InterruptedException {
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        while (streams.state() != KafkaStreams.State.ERROR) Thread.sleep(500);
        System.exit(1);
    }
}
