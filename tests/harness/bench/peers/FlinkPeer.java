import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** Flink, exactly once, in one process: BOOTSTRAP SOURCE TARGET SHAPE PARALLELISM CHECKPOINT_MS. */
public class FlinkPeer {
    static final ObjectMapper JSON = new ObjectMapper();

    @JsonIgnoreProperties(ignoreUnknown = true)
    public static class Event {
        public String key;
        public long ts;
        public long amount;
    }

    public static class Doubled {
        public String key;
        public long ts, amount;

        @com.fasterxml.jackson.annotation.JsonProperty("double")
        public long twice;
    }

    public static class Row {
        public String key;
        public long start, n, total;
    }

    public static class Pair {
        public long n, total;
    }

    public static class Reading<T> implements DeserializationSchema<T> {
        final Class<T> type;

        Reading(Class<T> type) {
            this.type = type;
        }

        @Override
        public T deserialize(byte[] data) throws IOException {
            return JSON.readValue(data, type);
        }

        @Override
        public boolean isEndOfStream(T next) {
            return false;
        }

        @Override
        public TypeInformation<T> getProducedType() {
            return TypeInformation.of(type);
        }
    }

    static <T> KafkaSource<T> source(String bootstrap, String topic, Class<T> type) {
        return KafkaSource.<T>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(topic)
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new Reading<T>(type))
            .build();
    }

    public static class Writing<T> implements SerializationSchema<T> {
        @Override
        public byte[] serialize(T value) {
            try {
                return JSON.writeValueAsBytes(value);
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        }
    }

    public static class Counting implements AggregateFunction<Event, Pair, Pair> {
        @Override
        public Pair createAccumulator() {
            return new Pair();
        }

        @Override
        public Pair add(Event event, Pair pair) {
            pair.n += 1;
            pair.total += event.amount;
            return pair;
        }

        @Override
        public Pair getResult(Pair pair) {
            return pair;
        }

        @Override
        public Pair merge(Pair one, Pair other) {
            one.n += other.n;
            one.total += other.total;
            return one;
        }
    }

    public static class Shown extends ProcessWindowFunction<Pair, Row, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<Pair> pairs, Collector<Row> out) {
            Pair pair = pairs.iterator().next();
            Row row = new Row();
            row.key = key;
            row.start = context.window().getStart();
            row.n = pair.n;
            row.total = pair.total;
            out.collect(row);
        }
    }

    static <T> KafkaSink<T> sink(String bootstrap, String target) {
        Properties settings = new Properties();
        settings.put("transaction.timeout.ms", "600000");
        return KafkaSink.<T>builder()
            .setBootstrapServers(bootstrap)
            .setKafkaProducerConfig(settings)
            .setRecordSerializer(
                KafkaRecordSerializationSchema.<T>builder().setTopic(target).setValueSerializationSchema(new Writing<T>()).build())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("peer-" + target)
            .build();
    }

    public static class Paired extends ProcessJoinFunction<Event, Event, Event> {
        @Override
        public void processElement(Event left, Event right, Context context, Collector<Event> out) {
            Event made = new Event();
            made.key = left.key;
            made.ts = left.ts;
            made.amount = right.amount;
            out.collect(made);
        }
    }

    public static void main(String[] given) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(
            Integer.parseInt(given[4]), new Configuration());
        environment.enableCheckpointing(Long.parseLong(given[5]));
        environment.getConfig().enableObjectReuse();
        if (given[3].equals("map-1k")) {
            environment.fromSource(source(given[0], given[1], ObjectNode.class), WatermarkStrategy.noWatermarks(), "documents")
                .map(document -> document.put("double", 2 * document.get("amount").asLong()))
                .returns(ObjectNode.class)
                .sinkTo(sink(given[0], given[2]));
            environment.execute("peer");
            return;
        }
        WatermarkStrategy<Event> marks = WatermarkStrategy.<Event>forBoundedOutOfOrderness(Duration.ofSeconds(5))
            .withTimestampAssigner((event, before) -> event.ts);
        DataStream<Event> read = environment.fromSource(source(given[0], given[1], Event.class), marks, "events");
        if (given[3].equals("map")) {
            read.map(event -> {
                Doubled made = new Doubled();
                made.key = event.key;
                made.ts = event.ts;
                made.amount = event.amount;
                made.twice = 2 * event.amount;
                return made;
            }).returns(Doubled.class).sinkTo(sink(given[0], given[2]));
        } else {
            Duration minute = Duration.ofMinutes(1);
            WindowAssigner<Object, TimeWindow> windows = given[3].equals("hop")
                ? SlidingEventTimeWindows.of(minute, Duration.ofSeconds(10))
                : TumblingEventTimeWindows.of(minute);
            DataStream<Event> counted = read;
            if (given[3].equals("join")) {
                counted = read.keyBy(event -> event.key)
                    .intervalJoin(environment.fromSource(source(given[0], given[1], Event.class), marks, "again")
                        .keyBy(event -> event.key))
                    .between(Duration.ofSeconds(-1), Duration.ZERO)
                    .process(new Paired());
            }
            counted.keyBy(event -> event.key)
                .window(windows)
                .aggregate(new Counting(), new Shown())
                .sinkTo(sink(given[0], given[2]));
        }
        environment.execute("peer");
    }
}
