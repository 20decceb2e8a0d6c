"""Clicks, cleaned and enriched: topic ``clicks`` in, topic ``visits`` out, bad records to ``clicks-refused``."""

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter


class Click(msgspec.Struct, frozen=True):
    user: str
    url: str
    country: str


class Visit(msgspec.Struct, frozen=True):
    user: str
    page: str
    region: str


REGIONS = {"de": "eu", "fr": "eu", "us": "na", "ca": "na"}


def enrich(click: Click) -> Visit:
    """A country that has no region is a KeyError: the click is written aside, with the reason."""
    return Visit(click.user, click.url.partition("?")[0], REGIONS[click.country])


pipeline = Pipeline("enrich-clicks")
(
    pipeline.source(KafkaSource("clicks", value=Click), name="clicks", on_error=dead_letter("clicks-refused"))
    .filter(lambda click: not click.url.startswith("/health"), name="drop-health-checks")
    .map(enrich, name="enrich")
    .sink(KafkaSink("visits", value=Visit, key=lambda visit: visit.user), name="visits")
)

if __name__ == "__main__":
    pipeline.run()
