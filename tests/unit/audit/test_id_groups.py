"""When a group of ids agrees, and what the sizes of groups say about ids."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import xor

import pytest

from kafka_eos.audit.topics.id_groups import GROUPS, IdGroup, estimate_inputs_per_id

A, B, C = 0x1111_2222_3333_4444, -0x0123_4567_89AB_CDEF, 7


def group(inputs: Sequence[int], outputs: Sequence[int]) -> IdGroup:
    """The group of these hashes, which Spark has as signed numbers."""
    sums, xors = [sum(side) % 2**64 for side in (inputs, outputs)], [reduce(xor, side, 0) for side in (inputs, outputs)]
    return IdGroup(0, len(inputs), len(outputs), (sums[0], sums[1]), (xors[0], xors[1]))


@pytest.mark.parametrize(
    ("inputs", "outputs", "copies", "agrees"),
    [
        ([A, B], [B, A], 1, True),
        ([A, A, B], [A, B, A], 1, True),
        ([], [], 1, True),
        ([A, B], [A, B, B, A], 2, True),
        ([A, B, C], [A, B, C, A, B, C, A, B, C], 3, True),
        ([A, B], [A], 1, False),
        ([A], [A, A], 1, False),
        ([], [A], 1, False),
        ([A, B], [A, A], 1, False),
        ([A, B], [A, C], 1, False),
        ([A, B], [A, A, A, B], 2, False),
        ([A, 3, 5], [A, 4, 4], 1, False),
    ],
)
def test_a_group_agrees_if_each_input_has_its_outputs(
    inputs: list[int], outputs: list[int], copies: int, agrees: bool
) -> None:
    """Of the last one the numbers and the sums agree."""
    assert agrees is group(inputs, outputs).agrees(copies)


@pytest.mark.parametrize(("ids", "each"), [(1, 1000), (20, 50), (10_000, 2), (100_000, 3)])
def test_ids_of_several_inputs_are_noticed(ids: int, each: int) -> None:
    estimate = estimate_inputs_per_id(sized([random.Random(n).getrandbits(64) for n in range(ids)] * each))

    assert estimate == pytest.approx(each, rel=0.1)


@pytest.mark.parametrize("ids", [0, 1, 2, 24, 1_000, 100_000])
def test_unique_ids_are_no_finding(ids: int) -> None:
    assert estimate_inputs_per_id(sized([random.Random(n).getrandbits(64) for n in range(ids)])) is None


def sized(hashes: Sequence[int]) -> list[IdGroup]:
    sizes = Counter(each % GROUPS for each in hashes)
    return [IdGroup(number, size, 0, (0, 0), (0, 0)) for number, size in sizes.items()]
