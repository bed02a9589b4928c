"""Addresses: listeners, endpoints, URLs, origins."""

import pytest

from pannier.config.address import (
    check_host_name,
    check_origin,
    check_url,
    is_loopback,
    split_endpoint,
)
from pannier.config.schema import split_listen


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:8484", ("127.0.0.1", 8484)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("gpu-box.lan:65535", ("gpu-box.lan", 65535)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:8484", ("::1", 8484)),
        ("[::]:1", ("::", 1)),
    ],
)
def test_an_address_is_split_into_host_and_port(text, parts):
    assert split_listen(text) == parts


@pytest.mark.parametrize(
    "text",
    ["", "8484", ":8484", "localhost", "::1:8484", "[::1]", "[127.0.0.1]:1", "[x]:1", "a b:1",
     "http://a:1", "300.0.0.1:80", "10.1:80", "-a:1", "[]:1", "user@host:1"],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_the_form_that_is_allowed(text):
    with pytest.raises(ValueError, match=r'expected "address:port".*::1'):
        split_listen(text)


@pytest.mark.parametrize("port", ["65536", "-1", "", "1.5", " 1", "1 ", "+1", "٣", "999999"])
def test_a_port_out_of_range_is_refused_with_the_range(port):
    with pytest.raises(ValueError, match="port from 0 to 65535"):
        split_listen(f"127.0.0.1:{port}")


def test_port_0_can_be_listened_on_but_not_connected_to():
    assert split_listen("10.0.0.1:0")[1] == 0
    with pytest.raises(ValueError, match="port from 1 to 65535"):
        split_endpoint("10.0.0.1:0")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"])
def test_loopback_is_known_in_all_its_spellings(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.lan", "128.0.0.1", "box"])
def test_what_others_can_reach_is_not_loopback(host):
    assert not is_loopback(host)


@pytest.mark.parametrize("url", ["http://10.0.0.9:8484", "https://a.example/sub", "http://[::1]:1"])
def test_an_http_url_is_accepted(url):
    check_url(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("10.0.0.9:8484", "http or https"),
        ("ftp://a", "http or https"),
        ("http://", "http or https"),
        ("http://a:99999", "http or https"),
        ("http://[::1", "http or https"),
        ("http://a b", "http or https"),
        ("http://me:secret@a", "api_key_file"),
        ("http://a/?x=1", "query"),
        ("http://a/#x", "fragment"),
    ],
)
def test_an_unusable_url_is_refused_with_the_reason(url, words):
    with pytest.raises(ValueError, match=words):
        check_url(url)


def test_an_origin_has_no_path_and_is_no_wildcard():
    check_origin("https://chat.example:8443")
    for text in ("*", "chat.example", "https://chat.example/", "https://*.example", ""):
        with pytest.raises(ValueError, match="scheme, host and port only"):
            check_origin(text)


def test_a_host_name_has_no_port():
    check_host_name("gpu.lan")
    check_host_name("::1")
    for text in ("gpu.lan:80", "http://gpu", "", "*"):
        with pytest.raises(ValueError, match="without a port"):
            check_host_name(text)
