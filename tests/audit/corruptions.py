"""What can be wrong with an output: one function each, which spoils a right list of outputs.

Each corruption has a topic (or a directory) of its own, all written by sinks of one pipeline, so that a single audit
judges all of them. Rule: a corruption says what the audit must find, and how often; anything else is a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kafka_eos.audit import Check
from kafka_eos.core.provenance import HEADER
from tests.audit.output_records import OWN, Out

Outs = list[Out]


@dataclass(frozen=True)
class Corruption:
    """``spoil`` gets the right outputs and returns what is visible; ``hide`` what is there but aborted."""

    name: str
    finds: Mapping[Check, int]
    spoil: Callable[[Outs], Outs]
    hide: Callable[[Outs], Outs] = lambda _: []


CORRUPTIONS: list[Corruption] = []


def corruption(**finds: int) -> Callable[[Callable[[Outs], Outs]], Callable[[Outs], Outs]]:
    """Add to the catalogue; the keywords are names of checks."""

    def add(spoil: Callable[[Outs], Outs]) -> Callable[[Outs], Outs]:
        checks = {Check[check.upper()]: count for check, count in finds.items()}
        CORRUPTIONS.append(Corruption(spoil.__name__.replace("_", "-"), checks, spoil))
        return spoil

    return add


def nth(outs: Outs, key: str, number: int) -> int:
    """Where the ``number``-th output of ``key`` is."""
    return [i for i, o in enumerate(outs) if o.key == key][number - 1]


def changed(outs: Outs, i: int, **fields: object) -> Outs:
    return [replace(o, **fields) if j == i else o for j, o in enumerate(outs)]  # type: ignore[arg-type]


def without(outs: Outs, *gone: int) -> Outs:
    return [o for i, o in enumerate(outs) if i not in gone]


def told(o: Out, attempt: str) -> str:
    """The provenance of ``o`` as another attempt of the job writes it: its term and epoch."""
    assert o.text is not None
    return f"{OWN}.{attempt}/{o.text.split('/', 1)[1]}"


# ---------------------------------------------------------------- nothing


@corruption()
def clean(outs: Outs) -> Outs:
    return outs


@corruption()
def other_keys_in_between(outs: Outs) -> Outs:
    """Order holds within keys only."""
    return sorted(outs, key=lambda o: o.key or "")


# ---------------------------------------------------------------- too much


@corruption(duplicate=1)
def doubled_in_the_same_partition(outs: Outs) -> Outs:
    return [*outs, outs[nth(outs, "bob", 2)]]


@corruption(duplicate=1, misplaced=1)
def doubled_in_another_partition(outs: Outs) -> Outs:
    copied = outs[nth(outs, "bob", 2)]
    return [*outs, replace(copied, partition=1 - copied.partition)]


@corruption(duplicate=1)
def doubled_by_another_epoch(outs: Outs) -> Outs:
    copied = outs[nth(outs, "bob", 2)]
    return [*outs, replace(copied, text=told(copied, "2.2"))]


@corruption(duplicate=8)
def a_whole_epoch_doubled(outs: Outs) -> Outs:
    return [*outs, *outs[8:]]


@corruption(unexpected=1)
def an_output_of_a_filtered_record(outs: Outs) -> Outs:
    made_up = outs[nth(outs, "ann", 4)]
    assert made_up.text is not None
    start = made_up.text.rsplit("/", 3)[0]
    return [*outs, replace(made_up, text=f"{start}/8/0.0/5")]


@corruption(unexpected=1)
def a_second_output_of_a_record(outs: Outs) -> Outs:
    made_up = outs[nth(outs, "ann", 4)]
    assert made_up.text is not None
    return [*outs, replace(made_up, text=made_up.text.replace("/0.0/4", "/0.1/5"))]


# ---------------------------------------------------------------- too little


@corruption(lost=1, update_gap=1)
def the_first_output_lost(outs: Outs) -> Outs:
    return without(outs, 0)


@corruption(lost=1, update_gap=1)
def one_in_the_middle_lost(outs: Outs) -> Outs:
    return without(outs, nth(outs, "cid", 2))


@corruption(lost=1, wrong_total=1)
def the_last_output_lost(outs: Outs) -> Outs:
    return without(outs, len(outs) - 1)


@corruption(lost=8, wrong_total=4)
def a_whole_epoch_lost(outs: Outs) -> Outs:
    return outs[:8]


@corruption(lost=4, wrong_total=2)
def the_end_of_a_partition_cut_off(outs: Outs) -> Outs:
    cut = [i for i, o in enumerate(outs) if o.partition == 0][-4:]
    return without(outs, *cut)


@corruption(lost=4, wrong_total=1)
def all_of_a_key_lost(outs: Outs) -> Outs:
    return [o for o in outs if o.key != "dee"]


@corruption(lost=1, update_gap=1, duplicate=1)
def a_loss_and_a_duplicate_that_cancel_in_counts(outs: Outs) -> Outs:
    return [*without(outs, nth(outs, "cid", 2)), outs[nth(outs, "bob", 3)]]


# ---------------------------------------------------------------- another order


@corruption(reordered=1)
def two_of_a_key_swapped(outs: Outs) -> Outs:
    a, b = nth(outs, "dee", 2), nth(outs, "dee", 3)
    return changed(changed(outs, a, **vars(outs[b])), b, **vars(outs[a]))


@corruption(reordered=1)
def the_first_of_a_key_at_its_end(outs: Outs) -> Outs:
    first = nth(outs, "ann", 1)
    return [*without(outs, first), outs[first]]


# ---------------------------------------------------------------- other content


@corruption(wrong_value=1)
def a_value_altered(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), value=b'{"user":"bob","total":9}')


@corruption(wrong_value=1, wrong_total=1)
def a_wrong_total(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 4), value=b'{"user":"bob","total":1000000}')


@corruption(wrong_value=2)
def two_values_swapped_that_cancel_in_sums(outs: Outs) -> Outs:
    a, b = nth(outs, "bob", 1), nth(outs, "bob", 2)
    return changed(changed(outs, a, value=outs[b].value), b, value=outs[a].value)


@corruption(wrong_value=1)
def a_space_added_to_a_value(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, value=(outs[i].value or b"") + b" ")


@corruption(wrong_value=1)
def a_tombstone_in_place_of_a_value(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), value=None)


@corruption(wrong_value=1)
def a_key_altered(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), key="bobby")


@corruption(wrong_value=1)
def a_key_missing(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), key=None)


@corruption(wrong_value=1)
def a_header_altered(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), headers=(("user", b"ann"),))


@corruption(wrong_value=1)
def a_header_missing(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), headers=())


@corruption(wrong_value=1)
def a_header_turned_into_two(outs: Outs) -> Outs:
    """Its value is the name of the second: strung together they read the same."""
    return changed(outs, nth(outs, "bob", 2), headers=(("user", None), ("bob", None)))


@corruption(wrong_value=1)
def the_provenance_of_another_before_its_own(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, headers=((HEADER, (outs[i - 1].text or "").encode()), *outs[i].headers))


@corruption(wrong_value=1)
def its_own_provenance_twice(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, headers=(*outs[i].headers, (HEADER, (outs[i].text or "").encode())))


@corruption(wrong_value=1)
def the_provenance_before_the_headers(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, text=None, headers=((HEADER, (outs[i].text or "").encode()), *outs[i].headers))


@corruption(wrong_value=1)
def the_header_of_a_dead_letter_on_an_output(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, headers=(*outs[i].headers, ("dead_letter.error", b"ValueError")))


@corruption(wrong_value=1)
def a_timestamp_altered(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, timestamp=outs[i].timestamp + 1)


@corruption(wrong_value=16)
def the_time_of_writing_for_that_of_the_input(outs: Outs) -> Outs:
    return [replace(o, timestamp=0) for o in outs]


@corruption(wrong_value=1, update_gap=1)
def an_update_number_skipped(outs: Outs) -> Outs:
    i = nth(outs, "ann", 4)
    return changed(outs, i, text=(outs[i].text or "").rsplit("/", 1)[0] + "/5")


@corruption(wrong_value=1, update_gap=1)
def an_update_number_repeated(outs: Outs) -> Outs:
    i = nth(outs, "ann", 4)
    return changed(outs, i, text=(outs[i].text or "").rsplit("/", 1)[0] + "/3")


@corruption(misplaced=1)
def a_record_in_the_wrong_partition(outs: Outs) -> Outs:
    i = nth(outs, "ann", 2)
    return changed(outs, i, partition=1 - outs[i].partition)


@corruption(misplaced=4)
def all_of_a_key_in_the_wrong_partition(outs: Outs) -> Outs:
    return [replace(o, partition=1 - o.partition) if o.key == "ann" else o for o in outs]


@corruption()
def keys_anywhere(outs: Outs) -> Outs:
    """Of a sink whose partitioner is random."""
    return [replace(o, partition=i // 3 % 2) for i, o in enumerate(outs)]


@corruption()
def before_partitions_were_added(outs: Outs) -> Outs:
    """There was one when the first epoch was written."""
    return [*(replace(o, partition=0) for o in outs[:8]), *outs[8:]]


# ---------------------------------------------------------------- another origin


@corruption(foreign=1, lost=1, update_gap=1)
def the_provenance_missing(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), text=None)


@corruption(foreign=1, lost=1, update_gap=1)
def the_provenance_garbled(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), text=f"{OWN}.2.2/orders/somewhere")


@corruption(foreign=1, lost=1, update_gap=1)
def a_line_end_behind_the_provenance(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, text=f"{outs[i].text}\n")


@corruption(foreign=1, lost=1, update_gap=1)
def an_update_number_in_another_spelling(outs: Outs) -> Outs:
    return changed(outs, nth(outs, "bob", 2), text=(outs[nth(outs, "bob", 2)].text or "").replace("/0.0/2", "/0.0/02"))


@corruption(foreign=1, lost=1, update_gap=1)
def a_number_that_no_type_holds(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, i, text=told(outs[i], "99999999999999999999.2"))


@corruption(foreign=1)
def a_record_of_somebody_else(outs: Outs) -> Outs:
    return [*outs, Out("ann", b"{}", None)]


@corruption(foreign=9)
def many_records_of_somebody_else(outs: Outs) -> Outs:
    """They are no majority that tells where a key of the job belongs."""
    return [*outs, *[Out("ann", b"{}", None, 1 - outs[0].partition)] * 9]


# ---------------------------------------------------------------- another fate


@corruption(aborted_visible=1)
def an_output_of_an_undecided_epoch(outs: Outs) -> Outs:
    i = nth(outs, "ann", 4)
    return changed(outs, i, text=told(outs[i], "1.2"))


@corruption(aborted_visible=8, duplicate=8)
def a_whole_undecided_epoch_beside_its_successor(outs: Outs) -> Outs:
    return [*outs[:8], *(replace(o, text=told(o, "1.2")) for o in outs[8:]), *outs[8:]]


@corruption(wrong_epoch=2)
def the_epochs_of_two_outputs_exchanged(outs: Outs) -> Outs:
    a, b = nth(outs, "ann", 2), nth(outs, "bob", 3)
    return changed(changed(outs, a, text=told(outs[a], "2.2")), b, text=told(outs[b], "1.1"))


@corruption(reordered=1, wrong_epoch=2)
def the_outputs_of_two_epochs_of_a_key_exchanged(outs: Outs) -> Outs:
    """All but the epochs, which stay where they were."""
    a, b = nth(outs, "dee", 2), nth(outs, "dee", 3)
    first, second = replace(outs[b], text=told(outs[b], "1.1")), replace(outs[a], text=told(outs[a], "2.2"))
    return changed(changed(outs, a, **vars(first)), b, **vars(second))


def _hidden(name: str, finds: Mapping[Check, int], spoil: Callable[[Outs], Outs], hide: Callable[[Outs], Outs]) -> None:
    CORRUPTIONS.append(Corruption(name, finds, spoil, hide))


_hidden(
    "a-committed-output-hidden",
    {Check.COMMITTED_HIDDEN: 1, Check.LOST: 1, Check.UPDATE_GAP: 1},
    lambda outs: without(outs, nth(outs, "ann", 2)),
    lambda outs: [outs[nth(outs, "ann", 2)]],
)
_hidden(
    "a-committed-epoch-hidden",
    {Check.COMMITTED_HIDDEN: 8, Check.LOST: 8, Check.WRONG_TOTAL: 4},
    lambda outs: outs[:8],
    lambda outs: outs[8:],
)
_hidden(
    "an-aborted-attempt-stays-hidden",
    {},
    lambda outs: outs,
    lambda outs: [replace(o, text=told(o, "1.2")) for o in outs[8:]],
)
_hidden(
    "what-a-task-that-lost-wrote-in-a-committed-epoch",
    {},
    lambda outs: outs,
    lambda outs: outs[8:],
)
