"""The orders of a demo."""

from __future__ import annotations

import json

from kafka_eos.devtools.demo.demo import USERS, orders


def test_the_same_seed_makes_the_same_orders() -> None:
    assert list(orders(3, 500)) == list(orders(3, 500))


def test_another_seed_makes_other_orders() -> None:
    assert list(orders(3, 500)) != list(orders(4, 500))


def test_fewer_orders_are_the_beginning_of_more() -> None:
    assert list(orders(3, 500))[:100] == list(orders(3, 100))


def test_an_order_is_keyed_by_its_user() -> None:
    assert all(json.loads(order.value or b"")["user"].encode() == order.key for _, order in orders(1, 500))


def test_about_ninety_of_a_hundred_are_paid_and_most_users_order() -> None:
    made = [json.loads(order.value or b"") for _, order in orders(1, 20_000)]

    assert 0.88 < sum(order["status"] == "paid" for order in made) / len(made) < 0.92
    assert USERS * 0.95 < len({order["user"] for order in made}) <= USERS
