from pyflink.table import EnvironmentSettings, TableEnvironment

env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
env.get_config().set("execution.checkpointing.interval", "10 s")
env.execute_sql("""
    CREATE TABLE purchases (
        `user` STRING,
        amount BIGINT
    ) WITH (
        'connector' = 'kafka', 'topic' = 'purchases', 'format' = 'json',
        'properties.bootstrap.servers' = 'localhost:9092', 'properties.group.id' = 'totals',
        'properties.isolation.level' = 'read_committed', 'scan.startup.mode' = 'group-offsets',
        'properties.auto.offset.reset' = 'earliest'
    )
""")
env.execute_sql("""
    CREATE TABLE totals (
        `user` STRING PRIMARY KEY NOT ENFORCED,
        total BIGINT
    ) WITH (
        'connector' = 'jdbc', 'url' = 'jdbc:postgresql://localhost/shop', 'table-name' = 'totals',
        'username' = 'shop'
    )
""")
env.execute_sql("INSERT INTO totals SELECT `user`, SUM(amount) FROM purchases GROUP BY `user`").wait()
