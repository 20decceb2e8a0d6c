from pyflink.table import EnvironmentSettings, TableEnvironment

env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
env.get_config().set("execution.checkpointing.interval", "10 s")
env.execute_sql("""
    CREATE TABLE orders (
        `user` STRING,
        amount BIGINT,
        status STRING
    ) WITH (
        'connector' = 'kafka', 'topic' = 'orders', 'format' = 'json',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.group.id' = 'paid-orders',
        'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'group-offsets',
        'properties.auto.offset.reset' = 'earliest'
    )
""")
env.execute_sql("""
    CREATE TABLE paid (
        `user` STRING,
        amount BIGINT
    ) WITH (
        'connector' = 'kafka', 'topic' = 'paid', 'key.format' = 'raw', 'key.fields' = 'user',
        'value.format' = 'json', 'properties.bootstrap.servers' = 'localhost:9092',
        'properties.transaction.timeout.ms' = '900000',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'paid'
    )
""")
env.execute_sql("INSERT INTO paid SELECT `user`, amount FROM orders WHERE status = 'paid'").wait()
