"""What each query must put out: the same in Spark SQL, over the records that are in the topics of the input.

Rule: nothing of the pipelines is used here, but the names of the fields that they put out.

Tables: ``person``, ``auction``, ``bid``. ``{closed}`` is how far event time has come: what is over by then is put out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]

TABLES: Final[Mapping[str, str]] = {
    "person": "id long, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime long, extra string",
    "auction": "id long, itemName string, description string, initialBid long, reserve long, dateTime long, "
    "expires long, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, dateTime long, extra string",
}
"""The topic of each has its name and an s."""

_WON = """
    SELECT * FROM (
        SELECT A.*, B.bidder, B.price, B.channel, B.url, B.dateTime AS bidDateTime, B.extra AS bidExtra,
            ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime, B.bidder) AS place
        FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
        WHERE A.expires <= {closed}
    ) WHERE place = 1
"""


@dataclass(frozen=True)
class Query:
    """``key``: of a query whose rows replace each other, the fields by which they do; then the last ones count.

    ``rows``: how many there must be in all, if each input row makes one.
    """

    sql: str
    key: tuple[str, ...] = ()
    rows: str | None = None


QUERIES: Final[Mapping[str, Query]] = {
    "q0": Query("SELECT auction, bidder, price, dateTime, extra FROM bid"),
    "q1": Query("SELECT auction, bidder, 0.908D * price AS price, dateTime, extra FROM bid"),
    "q2": Query("SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"),
    "q3": Query(
        """
        SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
        """
    ),
    "q4": Query(
        f"SELECT category, COUNT(*) AS auctions, AVG(price) AS average FROM ({_WON}) GROUP BY category",
        key=("category",),
        rows=f"SELECT COUNT(*) FROM ({_WON})",
    ),
    "q5": Query(
        """
        SELECT auction, start, end, bids FROM (
            SELECT *, MAX(bids) OVER (PARTITION BY end) AS most FROM (
                SELECT auction, UNIX_MILLIS(window.start) AS start, UNIX_MILLIS(window.end) AS end, COUNT(*) AS bids
                FROM bid GROUP BY auction, WINDOW(TIMESTAMP_MILLIS(dateTime), '10 seconds', '2 seconds')
            )
        ) WHERE bids = most AND end <= {closed}
        """
    ),
    "q6": Query(
        f"""
        SELECT seller, id AS auction, AVG(price) OVER (
            PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS average FROM ({_WON})
        """
    ),
    "q7": Query(
        """
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra FROM bid B JOIN (
            SELECT MAX(price) AS most, dateTime DIV 10000 AS place FROM bid GROUP BY dateTime DIV 10000
        ) M ON B.price = M.most AND B.dateTime DIV 10000 = M.place
        WHERE (M.place + 1) * 10000 <= {closed}
        """
    ),
    "q8": Query(
        """
        SELECT DISTINCT P.id, P.name, P.dateTime DIV 10000 * 10000 AS start FROM person P JOIN auction A
        ON P.id = A.seller AND P.dateTime DIV 10000 = A.dateTime DIV 10000
        WHERE (P.dateTime DIV 10000 + 1) * 10000 <= {closed}
        """
    ),
    "q9": Query(
        f"""
        SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            bidder, price, channel, url, bidDateTime, bidExtra FROM ({_WON})
        """
    ),
    "q11": Query(
        """
        SELECT bidder, MIN(dateTime) AS start, MAX(dateTime) + 10000 AS end, COUNT(*) AS bids FROM (
            SELECT *, SUM(begins) OVER (PARTITION BY bidder ORDER BY dateTime) AS visit FROM (
                SELECT bidder, dateTime, IF(
                    dateTime - LAG(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime) < 10000, 0, 1
                ) AS begins FROM bid
            )
        ) GROUP BY bidder, visit HAVING MAX(dateTime) + 10000 <= {closed}
        """
    ),
    "q12": Query("SELECT bidder, COUNT(*) AS bids FROM bid GROUP BY bidder", key=("bidder",)),
    "q18": Query(
        """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC) AS place
            FROM bid
        ) WHERE place = 1
        """,
        key=("bidder", "auction"),
        rows="SELECT COUNT(*) FROM bid",
    ),
    "q19": Query(
        """
        SELECT auction, TRANSFORM(SORT_ARRAY(COLLECT_LIST(STRUCT(place, bid))), one -> one.bid) AS bids FROM (
            SELECT auction, STRUCT(*) AS bid,
                ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, bidder) AS place
            FROM bid
        ) WHERE place <= 10 GROUP BY auction
        """,
        key=("auction",),
    ),
    "q20": Query(
        """
        SELECT B.*, A.itemName, A.description, A.initialBid, A.reserve, A.dateTime AS auctionDateTime, A.expires,
            A.seller, A.category, A.extra AS auctionExtra
        FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10
        """
    ),
}


class Expected:
    """What the queries make of the topics whose names begin with ``prefix``, by a Spark session."""

    def __init__(self, spark: Any, bootstrap: str, prefix: str) -> None:
        self._spark = spark
        self._known: dict[tuple[str, int], tuple[list[Row], int | None]] = {}
        for table, fields in TABLES.items():
            read = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
            records = read.option("subscribe", f"{prefix}{table}s").option("startingOffsets", "earliest").load()
            rows = records.selectExpr(f"FROM_JSON(CAST(value AS STRING), '{fields}') AS row").select("row.*")
            rows.cache().createOrReplaceTempView(table)

    def difference(self, name: str, closed: int, found: Sequence[Row]) -> str | None:
        """None if the rows of an output, those of a partition in their order, are what they must be.

        ``closed``: how far event time has come, in ms.
        """
        if name == "q12":
            found = by_the_clock(found)
        if (name, closed) not in self._known:
            self._known[name, closed] = self._computed(QUERIES[name], closed)
        wanted, count = self._known[name, closed]
        if count is not None and len(found) != count:
            return f"{name}: {len(found)} rows instead of {count}"
        return different(name, QUERIES[name].key, found, wanted)

    def _computed(self, query: Query, closed: int) -> tuple[list[Row], int | None]:
        """In any order; of rows that replace each other the last ones, and how many there were in all."""
        answer = self._spark.sql(f"SELECT TO_JSON(STRUCT(*)) FROM ({query.sql.format(closed=closed)})").collect()
        count = None if query.rows is None else self._spark.sql(query.rows.format(closed=closed)).first()[0]
        return [json.loads(row[0]) for row in answer], count


def different(name: str, key: Sequence[str], found: Sequence[Row], wanted: Sequence[Row]) -> str | None:
    """The first few rows that only one of both has."""
    if key:
        found = list({tuple(row[each] for each in key): row for row in found}.values())
    if not wanted:
        return f"{name}: nothing is wanted, so nothing is compared"
    got, due = _counted(found), _counted(wanted)
    if got == due:
        return None
    more, less = list((got - due).elements()), list((due - got).elements())
    return f"{name}: {len(more)} rows too many, such as {more[:2]}; {len(less)} are missing, such as {less[:2]}"


def _counted(rows: Sequence[Row]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def by_the_clock(rows: Sequence[Row]) -> list[Row]:
    """q12: which window a bid is in the clock decides; the sum over windows, of which each is there once, is known."""
    windows = Counter((row["bidder"], row["start"]) for row in rows)
    if doubled := [window for window, times in windows.items() if times > 1]:
        raise ValueError(f"q12: windows {doubled[:3]} are there twice")
    sums: Counter[int] = Counter()
    for row in rows:
        sums[row["bidder"]] += row["bids"]
    return [{"bidder": bidder, "bids": bids} for bidder, bids in sums.items()]
