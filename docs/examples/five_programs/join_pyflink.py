from pyflink.table import EnvironmentSettings, TableEnvironment

env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
env.get_config().set("execution.checkpointing.interval", "10 s")
env.execute_sql("""
    CREATE TABLE orders (
        `order` STRING,
        total BIGINT,
        `at` BIGINT,
        event_time AS TO_TIMESTAMP_LTZ(`at`, 3),
        WATERMARK FOR event_time AS event_time - INTERVAL '1' MINUTE
    ) WITH (
        'connector' = 'kafka', 'topic' = 'orders', 'format' = 'json',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.group.id' = 'paid',
        'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'group-offsets',
        'properties.auto.offset.reset' = 'earliest'
    )
""")
env.execute_sql("""
    CREATE TABLE payments (
        `order` STRING,
        amount BIGINT,
        `at` BIGINT,
        event_time AS TO_TIMESTAMP_LTZ(`at`, 3),
        WATERMARK FOR event_time AS event_time - INTERVAL '1' MINUTE
    ) WITH (
        'connector' = 'kafka', 'topic' = 'payments', 'format' = 'json',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.group.id' = 'paid',
        'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'group-offsets',
        'properties.auto.offset.reset' = 'earliest'
    )
""")
env.execute_sql("""
    CREATE TABLE paid (
        `order` STRING,
        total BIGINT,
        amount BIGINT
    ) WITH (
        'connector' = 'kafka', 'topic' = 'paid', 'key.format' = 'raw', 'key.fields' = 'order',
        'value.format' = 'json', 'properties.bootstrap.servers' = 'localhost:9092',
        'properties.transaction.timeout.ms' = '900000',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'paid'
    )
""")
env.execute_sql("""
    INSERT INTO paid
    SELECT o.`order`, o.total, p.amount
    FROM orders AS o JOIN payments AS p ON o.`order` = p.`order`
    AND p.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '10' MINUTE
""").wait()
