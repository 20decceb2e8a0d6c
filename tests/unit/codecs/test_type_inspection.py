"""What the types of users tell of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from pydantic import Field

from kafka_eos.codecs.field_access import read_field
from kafka_eos.codecs.type_inspection import (
    attributes,
    can_be,
    field_aliases,
    field_names,
    get_element_type,
    get_return_type,
    holds_values,
    without_none,
)
from kafka_eos.core.errors import PlanError

Count = NewType("Count", int)
T = TypeVar("T")


class Keys(TypedDict):
    a: int


class Closing(Protocol):
    def close(self) -> None: ...


class Place(msgspec.Struct):
    x: int
    y: int = msgspec.field(name="why", default=0)


class Home(Place):
    z: int = 0


class Model(pydantic.BaseModel):
    x: int
    y: int = Field(0, validation_alias="why")


@dataclasses.dataclass
class Line:
    x: int
    y: int


@pytest.mark.parametrize(
    ("tp", "expected", "wanted"),
    [
        (int, int, True),
        (int, str, False),
        (bool, int, True),
        (int, bool, True),
        (int, float, True),
        (float, int, False),
        (Home, Place, True),
        (Place, Home, True),
        (Place, Model, False),
        (int | str, bytes | str, True),
        (str | bytes, int, False),
        (int | Any, str, True),
        (int | None, type(None), True),
        (Literal["a", 1], int, True),
        (Literal[1, "a"], int, True),
        (Literal["a", "b"], int, False),
        (Annotated[int, "of all"], str, False),
        (Annotated[int, "of all"], int, True),
        (Count, int, True),
        (Count, str, False),
        (Keys, dict, True),
        (Keys, list, False),
        (list[int], list, True),
        (list[int], Mapping[str, int], False),
        (Any, int, True),
        (int, object, True),
        (Closing, int, True),
    ],
    ids=str,
)
def test_a_value_of_one_type_can_be_of_another_as_far_as_classes_tell(tp: Any, expected: Any, wanted: bool) -> None:
    assert can_be(tp, expected) is wanted


@pytest.mark.parametrize(
    ("tp", "wanted"),
    [(list[int], int), (Iterator[str], str), (dict[str, int], str), (tuple[int, str], None), (list, None), (int, None)],
    ids=str,
)
def test_what_an_iterable_gives_is_known(tp: Any, wanted: Any) -> None:
    assert get_element_type(tp) is wanted


@pytest.mark.parametrize(
    ("tp", "wanted"),
    [(int | None, int), (None | int, int), (int | str | None, int | str), (int, int), (list[None], list[None])],
    ids=str,
)
def test_a_type_without_none_is_all_the_rest(tp: Any, wanted: Any) -> None:
    assert without_none(tp) == wanted


@pytest.mark.parametrize(
    ("tp", "wanted"),
    [
        (list[int], True), (dict[str, int], True), (Sequence[int], True), (tuple[int, ...], True), (Keys, True),
        (Place, True), (Line, True), (Model, True), (Place | None, True),
        (Place | list[int], True), (Model | None, True),
        (str, False), (int | None, False), (Place | str, False), (None, False), (Any, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_holds_others_if_each_of_its_values_does(tp: Any, wanted: bool) -> None:
    assert holds_values(tp) is wanted


def test_fields_are_known_in_each_kind_of_record() -> None:
    assert [field_names(tp) for tp in (Place, Home, Line, int)] == [["x", "y"], ["x", "y", "z"], ["x", "y"], []]
    assert [field_aliases(tp) for tp in (Place, Model, Line, int)] == [{"y": "why"}, {"y": "why"}, {}, {}]
    assert [attributes(names)(Line(1, 2)) for names in (["x"], ["y", "x"])] == [(1,), (2, 1)]


def test_an_alias_that_is_another_fields_name_is_refused() -> None:
    with pytest.raises(PlanError, match="b is the name of one field and the alias of another"):
        field_aliases(msgspec.defstruct("Swapped", [("a", int), ("b", int)], rename={"a": "b", "b": "a"}))


def test_what_a_function_returns_is_known_if_it_says_so() -> None:
    def said(_: Any) -> int:
        return 1

    def any_type(value: T) -> T:
        return value

    def unknown(_: Any) -> Missing:  # type: ignore[name-defined]  # noqa: F821
        return 1

    assert [get_return_type(each) for each in (said, any_type, unknown, lambda _: 1, 5)] == [
        int,
        None,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("tp", [None, tuple, tuple[int, str], dict[str, int]], ids=str)
def test_a_type_that_declares_no_fields_may_have_any(tp: Any) -> None:
    assert read_field("x", tp).__annotations__ == {}
    assert read_field("x", tp)({"x": 7}) == 7
