"""``exactly_once_kafka``: any Structured Streaming query, written to Kafka exactly once.

Rule: a setting that could break exactly-once output is refused before the query starts, with the change to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafka_eos._util import failpoints
from kafka_eos._util.failpoints import hit
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.access_rights import writes
from kafka_eos.connectors.kafka.client.cluster import Cluster, checked, resolve_cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.cluster_limits import (
    TransactionNeeds,
    check_topic,
    check_transactions,
    transaction_timeout_ms,
)
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.connectors.kafka.sink.kafka_sink import milliseconds
from kafka_eos.connectors.kafka.topic_formats import topic_name
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.core.durations import Seconds
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.protocol.commit import COMMIT_MARGIN
from kafka_eos.spark.session import check, check_python, refuse_mixed_attempts
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.record_signatures import share_keys
from kafka_eos.structured_streaming.background_commits import BatchCommitter
from kafka_eos.structured_streaming.batch_ledger import BatchLedger
from kafka_eos.structured_streaming.batch_writer import MicroBatchWriter
from kafka_eos.structured_streaming.columns import project_columns
from kafka_eos.structured_streaming.partition_writer import BatchSpec
from kafka_eos.structured_streaming.query import ExactlyOnceQuery
from kafka_eos.structured_streaming.spark_checkpoint import OURS, local_path, lock_jvm, open_checkpoint
from kafka_eos.structured_streaming.transaction_recovery import (
    RecoveredQuery,
    TransactionResolver,
    claim_term,
    log,
    recover,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAME: Final = "spark"
_TRIGGERS: Final = ("processingTime", "availableNow", "once")


def exactly_once_kafka(
    df: DataFrame,
    *,
    topic: str | None = None,
    bootstrap_servers: str,
    checkpoint: str | Path,
    name: str | None = None,
    output_mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    transaction_timeout: Seconds | None = None,
    config: Mapping[str, Any] | None = None,
    adopt: bool = False,
    checkpoint_key_file: str | Path | None = None,
) -> ExactlyOnceQuery:
    """Start the streaming query ``df`` and write its rows to Kafka, each exactly once. Returns when it runs.

    ``df``          a streaming DataFrame with the columns of Spark's Kafka sink: value, and optionally key, topic,
                    partition, headers, and timestamp
    ``topic``       the target topic; None: each row's column ``topic``
    ``checkpoint``  Spark's checkpointLocation, any path that Spark accepts; the sink stores its records there
    ``name``        the name of the query, with which its transactional ids begin (letters, digits, ``-``, ``_``);
                    default "spark"
    ``output_mode`` append, update or complete
    ``trigger``     as for ``DataStreamWriter.trigger``, e.g. {"processingTime": "1 second"}, {"availableNow": True}
    ``transaction_timeout``  the longest outage of the driver that loses nothing, seconds or timedelta; default: one
                    hour, or the brokers' ``transaction.max.timeout.ms`` if that is less
    ``config``      librdkafka settings of the producers: SASL, TLS, compression …
    ``adopt``       continue after a batch that another sink wrote into this checkpoint
    ``checkpoint_key_file``  keys that sign the sink's records in the checkpoint; the same for all queries of a program

    Raises ConfigError for what cannot be exactly once, JobLocked if another process of this host runs the query,
    CommittableLost if output that Spark decided before is gone. The executors need kafka-eos installed.
    """
    _check(df, checkpoint, trigger)
    share_keys(_keys_outside(checkpoint, checkpoint_key_file))
    if (armed := failpoints.armed_script()) is not None:
        log.warning("%s", failpoints.ARMED.format(script=armed))
    rows = project_columns(df, None if topic is None else topic_name(topic))
    where = resolve_cluster(bootstrap_servers, checked(config), JobContext(name or _NAME, Term(0), {}))
    check_python(df.sparkSession)
    notices, timeout_ms = _limits(where, topic, milliseconds(transaction_timeout))
    with ExitStack() as opening:
        settling, recovered = _take_over_query(df.sparkSession, opening, str(checkpoint), name or _NAME, where, adopt)
        job, term = settling.ctx.job, settling.ctx.term.n
        batch_committer = BatchCommitter(settling, recovered, opening.pop_all().close)
    batch = MicroBatchWriter(lambda n: BatchSpec(job, term, n, where, timeout_ms, topic), settling, batch_committer)
    writer = rows.writeStream.foreachBatch(batch).outputMode(output_mode).queryName(name or job)
    writer = writer.option("checkpointLocation", str(checkpoint))
    with batch_committer.close_unless_started():
        query = (writer.trigger(**trigger) if trigger else writer).start()
    return ExactlyOnceQuery(query, job, notices, batch, batch_committer)


def _check(df: DataFrame, checkpoint: str | Path, trigger: Mapping[str, Any] | None) -> None:
    """Raise ConfigError for a query that cannot be written exactly once."""
    check(df.sparkSession)
    refuse_mixed_attempts(df.sparkSession.conf.get)
    if not df.isStreaming:
        raise ConfigError("the DataFrame is not a stream: use spark.readStream.")
    if not str(checkpoint).strip():
        raise ConfigError("checkpoint=… is required: recovery needs Spark's checkpoint.")
    for kind in trigger or {}:
        if kind not in _TRIGGERS:
            raise ConfigError(
                f"trigger={{{kind!r}: …}} is not supported: only micro-batches are decided one by one. Use "
                "processingTime or availableNow."
            )


def _keys_outside(checkpoint: str | Path, keys: str | Path | None) -> Path | None:
    """Return the file with the keys. Raise ConfigError if it is in the checkpoint."""
    if keys is None:
        return None
    if Path(keys).resolve().is_relative_to(Path(str(checkpoint).removeprefix("file:")).resolve()):
        raise ConfigError(
            f"checkpoint_key_file: {keys} is in the checkpoint {checkpoint}, whose records its keys protect: move it "
            "to a directory that others cannot write to"
        )
    return Path(keys)


def _limits(where: Cluster, topic: str | None, wanted: int | None) -> tuple[tuple[str, ...], int]:
    """Check the topic and the transaction limits. Return notices, and the transaction timeout in milliseconds."""
    with KafkaRequests(where) as rpc:
        notices = [] if topic is None else check_topic(rpc, topic, [writes(topic)])
        notices += check_transactions(rpc, wanted, TransactionNeeds(margin=int(COMMIT_MARGIN * 1000)))
        for notice in notices:
            log.info("%s", notice)
        return tuple(notices), transaction_timeout_ms(rpc, wanted)


def _take_over_query(
    spark: SparkSession, opening: ExitStack, checkpoint: str, name: str, where: Cluster, adopt: bool
) -> tuple[TransactionResolver, RecoveredQuery]:
    """Resolve what earlier drivers left, and own the query. What it holds goes to ``opening``."""
    local = local_path(spark, checkpoint)
    storage, decisions = open_checkpoint(spark, checkpoint, local)
    if local is not None:
        opening.enter_context(job_lock(local / OURS / paths.LOCK, name))
        opening.enter_context(lock_jvm(spark, local / OURS / paths.JVM_LOCK, name))
        LocalStorage(local / OURS).prepare_run()
    ledger = BatchLedger(storage, name)
    first = JobContext(ledger.job, Term(0), {})
    with closing(KafkaCommitter(where, first)) as looking:
        term = claim_term(ledger, looking)
    ctx = JobContext(ledger.job, term, {})
    committer = KafkaCommitter(where, ctx)
    opening.callback(committer.close)
    settling = TransactionResolver(ctx, ledger, decisions, committer, checkpoint)
    recovered = recover(settling, adopt=adopt, alone=local is not None)
    hit("micro-batch.recovered")
    log.info("query %s: term %s begins after batch %s", ctx.job, term, recovered.newest)
    return settling, recovered
