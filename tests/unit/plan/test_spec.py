"""The manual placement spec, rule by rule (PS-1 to PS-20 and what is ours beyond them)."""

import json

import msgspec
import pytest

from pannier.config.load import parse
from pannier.config.schema import Config, Model, Placement
from pannier.errors import ConfigError, PannierError
from pannier.plan.spec import (
    Entry,
    PlacementError,
    PlacementSpec,
    entry_for,
    parse_spec,
    placements_of,
    spec_of,
    spec_of_config,
    to_json,
)

MODELS = ("qwen3-8b", "bge-m3")


def read(text):
    return parse_spec(text, models=MODELS)


def entry(**fields):
    """The entry that the JSON spelling of these fields means."""
    found = spec_of({"chat": fields}, models=MODELS).get("chat")
    assert found is not None
    return found


def refused(text):
    with pytest.raises(PlacementError) as error:
        read(text)
    return str(error.value)


def refused_entry(**fields):
    return refused(json.dumps({"chat": fields}))


# --- the table ------------------------------------------------------------------------------------


def test_ps_1_there_is_one_error_type_and_it_is_a_value_error():
    with pytest.raises(ValueError, match="not valid JSON") as error:
        read("{")
    assert isinstance(error.value, PlacementError)
    assert isinstance(error.value, PannierError)
    assert (error.value.code, error.value.hint) == ("not-json", None)
    assert error.value.message == str(error.value)


def test_ps_1_the_planner_raises_the_same_for_what_does_not_fit():
    error = PlacementError("too small", hint="leave it out", code="does-not-fit")
    assert str(error) == "too small (leave it out)"
    assert isinstance(error, ValueError)
    assert error.code == "does-not-fit"


def test_ps_2_values_are_frozen_tuples_with_defaults_and_equal_by_content():
    found = entry(devices=[0, 1])
    assert found == Entry(devices=(0, 1), tensor_split=None, replicas=1, force=False)
    with pytest.raises(AttributeError):
        found.replicas = 2
    spec = read('{"chat": {"devices": [0]}}')
    with pytest.raises(AttributeError):
        spec.entries = ()
    same = read('{ "chat":{"replicas":1,"tensor_split":null,"devices":["0"]}}')
    assert spec == same
    assert hash(spec) == hash(same)
    assert spec != read('{"chat": {"devices": [1]}}')


def test_ps_2_the_order_of_the_keys_in_the_text_is_no_content():
    one = read('{"chat": {"devices": [0]}, "embed": {"devices": [1]}}')
    other = read('{"embed": {"devices": [1]}, "chat": {"devices": [0]}}')
    assert one == other
    assert hash(one) == hash(other)


def test_ps_3_the_empty_spec_is_legal_both_ways():
    assert read("{}") == PlacementSpec()
    assert to_json(PlacementSpec()) == "{}"
    assert spec_of_config(Config()) == PlacementSpec()
    assert placements_of(PlacementSpec()) == {}


def test_ps_4_the_canonical_text_has_sorted_keys_and_no_defaults():
    text = (
        '{"embed": {"replicas": 2, "devices": [1]},'
        ' "chat": {"tensor_split": [3, 1], "replicas": 1, "force": false, "devices": [1, "RPC0"]}}'
    )
    spec = read(text)
    assert to_json(spec) == (
        '{"chat": {"devices": [1, "RPC0"], "tensor_split": [3, 1]},'
        ' "embed": {"devices": [1], "replicas": 2}}'
    )
    assert str(spec) == to_json(spec)


def test_ps_5_the_order_of_the_devices_survives_the_round_trip():
    spec = read('{"chat": {"devices": [2, 0, "CUDA1"], "tensor_split": [1, 5, 2]}}')
    again = read(to_json(spec))
    assert again == spec
    assert again.get("chat").devices == (2, 0, "CUDA1")
    assert read('{"chat": {"devices": [0, 2]}}') != read('{"chat": {"devices": [2, 0]}}')


