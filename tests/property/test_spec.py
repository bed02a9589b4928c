"""Properties of the placement spec: exact round trips, and one kind of error for whatever comes."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pannier.config.load import parse
from pannier.plan.spec import (
    FIELDS,
    Entry,
    PlacementError,
    PlacementSpec,
    parse_spec,
    placements_of,
    spec_of,
    spec_of_config,
    to_json,
)

MODELS = ("qwen3-8b", "a/b:8b", "modèle", 'q"u')
KEYS = ("chat", "vision", "embed", "rerank", *MODELS)

# A busy machine is no finding.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

LABELS = st.one_of(
    st.sampled_from(["CUDA0", "RPC1", "GPU-8c1e", "a b", 'q"', "\\"]),
    st.from_regex(r"[A-Z][a-zA-Z0-9\-\"\\']{0,20}", fullmatch=True),
).filter(lambda text: text.lower() not in ("inf", "infinity", "nan"))


@st.composite
def entries(draw):
    devices = draw(st.lists(st.integers(0, 1023) | LABELS, min_size=1, max_size=6, unique=True))
    weights = st.lists(st.integers(1, 10**6), min_size=len(devices), max_size=len(devices))
    return Entry(
        devices=tuple(devices),
        tensor_split=draw(st.none() | weights.map(tuple)),
        replicas=draw(st.integers(1, 64)),
        force=draw(st.booleans()),
    )


SPECS = st.dictionaries(st.sampled_from(KEYS), entries()).map(PlacementSpec.of)


@calm
@given(SPECS)
def test_a_spec_that_was_written_is_read_as_the_same_spec(spec):
    text = to_json(spec)
    again = parse_spec(text, models=MODELS)
    assert again == spec
    assert [entry.devices for _, entry in again.entries] == [e.devices for _, e in spec.entries]
    assert to_json(again) == text
    assert parse_spec(text.encode(), models=MODELS) == spec


@calm
@given(SPECS, st.randoms())
def test_every_spelling_of_a_spec_has_one_canonical_text(spec, random):
    spelled = {}
    for key, entry in random.sample(spec.entries, len(spec.entries)):
        fields = {
            "devices": [
                random.choice([each, str(each), float(each)]) if isinstance(each, int) else each
                for each in entry.devices
            ],
            "tensor_split": entry.tensor_split,
            "replicas": str(entry.replicas),
            "force": entry.force,
        }
        spelled[key] = dict(random.sample(list(fields.items()), len(fields)))
    read = parse_spec(json.dumps(spelled, indent=random.choice([None, 2])), models=MODELS)
    assert read == spec
    assert hash(read) == hash(spec)
    assert to_json(read) == to_json(spec)


@calm
@given(SPECS)
def test_a_spec_goes_through_the_tables_of_a_config_unchanged(spec):
    tables = "".join(f"[models.{json.dumps(model)}]\npath = 'a'\n" for model in MODELS)
    for key, placement in placements_of(spec).items():
        tables += f"[placement.{json.dumps(key)}]\ndevices = {json.dumps(placement.devices)}\n"
        if placement.tensor_split is not None:
            tables += f"tensor_split = {list(placement.tensor_split)}\n"
        tables += f"replicas = {placement.replicas}\nforce = {json.dumps(placement.force)}\n"
    config = parse(tables.encode())
    assert spec_of_config(config) == spec
    assert placements_of(spec) == config.placement


# Values that come near to a spec, so that every check is reached, and values that do not.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 3),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["0", "1", "+1", "CUDA0", "1_0", " 1", "٣", "\ud800", "1e5"]),
)
ANYTHING = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
NEARLY = st.dictionaries(
    st.sampled_from(KEYS) | st.text(max_size=5),
    st.dictionaries(st.sampled_from(FIELDS), st.lists(ODD, max_size=3) | ODD) | ANYTHING,
    max_size=3,
)


def outcome(read, value):
    """The spec that was read, None where it was refused in the one allowed way."""
    try:
        spec = read(value, models=MODELS)
    except PlacementError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert message
        assert "\n" not in message
        return None
    assert all(type(n) in (int, str) for _, entry in spec.entries for n in entry.devices)
    assert parse_spec(to_json(spec), models=MODELS) == spec
    return spec


@calm
@given(NEARLY | ANYTHING)
def test_any_json_is_read_or_refused_and_decoding_it_first_changes_nothing(value):
    text = json.dumps(value)
    assert outcome(parse_spec, text) == outcome(spec_of, json.loads(text))


@calm
@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_text_is_read_or_refused(text):
    outcome(parse_spec, text)
