"""Running totals per account to Kafka and to receivers over HTTP: HttpSink, a sender of the app's own, or both."""

import json
import os
import urllib.request
from collections.abc import Sequence

from running_totals import Total, running_totals

from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.idempotent import IdempotentSink, Receiver, Row
from kafka_eos.connectors.kafka import KafkaSink

TIMEOUT = float(os.environ.get("TEST_TIMEOUT", "30"))
URL, OUTBOX, ROWS = os.environ["TEST_URL"], os.environ["TEST_OUTBOX"], int(os.environ.get("TEST_ROWS", "1"))


class Own(Receiver):
    """It sends arrays, each row with its key."""

    name = "receiver of the test"

    def send(self, rows: Sequence[Row]) -> None:
        body = json.dumps([{"id": row.key, "value": json.loads(row.value)} for row in rows]).encode()
        url = os.environ.get("TEST_OTHER_URL", URL)
        request = urllib.request.Request(url, body, {"Idempotency-Key": rows[0].key}, method="POST")
        urllib.request.urlopen(request, timeout=TIMEOUT).close()


class Exits(Receiver):
    """A thread that it ends is not the job."""

    name = "receiver that exits"

    def send(self, rows: Sequence[Row]) -> None:
        raise SystemExit("enough")


OWN = {"own": Own, "exits": Exits}

pipeline, totals = running_totals()
totals.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="to-kafka")
sender = os.environ.get("TEST_SENDER", "http")
if sender in OWN:
    totals.sink(IdempotentSink(OWN[sender](), outbox=OUTBOX, value=Total, batch=ROWS), name="to-service")
else:
    totals.sink(HttpSink(URL, outbox=OUTBOX, value=Total, batch=ROWS, timeout=TIMEOUT), name="to-service")
if sender == "both":
    totals.sink(IdempotentSink(Own(), outbox=f"{OUTBOX}-other", value=Total, batch=ROWS), name="to-other")

if __name__ == "__main__":
    pipeline.run()