@pytest.mark.parametrize(
    "text", [None, "", "{", "chat", b"\xff{}", '{"chat": }', "{} {}", "['chat']", "\ufeff{}"]
)
def test_ps_6_what_is_not_json_is_told_and_keeps_its_cause(text):
    with pytest.raises(PlacementError, match="not valid JSON") as error:
        read(text)
    assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[]", "an empty list"),
        ('["chat"]', "a list"),
        ("null", "null"),
        ('"chat"', 'text "chat"'),
        ("3", "the number 3"),
        ("true", "true"),
        ("NaN", "the number nan"),
    ],
)
def test_ps_7_json_that_is_no_object_is_refused(text, shown):
    assert refused(text).endswith(f"found {shown}")


@pytest.mark.parametrize("key", ["Chat", " chat", "chat ", "CHAT", "", "tts", "qwen3-8B", "café"])
def test_ps_8_an_unknown_role_or_model_is_named(key):
    message = refused(json.dumps({key: {"devices": [0]}}))
    assert f'"{key}"' in message
    assert "chat, vision, embed, rerank" in message


def test_ps_8_a_near_name_is_offered():
    assert 'did you mean "qwen3-8b"?' in refused('{"qwen3-8B": {"devices": [0]}}')


@pytest.mark.parametrize("value", ["null", "[]", "0", '"CUDA0"', "true"])
def test_ps_9_an_entry_that_is_no_object_names_its_role(value):
    message = refused('{"embed": ' + value + "}")
    assert message.startswith("embed: expected an object")


def test_ps_10_unknown_keys_are_listed_sorted_and_so_are_the_allowed_ones():
    message = refused_entry(devices=[0], main_gpu=0, Devices=[1], flags=[])
    assert '"Devices", "flags", "main_gpu"' in message
    assert "devices, force, replicas, tensor_split" in message
    assert message.startswith("chat: ")


def test_ps_10_very_many_unknown_keys_are_not_all_listed():
    message = refused_entry(**{f"key{n:04}": 0 for n in range(1000)})
    assert "and 990 more" in message
    assert len(message) < 400


def test_ps_11_at_least_one_device_is_named():
    assert "at least one device" in refused_entry(devices=[])
    assert "at least one device" in refused_entry(replicas=2)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "null"), ("0", 'text "0"'), (0, "the number 0"), ({}, "an empty object"), (True, "t")],
)
def test_ps_11_devices_must_be_a_list(value, shown):
    message = refused_entry(devices=value)
    assert message.startswith("chat.devices: must be a list")
    assert f"found {shown}" in message


def test_ps_12_whole_floats_and_texts_of_digits_are_whole_numbers_in_json():
    found = entry(devices=[1.0, "2"], tensor_split=["3", 1.0], replicas="02")
    assert found == Entry(devices=(1, 2), tensor_split=(3, 1), replicas=2)
    assert all(type(device) is int for device in found.devices)


@pytest.mark.parametrize("field", ["devices", "tensor_split", "replicas"])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("true", "true"),
        ("false", "false"),
        ("1.5", "1.5"),
        ("NaN", "nan"),
        ("Infinity", "inf"),
        ("-Infinity", "-inf"),
        ("1e999", "inf"),
        ("null", "null"),
        ("[1]", "a list"),
        ('{"a": 1}', "an object"),
        ('""', '""'),
        ('"1.5"', '"1.5"'),
        ('"+1"', '"+1"'),
        ('"-1"', '"-1"'),
        ('" 1"', '" 1"'),
        ('"1 "', '"1 "'),
        ('"1_0"', '"1_0"'),
        ('"1e0"', '"1e0"'),
        ('"٣"', '"٣"'),
        ('"NaN"', '"NaN"'),
        ('"9999999999999999999"', '"9999999999999999999"'),
        (str(10**40), "too many digits"),
        ("1e300", "1"),
    ],
)
def test_ps_12_anything_else_is_refused_with_role_field_and_value(field, written, shown):
    fields = {"devices": "[0]", field: written if field == "replicas" else f"[{written}]"}
    text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    message = refused('{"chat": {' + text + "}}")
    assert message.startswith(f"chat.{field}")
    assert shown in message


