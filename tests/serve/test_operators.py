"""What an operator decides: who may call, from where, under which names and limits, the log."""

import asyncio
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from relight.base.errors import BadSetting
from relight.base.logs import JsonFormatter
from relight.base.settings import KNOBS, load
from relight.engine.replay import ReplayClient
from relight.serve.app import OPEN
from relight.serve.http import HttpServer, listen, url_of
from relight.serve.keys import Keys, read_keys
from relight.serve.main import curl_line, root_path, serve_options
from relight.serve.routes import OPERATIONS
from relight.serve.tls import check_certificate
from relight.session import Options, SamplingDefaults, Session
from relight.text.conversation import Conversation, Message
from tests.serve.fakes import (
    ENCODER,
    EOS,
    FOLDER,
    HELLO,
    TOKENIZER,
    answering,
    counter,
    rig,
    script,
)

TLS = FOLDER.parent / "tls"
OFF = {"thinking": {"type": "disabled"}}
SECRET = "sk-very-secret-key"


# Keys


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {SECRET}"},
        {"authorization": f"bEARER  {SECRET} "},
        {"x-api-key": SECRET},
        {"authorization": "Basic dTpw", "x-api-key": SECRET},
        {"authorization": "Bearer other"},
    ],
)
def test_any_of_the_keys_opens(headers: dict[str, str]) -> None:
    rig = answering("a" + EOS, keys=Keys([SECRET, "other"]))
    assert rig.chat().status_code == 401
    assert rig.post("/v1/chat/completions", {"messages": HELLO}, headers=headers).status_code == 200
    assert len(rig.client.requests) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": SECRET},
        {"authorization": f"Basic {SECRET}"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {SECRET}x"},
        {"authorization": f"Bearer {SECRET[:-1]}"},
        {"authorization": "Bearer é"},
        {"x-api-key": ""},
        {"x-api-key": "no"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/v1/messages"])
def test_no_or_a_wrong_key_is_a_401_in_the_routes_own_words(
    headers: dict[str, str], path: str
) -> None:
    rig = answering("a" + EOS, keys=Keys([SECRET]))
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    response = rig.post(path, {"messages": HELLO}, headers=raw)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert error["type"] == "authentication_error"
    assert SECRET not in response.text
    if path != "/v1/messages":
        assert (error["code"], error["param"]) == ("invalid_api_key", None)
    assert rig.client.requests == []


def test_every_route_but_those_of_probes_needs_a_key() -> None:
    rig = answering("a" + EOS, keys=Keys([SECRET]))
    for operation in OPERATIONS:
        path = operation.path.replace("{name:path}", "tiny")
        status = rig.request(operation.method, path, content=b"{}").status_code
        assert (status == 401) is (operation.path not in OPEN), path
    assert rig.request("GET", "/openapi.json").status_code == 200


def test_a_refused_key_is_counted_and_its_body_is_not_read() -> None:
    rig = answering("a" + EOS, keys=Keys([SECRET]), body_limit=10)
    assert rig.chat().status_code == 401
    text = rig.request("GET", "/metrics").text
    assert 'reason="invalid_api_key"' in text


def test_without_keys_any_or_none_is_taken() -> None:
    assert answering("a" + EOS).chat().status_code == 200
    rig = answering("a" + EOS)
    headers = {"authorization": "Bearer dummy"}
    assert rig.post("/v1/chat/completions", {"messages": HELLO}, headers=headers).status_code == 200


def test_keys_come_from_flags_a_variable_a_file_and_both(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# team\nfirst   # of Ada\n\n  second\n", encoding="utf-8")
    assert read_keys(str(file)) == ["first", "second"]
    model = {"model": "m"}
    flags = load(model | {"api_key": ["a", "b"], "api_key_file": str(file)}, {}).settings
    assert flags.api_key == ("a", "b")
    keys = serve_options(flags, "m").keys
    for key in ("a", "b", "first", "second"):
        keys.check({b"x-api-key": key.encode()}.get)
    assert load(model, {"RELIGHT_API_KEY": "a, b"}).settings.api_key == ("a", "b")


@pytest.mark.parametrize("content", [None, b"\n# nothing\n", b"\xff\xfe"])
def test_a_file_without_keys_opens_nothing(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadSetting, match="api_key_file"):
        read_keys(str(file))


def test_keys_are_in_no_table_message_or_object(tmp_path: Path) -> None:
    loaded = load({"model": "m", "api_key": [SECRET]}, {})
    assert ("api_key", "1 given", "flag --api-key") in loaded.table()
    assert SECRET not in repr(serve_options(loaded.settings, "m"))
    assert SECRET not in curl_line("http://x", "m", keyed=True)
    (tmp_path / "bad.toml").write_text(f'model = "m"\napi_key = {{ "{SECRET}" = 1 }}')
    with pytest.raises(BadSetting) as found:
        load({}, {}, tmp_path / "bad.toml")
    assert SECRET not in found.value.message


# Other origins, other paths, other names


def test_pages_of_the_named_origins_may_call() -> None:
    rig = answering("a" + EOS, cors_origins=("https://a.org",), keys=Keys([SECRET]))
    ask = {"origin": "https://a.org", "access-control-request-method": "POST"}
    ask["access-control-request-headers"] = "authorization, content-type, x-stainless-os"
    allowed = rig.request("OPTIONS", "/v1/chat/completions", headers=ask)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://a.org"
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    other = rig.request("OPTIONS", "/v1/chat/completions", headers=ask | {"origin": "https://b"})
    assert "access-control-allow-origin" not in other.headers
    headers = {"origin": "https://a.org", "x-api-key": SECRET}
    answer = rig.post("/v1/chat/completions", {"messages": HELLO}, headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://a.org"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_by_default_no_page_is_told_anything() -> None:
    rig = answering("a" + EOS)
    response = rig.post(
        "/v1/chat/completions", {"messages": HELLO}, headers={"origin": "https://a.org"}
    )
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_all_routes_answer_under_the_root_path_and_without_it() -> None:
    rig = answering("a" + EOS, root_path="/llm", keys=Keys([SECRET]))
    for root in ("", "/llm"):
        assert rig.request("GET", f"{root}/health").status_code == 200
        assert rig.request("GET", f"{root}/v1/models").status_code == 401
        headers = {"x-api-key": SECRET}
        assert rig.request("GET", f"{root}/v1/models", headers=headers).status_code == 200
        assert rig.request("GET", f"{root}/nothing").status_code == 404
    document = rig.request("GET", "/openapi.json").json()
    assert document["servers"] == [{"url": "/llm"}]


@pytest.mark.parametrize(("path", "found"), [("", ""), ("/", ""), ("/a", "/a"), ("/a/b/", "/a/b")])
def test_a_root_path_ends_without_a_slash(path: str, found: str) -> None:
    assert root_path(path) == found


@pytest.mark.parametrize("path", ["a", "//a", "/a b", "/a?b", "/%41"])
def test_what_is_no_root_path_is_told(path: str) -> None:
    with pytest.raises(BadSetting, match="root_path"):
        root_path(path)


def test_a_model_has_several_names() -> None:
    settings = load({"model": "m", "alias": ["gpt-4o", "m", "other"]}, {}).settings
    assert serve_options(settings, "m").names == ("m", "gpt-4o", "other")
    body = answering("a" + EOS).chat(model="alias").json()
    assert body["model"] == "alias"


# Limits and defaults


def limited(**how: Any) -> Session:
    return Session(script("a" + EOS), TOKENIZER, ENCODER, new_id=counter(), **how)


def asked(session: Session, effort: Any = None, **options: Any) -> Any:
    conversation = Conversation(messages=(Message("user", "Hi"),), effort=effort)
    return asyncio.run(session.chat(conversation, Options(**options))).request


def test_no_answer_is_longer_than_the_operator_allows() -> None:
    assert asked(limited(max_output=100)).sampling.max_tokens == 100
    assert asked(limited(max_output=100), max_tokens=1000).sampling.max_tokens == 100
    assert asked(limited(max_output=100), max_tokens=10).sampling.max_tokens == 10
    raw = asyncio.run(limited(max_output=100).complete([70], Options(max_tokens=500)))
    assert raw.request.sampling.max_tokens == 100


def test_what_exceeds_the_context_is_lowered_or_refused() -> None:
    limit = script("a").info.max_context
    num_prompt = len(asked(limited()).prompt)
    lowered = asked(limited(), max_tokens=limit).sampling.max_tokens
    assert lowered == limit - num_prompt
    rig = answering("a" + EOS)
    rig.server.sessions = [limited(clamp=False)]
    error = rig.chat(max_tokens=limit).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert error["message"].startswith(
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{num_prompt + limit} tokens ({num_prompt} in the messages, {limit} in the completion)."
    )
    assert asked(limited(clamp=False)).sampling.max_tokens <= limit, "nobody asked for more"


def test_an_operators_effort_is_for_requests_that_name_none() -> None:
    text = [TOKENIZER.decode(asked(limited(default_effort=e)).prompt) for e in (None, "low", "max")]
    assert len(text[1]) < len(text[0]) < len(text[2])
    own = TOKENIZER.decode(asked(limited(default_effort="max"), "low").prompt)
    assert own == text[1]


def test_an_operators_sampling_goes_before_the_models_and_a_requests_before_both(
    tmp_path: Path,
) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.9, "top_p": 0.8}')
    model = SamplingDefaults.load(tmp_path)
    defaults = SamplingDefaults.parse('{"temperature": 0.3, "top_k": 7}').over(model)
    found = asked(limited(defaults=defaults)).sampling
    assert (found.temperature, found.top_p, found.top_k) == (0.3, 0.8, 7)
    assert asked(limited(defaults=defaults), temperature=0.0).sampling.temperature == 0.0


@pytest.mark.parametrize("text", ["temperature=1", '{"temperature": 3}', '{"heat": 1}', "[]"])
def test_default_sampling_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(BadSetting, match="default_sampling"):
        SamplingDefaults.parse(text)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_sent_under_both_names_on_request(stream: bool) -> None:
    for copy in (False, True):
        response = answering("why</think>x" + EOS, reasoning_copy=copy).chat(stream=stream)
        assert response.text.count('"reasoning_content"') >= 1
        assert response.text.count('"reasoning_content"') * copy == response.text.count(
            '"reasoning"'
        )


# Certificates


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        ("none.pem", "", "tls_cert .*none.pem cannot be read"),
        ("cert.pem", "none.pem", "tls_key .*none.pem cannot be read"),
        ("cert.pem", "other_key.pem", "tls_key .*other_key.pem is not the key of"),
        ("cert.pem", "encrypted_key.pem", "tls_key .*encrypted_key.pem is encrypted"),
        ("cert.pem", "", "cannot be used"),
        ("../README.md", "key.pem", "cannot be used"),
        ("", "key.pem", "without tls_cert"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told(cert: str, key: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        check_certificate(*(str(TLS / name) if name else "" for name in (cert, key)))


def test_a_server_with_a_certificate_speaks_https() -> None:
    cert, key = str(TLS / "cert.pem"), str(TLS / "key.pem")
    check_certificate(cert, key)
    check_certificate("", "")

    async def run() -> None:
        rig = answering("a" + EOS)
        http = HttpServer(rig.server, cert, key)
        listener = listen("127.0.0.1", 0)
        serving = asyncio.ensure_future(http.serve([listener]))
        url = url_of(listener, "https")
        context = ssl.create_default_context(cafile=cert)
        async with httpx.AsyncClient(base_url=url, verify=context) as client:
            body = (
                await client.post("/v1/chat/completions", json={"messages": HELLO} | OFF)
            ).json()
            assert body["choices"][0]["message"]["content"] == "a"
        http.stop()
        await serving

    asyncio.run(asyncio.wait_for(run(), 20))


# The log


def entries(caplog: Any) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if hasattr(record, "fields")]


@pytest.fixture
def logged(caplog: Any) -> Any:
    caplog.set_level(logging.INFO, "relight.serve.journal")
    return caplog


def test_a_request_is_one_line_that_tells_what_it_cost_and_not_what_it_said(logged: Any) -> None:
    rig = answering("why</think>hidden" + EOS, num_cached=2, log_requests="on", keys=Keys([SECRET]))
    headers = {"x-api-key": SECRET, "x-request-id": "trace-7"}
    body = {"messages": [{"role": "user", "content": "private"}]}
    response = rig.post("/v1/chat/completions", body, headers=headers)
    assert response.headers["x-request-id"] == "trace-7"
    [entry] = entries(logged)
    made = len(rig.client.answer(rig.client.requests[0]))
    assert (entry["request_id"], entry["status"], entry["finish"]) == ("trace-7", 200, ["stop"])
    assert entry["ids"] == [response.json()["id"].removeprefix("chatcmpl-")]
    assert f"{entry['ids'][0]}: " in logged.text, "the engine's line of it has this id only"
    assert (entry["cached_tokens"], entry["made_tokens"]) == (2, made)
    assert entry["reasoning_tokens"] == 3
    for text in ("private", "hidden", "why", SECRET):
        assert text not in logged.text


def test_texts_are_logged_on_request_and_keys_never(logged: Any) -> None:
    rig = answering("hidden" + EOS, log_requests="text", keys=Keys([SECRET]))
    body = {"messages": [{"role": "user", "content": "private"}], "stream": True} | OFF
    rig.post("/v1/chat/completions", body, headers={"authorization": f"Bearer {SECRET}"})
    [entry] = entries(logged)
    assert "private" in entry["sent"]
    assert "data: [DONE]" in entry["answered"]
    assert SECRET not in logged.text


def test_what_fails_is_logged_with_its_reason_and_probes_are_not(logged: Any) -> None:
    rig = answering("a" + EOS, log_requests="on")
    rig.chat(temperature=9)
    rig.request("GET", "/health")
    rig.request("GET", "/metrics")
    [entry] = entries(logged)
    assert (entry["status"], entry["error"]) == (400, "invalid_request_error")


def test_what_was_made_before_an_answer_failed_is_logged(logged: Any) -> None:
    made = TOKENIZER.encode_raw("half an")
    one = rig(ReplayClient(lambda _: made, finish="abort"), log_requests="on")
    assert one.chat(**OFF).status_code == 503
    [entry] = entries(logged)
    assert (entry["made_tokens"], entry["finish"]) == (len(made), ["abort"])


def test_nothing_is_logged_where_that_is_asked(logged: Any) -> None:
    answering("a" + EOS, log_requests="off").chat()
    assert entries(logged) == []


def test_a_line_of_the_log_is_one_line_whatever_a_client_sends(logged: Any) -> None:
    rig = answering("a" + EOS, log_requests="on")
    rig.request("GET", "/v1/models/a%1b%5b31m%0d forged")
    assert logged.records[-1].getMessage().isprintable()


def test_an_entry_in_json_has_its_fields_beside_the_sentence() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "a %s", ("b",), None)
    record.fields = {"status": 200, "path": "/\n"}
    line = JsonFormatter("server").format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry | {"time": None} == {
        "time": None,
        "level": "info",
        "process": "server",
        "message": "a b",
        "status": 200,
        "path": "/\n",
    }
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    assert (
        "ZeroDivisionError" in msgspec.json.decode(JsonFormatter("x").format(record))["traceback"]
    )


def test_every_secret_is_a_list_that_is_never_shown() -> None:
    assert [knob.name for knob in KNOBS.values() if knob.secret] == ["api_key"]
    assert KNOBS["api_key"].show(("a", "b")) == "2 given"
