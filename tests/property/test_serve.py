"""Header filters, bodies and keys: what holds for anything that a stranger sends."""

from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from pannier.serve.asked import read_asked
from pannier.serve.errors import ApiError
from pannier.serve.headers import to_client, to_upstream
from pannier.serve.security import host_name

NAMES = st.one_of(
    st.sampled_from(
        ["Connection", "authorization", "X-API-KEY", "cookie", "Set-Cookie", "Server", "TE", "Host",
         "Transfer-Encoding", "Content-Length", "Upgrade", "Forwarded", "X-Mine", "Accept"]
    ),
    st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True),
)  # fmt: skip
VALUES = st.one_of(st.sampled_from(["close", "X-Mine", "x-mine , Accept", ""]), st.text(max_size=8))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=10).map(CIMultiDict)
SECRET = {"authorization", "x-api-key", "cookie", "forwarded", "host", "content-length"}
HOPS = {"connection", "te", "transfer-encoding", "upgrade", "keep-alive"}


@settings(deadline=None)
@given(HEADERS)
def test_filtering_twice_is_filtering_once_and_adds_nothing(headers):
    for way in (to_upstream, to_client):
        once = way(headers)
        assert way(once) == once
        assert all(item in list(headers.items()) for item in once.items())


@settings(deadline=None)
@given(HEADERS)
def test_what_must_not_pass_does_not_pass_in_any_spelling(headers):
    named = {
        part.strip().lower()
        for value in headers.getall("connection", [])
        for part in value.split(",")
    }
    up = {name.lower() for name in to_upstream(headers)}
    down = {name.lower() for name in to_client(headers)}
    assert not up & (SECRET | HOPS | named)
    assert not down & ({"set-cookie", "server"} | HOPS | named)
    kept = {name.lower() for name in headers} - SECRET - HOPS - named
    assert "accept" not in kept or "accept" in up


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(["application/json", "multipart/form-data", ""]))
def test_any_body_is_read_or_refused_with_a_400(body, kind):
    try:
        outcome = read_asked(body, kind)[0]
    except ApiError as error:
        outcome = error.status
    assert outcome == 400 or (isinstance(outcome, str) and outcome)


@settings(deadline=None)
@given(st.binary(max_size=200), st.text(max_size=20), st.binary(max_size=40))
def test_the_model_of_a_form_is_found_whatever_lies_beside_it(file, boundary, more):
    mark = b"--b0undary-of-this-form"
    body = mark + b'\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + file
    body += b"\r\n" + mark + b"\r\nContent-Disposition: form-data; name=model\r\n\r\na\r\n" + mark
    body += b"--\r\n" + more
    assert read_asked(body, 'multipart/form-data; boundary="b0undary-of-this-form"') == ("a", False)


@settings(deadline=None)
@given(st.text(max_size=30))
def test_the_name_in_a_host_header_has_no_port_no_case_and_no_dot_at_its_end(header):
    name = host_name(header)
    assert name == name.lower()
    assert host_name(name) == name or ":" in name or "[" in header
