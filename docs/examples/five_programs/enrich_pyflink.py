from pyflink.table import EnvironmentSettings, TableEnvironment

env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
env.get_config().set("execution.checkpointing.interval", "10 s")
env.execute_sql("""
    CREATE TABLE orders (
        customer STRING,
        total BIGINT,
        event_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
        WATERMARK FOR event_time AS event_time
    ) WITH (
        'connector' = 'kafka', 'topic' = 'orders', 'format' = 'json',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.group.id' = 'prices',
        'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'group-offsets',
        'properties.auto.offset.reset' = 'earliest'
    )
""")
env.execute_sql("""
    CREATE TABLE customers (
        customer STRING PRIMARY KEY NOT ENFORCED,
        level STRING,
        event_time TIMESTAMP_LTZ(3) METADATA FROM 'timestamp',
        WATERMARK FOR event_time AS event_time
    ) WITH (
        'connector' = 'upsert-kafka', 'topic' = 'customers', 'key.format' = 'raw',
        'value.format' = 'json', 'value.fields-include' = 'EXCEPT_KEY',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.isolation.level' = 'read_committed'
    )
""")
env.execute_sql("""
    CREATE TABLE priced (
        customer STRING,
        total BIGINT,
        level STRING
    ) WITH (
        'connector' = 'kafka', 'topic' = 'priced', 'key.format' = 'raw', 'key.fields' = 'customer',
        'value.format' = 'json', 'properties.bootstrap.servers' = 'localhost:9092',
        'properties.transaction.timeout.ms' = '900000',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'priced'
    )
""")
env.execute_sql("""
    INSERT INTO priced
    SELECT o.customer, o.total, c.level
    FROM orders AS o JOIN customers FOR SYSTEM_TIME AS OF o.event_time AS c ON o.customer = c.customer
""").wait()
