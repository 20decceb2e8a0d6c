"""Which decided epochs count."""

import pytest

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.lineage import lineage


def e(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def test_history_follows_the_bases_and_skips_what_was_replaced() -> None:
    manifests = [e(0, 1), e(1, 1), e(2, 1), e(2, 2), e(3, 2), e(4, 2), e(4, 3)]
    bases = {Term(1): None, Term(2): e(1, 1), Term(3): e(3, 2)}

    assert lineage(manifests, bases) == (e(0, 1), e(1, 1), e(2, 2), e(3, 2), e(4, 3))


def test_a_manifest_of_a_term_without_a_base_does_not_count() -> None:
    assert lineage([e(0, 1), e(9, 2)], {Term(1): None}) == (e(0, 1),)


@pytest.mark.parametrize("base", [e(1, 2), e(1, 3)])
def test_a_base_that_points_to_its_own_term_or_forward_is_a_bug(base: EpochId) -> None:
    with pytest.raises(Bug, match=f"term 2 claims to resume from {base}, which is not before it"):
        lineage([], {Term(2): base})
