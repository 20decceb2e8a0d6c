/* All workloads in Kafka Streams, exactly-once, one commit a second, one thread. Java runs this file as it is. */

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

public class Streams {
    @JsonIgnoreProperties(ignoreUnknown = true)
    record Payment(long id, String account, long amount, long at, String note) {}

    record Doubled(long id, String account, long amount, String note, long twice) {}

    record Total(String account, long total) {}

    record WindowTotal(String account, long start, long end, long total) {}

    static final ObjectMapper JSON = new ObjectMapper();

    static <T> Serde<T> json(Class<T> type) {
        Serializer<T> write = (topic, value) -> {
            try {
                return JSON.writeValueAsBytes(value);
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        };
        Deserializer<T> read = (topic, data) -> {
            try {
                return JSON.readValue(data, type);
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        };
        return Serdes.serdeFrom(write, read);
    }

    public static void main(String[] arguments) {
        Map<String, String> env = System.getenv();
        String output = env.get("BENCH_OUTPUT");
        Properties settings = new Properties();
        settings.put("application.id", "streams-" + output);
        settings.put("bootstrap.servers", env.get("BENCH_BOOTSTRAP"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", 1000);
        settings.put("num.stream.threads", 1);
        settings.put("replication.factor", 1);
        settings.put("state.dir", env.get("BENCH_DIRECTORY"));
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.max.poll.records", 5000);
        settings.put("producer.compression.type", "lz4");
        settings.put("producer.linger.ms", 20);
        settings.put("producer.batch.size", 262144);
        settings.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0); // else the last windows wait for ever

        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, Payment> read = Consumed.with(Serdes.String(), json(Payment.class));
        String workload = env.get("BENCH_WORKLOAD");
        if (workload.equals("W4")) {
            read = read.withTimestampExtractor((ConsumerRecord<Object, Object> r, long p) -> ((Payment) r.value()).at());
        }
        KStream<String, Payment> payments = builder.stream(env.get("BENCH_INPUT"), read);
        switch (workload) {
            case "W1" -> payments.filter((key, payment) -> payment.amount() % 10 != 7)
                .mapValues(p -> new Doubled(p.id(), p.account(), p.amount(), p.note(), 2 * p.amount()))
                .to(output, Produced.with(Serdes.String(), json(Doubled.class)));
            case "W2" -> payments.groupByKey(Grouped.with(Serdes.String(), json(Payment.class)))
                .aggregate(() -> 0L, (key, payment, sum) -> sum + payment.amount(),
                    Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("totals")
                        .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()).withCachingDisabled())
                .toStream().map((key, total) -> new KeyValue<>(key, new Total(key, total)))
                .to(output, Produced.with(Serdes.String(), json(Total.class)));
            case "W4" -> payments.groupByKey(Grouped.with(Serdes.String(), json(Payment.class)))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(5), Duration.ofMinutes(1)))
                .emitStrategy(EmitStrategy.onWindowClose())
                .aggregate(() -> 0L, (key, payment, sum) -> sum + payment.amount(),
                    Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("totals")
                        .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream().map((at, total) -> new KeyValue<>(at.key(),
                    new WindowTotal(at.key(), at.window().start(), at.window().end(), total)))
                .to(output, Produced.with(Serdes.String(), json(WindowTotal.class)));
            default -> throw new IllegalArgumentException(workload);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
        streams.start();
    }
}
