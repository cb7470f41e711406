import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/** Kafka Streams as a producer, exactly once: counts of each key as JSON, and tombstones for keys that end with 3. */
public class Counting {
    public static void main(String[] words) throws Exception {
        Properties settings = new Properties();
        settings.put("application.id", "counting-" + words[2]);
        settings.put("bootstrap.servers", words[0]);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", "1");
        settings.put("state.dir", words[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("commit.interval.ms", "100");
        var strings = Serdes.String();
        var builder = new StreamsBuilder();
        KStream<String, String> counts = builder.stream(words[1], Consumed.with(strings, strings))
            .groupByKey(Grouped.with(strings, strings)).count().toStream()
            .mapValues((key, n) -> key.endsWith("3") ? null : "{\"n\": " + n + ", \"key\": \"" + key + "\"}");
        counts.to(words[2], Produced.with(strings, strings));
        var streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        System.in.read();
        streams.close();
    }
}
