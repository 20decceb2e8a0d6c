from pyflink.table import EnvironmentSettings, TableEnvironment

env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
env.get_config().set("execution.checkpointing.interval", "10 s")
env.execute_sql("""
    CREATE TABLE sales (
        `user` STRING,
        amount BIGINT,
        `at` BIGINT,
        event_time AS TO_TIMESTAMP_LTZ(`at`, 3),
        WATERMARK FOR event_time AS event_time - INTERVAL '1' MINUTE
    ) WITH (
        'connector' = 'kafka', 'topic' = 'sales', 'format' = 'json',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.group.id' = 'totals',
        'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'group-offsets',
        'properties.auto.offset.reset' = 'earliest'
    )
""")
env.execute_sql("""
    CREATE TABLE totals (
        `user` STRING,
        `start` TIMESTAMP(3),
        `end` TIMESTAMP(3),
        amount BIGINT
    ) WITH (
        'connector' = 'kafka', 'topic' = 'totals', 'key.format' = 'raw', 'key.fields' = 'user',
        'value.format' = 'json', 'properties.bootstrap.servers' = 'localhost:9092',
        'properties.transaction.timeout.ms' = '900000',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'totals'
    )
""")
env.execute_sql("""
    INSERT INTO totals
    SELECT `user`, window_start, window_end, SUM(amount)
    FROM TABLE(TUMBLE(TABLE sales, DESCRIPTOR(event_time), INTERVAL '5' MINUTES))
    GROUP BY `user`, window_start, window_end
""").wait()
