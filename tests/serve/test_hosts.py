"""By which names a server may be called: a page must not lead one of its own to this machine."""

from typing import Any

import pytest

from relight.base.errors import BadSetting, WrongHost
from relight.base.settings import load
from relight.serve.hosts import Hosts
from relight.serve.main import serve_options
from tests.serve.fakes import EOS, HELLO, answering

OWN = [
    *("", "localhost", "LocalHost:8000", "localhost.:80", "a.localhost:8000"),
    *("127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000", "192.168.1.7:8000"),
    "host.docker.internal:8000",
]
FOREIGN = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:80"),
    *("internal.evil.example", "evillocalhost", "[::1].evil.example", "[::1", "evil.example:80:80"),
    *("a b", "é", "127.0.0.1:8000@evil.example", "." * 500),
]


def hosts(**flags: Any) -> Hosts:
    return serve_options(load({"model": "m"} | flags, {}).settings, "m").hosts


def is_taken(one: Hosts, name: str) -> bool:
    try:
        one.check({b"host": name.encode("latin-1")}.get)
    except WrongHost:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost", "::1"])
def test_a_server_of_this_machine_alone_goes_by_addresses_and_names_of_its_own(host: str) -> None:
    one = hosts(host=host)
    assert [name for name in OWN if not is_taken(one, name)] == []
    assert [name for name in FOREIGN if is_taken(one, name)] == []
    one.check({}.get)


@pytest.mark.parametrize(
    "flags",
    [
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "10.0.0.1"},
        {"api_key": ["a key keeps pages out, too"]},
        {"tls_cert": "so does a certificate"},
        {"allowed_host": ["*"]},
    ],
)
def test_any_name_will_do_where_no_page_could_gain_by_it(flags: dict[str, Any]) -> None:
    one = hosts(**flags)
    assert [name for name in (*OWN, *FOREIGN) if not is_taken(one, name)] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_names_that_an_operator_lists_are_taken_beside_its_own_and_no_others(host: str) -> None:
    one = hosts(host=host, allowed_host=["LLM.example", "other.example."], api_key=["k"])
    for name in (*OWN, "llm.example", "llm.EXAMPLE:443", "other.example"):
        assert is_taken(one, name), name
    for name in (*FOREIGN, "x.llm.example"):
        assert not is_taken(one, name), name


@pytest.mark.parametrize(
    "name", ["llm.example:443", "https://llm.example", "*.example", "llm.example/v1", "a,b", "é.x"]
)
def test_a_listed_name_that_no_request_could_match_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(BadSetting, match=r"allowed_host is .*wanted a name without scheme, port"):
        hosts(allowed_host=["llm.example", name])
    assert is_taken(hosts(allowed_host=["10.0.0.1", "[::1]", "a_b.example"]), "a_b.example")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/messages"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/health"),
        ("GET", "/nothing"),
    ],
)
def test_a_foreign_name_is_a_403_with_a_remedy_in_the_form_of_the_route(
    method: str, path: str
) -> None:
    one = answering("x" + EOS, hosts=hosts())
    body = {"messages": HELLO} if method == "POST" else None
    refused = one.request(method, path, json=body, headers={"host": "evil.example:8000"})
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert error["type"] == "permission_error"
    assert "'evil.example:8000'" in error["message"]
    assert error["message"].endswith("start the server with --allowed-host evil.example")
    assert one.client.requests == []
    taken = one.request(method, path, json=body, headers={"host": "localhost:8000"})
    assert taken.status_code == (404 if path == "/nothing" else 200)
