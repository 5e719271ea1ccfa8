"""A result file is whole, judged anew when it is read, and holds no secret."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relight.base.errors import BadSetting
from relight.bench import gate, result
from relight.bench.http import target
from relight.bench.record import Record
from relight.bench.result import Result
from relight.bench.run import Progress, Run
from relight.bench.selftest.harness import Outcome, measure, scenario
from relight.bench.selftest.script import Asked, Reply, Script
from relight.bench.selftest.server import ScriptedServer
from relight.bench.watch import Point

KEY = "a-key-that-nobody-may-see"


@pytest.fixture(scope="module")
def sound() -> Outcome:
    return asyncio.run(measure(Script()))


def written(folder: Path, out: Outcome) -> Path:
    return result.write(folder, out.result, out.records, secret="", series=out.series)


def audited(path: Path) -> Any:
    told, records, rows_hash = result.read(path)
    return gate.audit(told, records, rows_hash, result.series_hash(path, told))


def test_a_result_is_read_as_it_was_written(tmp_path: Path, sound: Outcome) -> None:
    told, records, _ = result.read(written(tmp_path, sound))
    assert told == sound.result
    assert records == sound.records
    assert audited(tmp_path / f"{told.run_id}.json").status == "valid"


def test_rows_hold_every_time_and_no_text(tmp_path: Path, sound: Outcome) -> None:
    path = written(tmp_path, sound)
    rows = (tmp_path / sound.result.requests_ref).read_text().splitlines()
    assert len(rows) == sound.result.counts.sent == 8
    row = json.loads(rows[0])
    for name in ("t_sched", "t_send", "t_headers", "t_first_any", "t_first_answer", "t_last"):
        assert row[name] > 0
    assert len(row["chunks"]) == 8
    for served in sound.server.served:
        assert served.asked.prompt not in path.read_text() + "".join(rows)


def test_a_file_cannot_say_valid_of_itself(tmp_path: Path, sound: Outcome) -> None:
    path = written(tmp_path, sound)
    text = json.loads(path.read_text())
    text["canary_ok"] = [True, False]
    path.write_text(json.dumps(text))
    told = audited(path)
    assert told.status == "invalid"
    assert any(reason.startswith("verdict") for reason in told.reasons)


def test_rows_that_were_changed_or_dropped_are_found(tmp_path: Path, sound: Outcome) -> None:
    path = written(tmp_path, sound)
    rows = tmp_path / sound.result.requests_ref
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[1:]))
    reasons = " ".join(audited(path).reasons)
    assert "not those that were measured" in reasons
    assert "8 sent; the rows hold 7" in reasons


def test_seconds_that_were_changed_are_found(tmp_path: Path, sound: Outcome) -> None:
    path = written(tmp_path, sound)
    assert sound.result.series_ref is not None
    assert result.read_series(path, sound.result) == sound.series != []
    assert audited(path).status == "valid"
    seconds = tmp_path / sound.result.series_ref
    seconds.write_bytes(seconds.read_bytes() * 2)
    assert any(reason.startswith("series") for reason in audited(path).reasons)
    seconds.unlink()
    with pytest.raises(BadSetting, match="cannot be read"):
        audited(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.update(schema="relight.bench/9"), "schema 'relight.bench/9'"),
        (lambda text: text.pop("counts"), "is no result"),
        (lambda text: text.update(requests_ref="../x"), "wanted a file name"),
        (lambda text: text.update(requests_ref="gone.jsonl"), "cannot be read"),
    ],
)
def test_a_file_that_is_no_result_is_refused(
    tmp_path: Path, sound: Outcome, change: Any, told: str
) -> None:
    path = written(tmp_path, sound)
    text = json.loads(path.read_text())
    change(text)
    path.write_text(json.dumps(text))
    with pytest.raises(BadSetting) as refused:
        result.read(path)
    assert told in refused.value.message


def test_no_key_reaches_a_file_even_if_the_server_repeats_it(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        return Reply(status=500) if asked.measured else Reply()

    async def run() -> tuple[Result, list[Record]]:
        async with ScriptedServer(
            Script(reply=reply, refusal=f"bad key {KEY}, not sk-abcdefgh12345")
        ) as server:
            wanted = scenario(body={"temperature": 0, "gateway_key": "another-secret"})
            return await Run(target(server.url, KEY), wanted).measure()

    told, records = asyncio.run(run())
    assert "bad key [key]" in records[0].error
    result.write(tmp_path, told, records, secret=KEY)
    stored = "".join(file.read_text() for file in tmp_path.iterdir())
    for secret in (KEY, "another-secret", "sk-abcdefgh12345"):
        assert secret not in stored
    assert told.scenario.body["temperature"] == 0
    leaking = [msgspec.structs.replace(records[0], error=KEY)]
    with pytest.raises(AssertionError, match="a secret in a result"):
        result.write(tmp_path / "other", told, leaking, secret=KEY)
    assert not list((tmp_path / "other").glob("*"))


@pytest.mark.parametrize(
    "url", ["http://user:pass@host", "http://host/v1?key=x", "host:80", "ftp://host", "http://h:x"]
)
def test_a_url_with_a_secret_or_no_server_is_refused(url: str) -> None:
    with pytest.raises(BadSetting) as refused:
        target(url)
    assert "pass" not in refused.value.message.replace("password", "")


def test_schema_v1_is_what_it_was(golden: Callable[[str, str], None]) -> None:
    """A field that is renamed, dropped or retyped needs a new version of the schema."""
    for name, kind in (("result", Result), ("row", Record)):
        schema = json.dumps(without_words(msgspec.json.schema(kind)), indent=1)
        golden(f"bench/{name}-v1.schema.json", schema + "\n")


def without_words(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: without_words(v) for k, v in schema.items() if k != "description"}
    return [without_words(v) for v in schema] if isinstance(schema, list) else schema


def test_an_address_of_six_is_written_in_brackets() -> None:
    assert target("http://[::1]:8000/v1").shown == "http://[::1]:8000"


def test_a_stopped_run_leaves_a_partial_result_that_says_so(tmp_path: Path) -> None:
    async def run() -> tuple[Result, list[Record], list[Point]]:
        async with ScriptedServer(Script(reply=lambda _: Reply(gap_s=0.02))) as server:
            measuring: Run | None = None

            def stop(progress: Progress) -> None:
                assert measuring is not None
                if progress.done == 4:
                    measuring.stop()

            measuring = Run(target(server.url), scenario(requests=40), progress=stop)
            return *(await measuring.measure()), measuring.points

    told, records, points = asyncio.run(run())
    assert not told.complete
    assert told.validity is not None
    assert told.validity.status == "incomplete", told.validity.reasons
    assert 4 <= told.counts.ok < 40
    assert told.counts.ok + told.counts.failures.get("cancelled", 0) == len(records)
    assert audited(result.write(tmp_path, told, records, "", points)).status == "incomplete"
