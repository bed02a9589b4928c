"""What is asked for: a spec, nothing, or a mistake."""

import pytest

from pannier.plan.request import AUTOMATIC, LARGEST_SPEC, MalformedSpecError, read_spec


@pytest.mark.parametrize("text", [None, "", " ", "null", b"null\n", "{}", b" {} "])
def test_ap_13_nothing_null_and_an_empty_object_are_no_placement(text):
    assert read_spec(text, {"a"}) == AUTOMATIC


def test_a_spec_is_read_by_its_models():
    assert str(read_spec('{"a": {"devices": [1.0]}}', {"a"})) == '{"a": {"devices": [1]}}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"b": {"devices": [0]}}', 'found "b"'),
        ('{"a": {"devices": [0], "a": 1}}', "unknown keys"),
        (" " * LARGEST_SPEC + "{}", "at most"),
    ],
    ids=["broken", "a list", "unknown", "unknown key", "huge"],
)
def test_a_mistake_is_malformed_in_words(text, says):
    with pytest.raises(MalformedSpecError, match=says):
        read_spec(text, {"a"})
