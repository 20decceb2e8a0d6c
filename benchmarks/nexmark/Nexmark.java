/*
 * q1, q5, q7 and q8 in Kafka Streams, exactly-once, five commits a second, one thread. Java runs this file as it is.
 *
 * q5 and q7 look at all auctions: a first step has results of each auction when a window is over, a second one, in one
 * partition, picks the greatest and puts it out whenever it has changed, and q8 what is known of a window whenever that has
 * changed: partitions are not read in step, no watermark tells when all have come, and Streams drops what is late.
 */

import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
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
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

public class Nexmark {
    interface Timed {
        long dateTime();
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Person(long id, String name, String emailAddress, String creditCard, String city, String state,
        long dateTime, String extra) implements Timed {}

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Auction(long id, String itemName, String description, long initialBid, long reserve, long dateTime,
        long expires, long seller, long category, String extra) implements Timed {}

    @JsonIgnoreProperties(ignoreUnknown = true)
    record Bid(long auction, long bidder, long price, String channel, String url, long dateTime,
        String extra) implements Timed {}

    record Converted(long auction, long bidder, double price, long dateTime, String extra) {}

    record Passed(long auction, long bidder, long price, long dateTime, String extra) {}

    record Best(long start, List<Passed> bids) {}

    record Hot(long auction, long start, long end, long bids) {}

    record Hottest(long start, List<Hot> auctions) {}

    record Seen(String name, boolean sells) {}