@pytest.mark.parametrize("value", ["CUDA0", "a b", "0x1"])
@pytest.mark.parametrize("field", ["tensor_split", "replicas"])
def test_ps_12_only_a_device_can_be_a_label(field, value):
    fields = {"devices": [0], field: value if field == "replicas" else [value]}
    assert f'"{value}"' in refused_entry(**fields)


@pytest.mark.parametrize(
    "written",
    [
        'devices = ["0"]',
        "devices = [0.0]",
        "devices = [true]",
        "devices = [0]\nreplicas = 1.0",
        'devices = [0]\nreplicas = "2"',
        'devices = [0]\ntensor_split = ["1"]',
    ],
)
def test_ps_12_toml_is_strict(written):
    with pytest.raises(ConfigError):
        parse(f"[placement.chat]\n{written}\n".encode())


@pytest.mark.parametrize(
    "placement",
    [
        Placement(devices=("0",)),
        Placement(devices=(" 1",)),
        Placement(devices=(0,), tensor_split=("1",)),
        Placement(devices=(0,), replicas="2"),
        Placement(devices=(0,), replicas=1.0),
        Placement(devices=(True,)),
    ],
    ids=repr,
)
def test_ps_12_a_saved_placement_is_read_as_strictly(placement):
    with pytest.raises(PlacementError, match="chat"):
        spec_of_config(Config(placement={"chat": placement}))


def test_ps_13_negative_is_found_before_duplicate():
    assert "negative" in refused_entry(devices=[1, 1, -1])
    assert "twice" in refused_entry(devices=[1, 1])


def test_ps_13_a_value_that_is_none_is_found_before_a_negative_one():
    assert "chat.devices[1]" in refused_entry(devices=[-1, True])


def test_ps_14_duplicates_are_found_after_coercion():
    assert "the device 0 is listed twice" in refused_entry(devices=[0, "0"])
    assert "the device 1 is listed twice" in refused_entry(devices=["1", 1.0])
    assert 'the device "CUDA0" is listed twice' in refused_entry(devices=["CUDA0", "CUDA0"])


def test_ps_15_a_split_of_null_is_absent_and_an_empty_one_is_a_length_error():
    assert entry(devices=[0], tensor_split=None).tensor_split is None
    assert "one weight for each of the 2 devices, found 0" in refused_entry(
        devices=[0, 1], tensor_split=[]
    )


@pytest.mark.parametrize("split", [[1], [1, 1, 1]])
def test_ps_16_a_split_has_one_weight_per_device(split):
    message = refused_entry(devices=[0, 1], tensor_split=split)
    assert "one weight for each of the 2 devices" in message
    assert message.startswith("chat.tensor_split")


@pytest.mark.parametrize("weight", [0, -1, -(10**40)])
def test_ps_16_a_weight_is_above_zero(weight):
    message = refused_entry(devices=[0, 1], tensor_split=[1, weight])
    assert message.startswith("chat.tensor_split[1]")
    assert "left out of devices" in message


def test_ps_16_a_split_must_be_a_list():
    assert "chat.tensor_split: must be a list" in refused_entry(devices=[0], tensor_split=1)
    assert "chat.tensor_split: must be a list" in refused_entry(devices=[0], tensor_split="1")


def test_ps_17_one_device_with_one_weight_is_legal():
    assert entry(devices=[0], tensor_split=[7]).tensor_split == (7,)


def test_ps_18_replicas_are_one_where_they_are_missing_and_digits_in_json():
    assert entry(devices=[0]).replicas == 1
    assert entry(devices=[0], replicas="2").replicas == 2


@pytest.mark.parametrize("value", [None, 0, -1, "0"])
def test_ps_18_replicas_of_null_or_below_one_are_refused(value):
    assert refused_entry(devices=[0], replicas=value).startswith("chat.replicas: expected")


def test_ps_19_no_device_is_looked_for():
    found = entry(devices=[1023, "CUDA99", "no such thing", "GPU-1f2e3d4c-0000"])
    assert found.devices[0] == 1023
    assert len(found.devices) == 4


def test_ps_20_a_role_without_a_model_may_be_named():
    assert parse_spec('{"rerank": {"devices": [0]}}', models=()).get("rerank")


