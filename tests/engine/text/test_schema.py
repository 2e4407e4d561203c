"""The part of JSON Schema that decides whether a call may run."""

import pytest

from engine.text.schema import mismatch

SCHEMA = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["a", "b"]},
        "size": {"type": ["integer", "null"]},
        "rows": {"type": "array", "items": {"type": "object", "required": ["id"]}},
        "later": {"$ref": "#/x", "type": "unheard-of"},
    },
    "required": ["mode"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"mode": "a", "size": None, "rows": [{"id": 1}], "later": 5}, None),
        ({"mode": "a", "size": 2.0}, None),
        ([], "the arguments must be object"),
        ({}, "mode is missing"),
        ({"mode": "c"}, "mode must be one of ['a', 'b']"),
        ({"mode": "a", "size": True}, "size must be integer or null"),
        ({"mode": "a", "rows": [{"id": 1}, {}]}, "rows[1].id is missing"),
        ({"mode": "a", "colour": 1}, "colour is not a parameter"),
    ],
)
def test_mismatch_says_where_and_why(value: object, fault: str | None) -> None:
    assert mismatch(value, SCHEMA) == fault