    record NewSeller(long id, String name, long start) {}

    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration TEN = Duration.ofSeconds(10);
    static final Duration TWO = Duration.ofSeconds(2);
    static final Duration DISORDER = Duration.ofMillis(500);
    static final Duration LONG = Duration.ofDays(10);

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
                return data == null ? null : JSON.readValue(data, type);
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        };
        return Serdes.serdeFrom(write, read);
    }

    static <T extends Timed> KStream<String, T> read(StreamsBuilder builder, String kind, Class<T> type) {
        return builder.stream(System.getenv("NEXMARK_INPUTS") + kind, Consumed.with(Serdes.String(), json(type))
            .withTimestampExtractor((ConsumerRecord<Object, Object> r, long before) -> ((Timed) r.value()).dateTime()));
    }

    static <K, V> Materialized<K, V, WindowStore<Bytes, byte[]>> windows(String name, Serde<K> keys, Serde<V> values) {
        return Materialized.<K, V, WindowStore<Bytes, byte[]>>as(name).withKeySerde(keys).withValueSerde(values);
    }

    static <V> Materialized<Long, V, KeyValueStore<Bytes, byte[]>> table(String name, Serde<V> values) {
        return Materialized.<Long, V, KeyValueStore<Bytes, byte[]>>as(name).withKeySerde(Serdes.Long())
            .withValueSerde(values);
    }

    static <T> List<T> and(List<T> some, List<T> more) {
        List<T> all = new ArrayList<>(some);
        all.addAll(more);
        return all;
    }

    static Best better(Best one, Best other) {
        if (one.bids().isEmpty()) return other;
        long difference = other.bids().get(0).price() - one.bids().get(0).price();
        return difference < 0 ? one : difference > 0 ? other : new Best(one.start(), and(one.bids(), other.bids()));
    }

    static Hottest hotter(Hottest one, Hottest other) {
        if (one.auctions().isEmpty()) return other;
        long difference = other.auctions().get(0).bids() - one.auctions().get(0).bids();
        return difference < 0 ? one : difference > 0 ? other : new Hottest(one.start(), and(one.auctions(), other.auctions()));
    }

    static void q1(StreamsBuilder builder, String output) {
        read(builder, "bids", Bid.class)
            .mapValues(b -> new Converted(b.auction(), b.bidder(), 0.908 * b.price(), b.dateTime(), b.extra()))
            .to(output, Produced.with(Serdes.String(), json(Converted.class)));
    }

    static void q5(StreamsBuilder builder, String output) {
        read(builder, "bids", Bid.class).groupByKey(Grouped.with(Serdes.String(), json(Bid.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN, DISORDER).advanceBy(TWO))
            .emitStrategy(EmitStrategy.onWindowClose())
            .count(windows("counts", Serdes.String(), Serdes.Long()))
            .toStream()
            .map((at, bids) -> new KeyValue<>(at.window().start(), new Hottest(at.window().start(), List.of(
                new Hot(Long.parseLong(at.key()), at.window().start(), at.window().end(), bids)))))
            .repartition(Repartitioned.with(Serdes.Long(), json(Hottest.class)).withNumberOfPartitions(1))
            .groupByKey(Grouped.with(Serdes.Long(), json(Hottest.class)))
            .reduce(Nexmark::hotter, table("hottest", json(Hottest.class)))
            .toStream().selectKey((start, most) -> start.toString())
            .to(output, Produced.with(Serdes.String(), json(Hottest.class)));
    }

    static void q7(StreamsBuilder builder, String output) {
        read(builder, "bids", Bid.class).groupByKey(Grouped.with(Serdes.String(), json(Bid.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN, DISORDER))
            .emitStrategy(EmitStrategy.onWindowClose())
            .aggregate(() -> new Best(0, List.of()), (key, b, best) -> better(best, new Best(
                b.dateTime() / 10000 * 10000,
                List.of(new Passed(b.auction(), b.bidder(), b.price(), b.dateTime(), b.extra())))),
                windows("best", Serdes.String(), json(Best.class)))
            .toStream()
            .map((at, best) -> new KeyValue<>(at.window().start(), best))
            .repartition(Repartitioned.with(Serdes.Long(), json(Best.class)).withNumberOfPartitions(1))
            .groupByKey(Grouped.with(Serdes.Long(), json(Best.class)))
            .reduce(Nexmark::better, table("highest", json(Best.class)))
            .toStream().selectKey((start, best) -> start.toString())
            .to(output, Produced.with(Serdes.String(), json(Best.class)));
    }

    static void q8(StreamsBuilder builder, String output) {
        KStream<String, Seen> sellers = read(builder, "auctions", Auction.class)
            .map((key, auction) -> new KeyValue<>(Long.toString(auction.seller()), new Seen(null, true)))
            .repartition(Repartitioned.with(Serdes.String(), json(Seen.class)).withNumberOfPartitions(4));
        read(builder, "persons", Person.class).mapValues(person -> new Seen(person.name(), false)).merge(sellers)
            .groupByKey(Grouped.with(Serdes.String(), json(Seen.class)))
            .windowedBy(TimeWindows.ofSizeAndGrace(TEN, LONG))
            .aggregate(() -> new Seen(null, false), (key, one, so) -> new Seen(
                one.name() == null ? so.name() : one.name(), one.sells() || so.sells()),
                windows("seen", Serdes.String(), json(Seen.class)))
            .toStream()
            .filter((at, seen) -> seen.sells() && seen.name() != null)
            .map((at, seen) -> new KeyValue<>(at.key(),
                new NewSeller(Long.parseLong(at.key()), seen.name(), at.window().start())))
            .to(output, Produced.with(Serdes.String(), json(NewSeller.class)));
    }

    public static void main(String[] arguments) {
        Map<String, String> env = System.getenv();
        Properties settings = new Properties();
        settings.put("application.id", env.get("NEXMARK_JOB"));
        settings.put("bootstrap.servers", env.get("BENCH_BOOTSTRAP"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", 200);
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
        String query = env.get("NEXMARK_QUERIES"), output = env.get("NEXMARK_OUTPUTS") + query;
        switch (query) {
            case "q1" -> q1(builder, output);
            case "q5" -> q5(builder, output);
            case "q7" -> q7(builder, output);
            case "q8" -> q8(builder, output);
            default -> throw new IllegalArgumentException(query);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(5))));
        streams.start();
    }
}