def test_ps_20_devices_may_repeat_across_roles():
    spec = read('{"chat": {"devices": [0]}, "embed": {"devices": [0]}}')
    assert [entry.devices for _, entry in spec.entries] == [(0,), (0,)]


# --- ours beyond that -----------------------------------------------------------------------------


def test_a_model_id_wins_over_its_role():
    spec = read('{"chat": {"devices": [0]}, "qwen3-8b": {"devices": [1]}}')
    assert entry_for(spec, "qwen3-8b", "chat") == Entry(devices=(1,))
    assert entry_for(spec, "other", "chat") == Entry(devices=(0,))
    assert entry_for(spec, "bge-m3", "embed") is None


def test_force_is_true_or_false_and_is_kept():
    spec = read('{"chat": {"devices": [0], "force": true}}')
    assert spec.get("chat").force is True
    assert to_json(spec) == '{"chat": {"devices": [0], "force": true}}'


@pytest.mark.parametrize("value", [1, 0, "true", None, []])
def test_nothing_else_is_taken_for_force(value):
    assert refused_entry(devices=[0], force=value).startswith("chat.force: expected true or false")


@pytest.mark.parametrize(
    "text",
    [
        '{"chat": {"devices": [0]}, "chat": {"devices": [1]}}',
        '{"chat": {"devices": [0], "devices": [0]}}',
        '{"nobody": {"a": {"b": 1, "b": 2}}}',
        '{"chat": {"devices": [0], "\\u0064evices": [1]}}',
    ],
)
def test_a_key_that_is_given_twice_is_refused(text):
    assert "is given twice" in refused(text)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, '{"chat": ' + "[" * 200_000])
def test_deep_nesting_is_no_crash(text):
    assert "nested too deep" in refused(text)


def test_a_number_that_python_does_not_convert_is_no_crash():
    assert "not valid JSON" in refused('{"chat": {"devices": [' + "1" * 5000 + "]}}")


@pytest.mark.parametrize("device", ["a\nb", "a\x00", "${HOME}", "\ud800", "a" * 129, "\u2028", " "])
def test_a_text_that_config_toml_does_not_take_is_no_device(device):
    assert refused_entry(devices=[device]).startswith("chat.devices[0]")


@pytest.mark.parametrize(
    ("field", "most"), [("devices", 1023), ("replicas", 64), ("tensor_split", 1_000_000)]
)
def test_what_config_toml_would_refuse_is_refused_here_too(field, most):
    for value, fits in ((most, True), (most + 1, False)):
        fields = {"devices": [0], field: value if field == "replicas" else [value]}
        text = json.dumps({"chat": fields})
        if fits:
            assert read(text)
        else:
            assert str(most) in refused(text)


def test_the_tables_of_a_config_are_the_same_spec():
    config = parse(
        b'[models.qwen3-8b]\npath = "a.gguf"\n'
        b"[placement.qwen3-8b]\ndevices = [1, 'CUDA0']\ntensor_split = [3, 1]\nforce = true\n"
        b"[placement.chat]\ndevices = [0]\nreplicas = 2\n"
    )
    spec = spec_of_config(config)
    assert spec == read(
        '{"chat": {"devices": [0], "replicas": 2},'
        ' "qwen3-8b": {"devices": [1, "CUDA0"], "tensor_split": [3, 1], "force": true}}'
    )
    assert placements_of(spec) == config.placement


def test_a_saved_placement_of_a_model_that_is_gone_is_refused():
    config = Config(placement={"old": Placement(devices=(0,))}, models={"new": Model(path="a")})
    with pytest.raises(PlacementError, match='"old"'):
        spec_of_config(config)


@pytest.mark.parametrize("value", [{1: {}}, {None: {}}, {"chat": {1: 2}}, object(), b"{}"])
def test_a_decoded_value_that_json_cannot_hold_is_refused(value):
    with pytest.raises(PlacementError):
        spec_of(value, models=MODELS)


def test_a_spec_can_be_put_into_json_as_it_is():
    spec = read('{"chat": {"devices": [0, "CUDA1"]}}')
    assert msgspec.json.decode(msgspec.json.encode(spec), type=PlacementSpec) == spec
