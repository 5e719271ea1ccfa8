"""Properties of the command line as a user meets it: quick, clear, one line for an error."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from relight import __version__
from relight.base.errors import BadSetting
from relight.base.settings import KNOBS, Loaded
from relight.cli import main as command_line
from relight.cli.options import with_settings
from relight.lab.synth import PRESETS


def relight(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relight", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )


def test_the_version_is_the_packages() -> None:
    assert relight("version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    "module", ["relight.cli", "typer", "relight.cli.step", "relight.lab.doctor"]
)
def test_ctrl_c_while_anything_is_imported_ends_without_a_word(module: str) -> None:
    """The last of them is imported by the command itself."""
    script = """if True:
        import os, signal, sys

        class Interrupt:
            def find_spec(self, name, *rest):
                if name == wanted:
                    os.kill(os.getpid(), signal.SIGINT)

        wanted = sys.argv.pop(1)
        sys.meta_path.insert(0, Interrupt())
        from relight.__main__ import main
        main()
    """
    command = [sys.executable, "-c", script, module, "doctor", "--json", "--no-audit"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_help_imports_no_heavy_module() -> None:
    script = (
        "import sys; from relight.cli.main import app; app(['--help'], standalone_mode=False); "
        "print(sorted({'torch', 'tokenizers', 'starlette', 'zmq', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def command(groups: Sequence[str]) -> tuple[typer.Typer, list[Loaded]]:
    """A command line whose only command records the settings that it gets."""
    app, seen = typer.Typer(pretty_exceptions_enable=False), []

    @app.command()
    @with_settings(*groups)  # type: ignore[arg-type]
    def record(loaded: Loaded, word: str = "none") -> None:
        seen.append(loaded)
        print(word)

    return app, seen


def test_every_setting_of_a_group_is_a_flag_and_no_other() -> None:
    app, _ = command(["server"])
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for knob in KNOBS.values():
        assert (knob.flag in text) == (knob.group == "server")


def test_a_flag_reaches_the_command_beside_its_own_parameters() -> None:
    app, seen = command(["model", "server"])
    arguments = ["--model", "folder", "--port", "81", "--trust-tokenizer", "--word", "own"]
    result = CliRunner().invoke(app, arguments, env={"RELIGHT_NUM_SLOTS": "5"})
    assert result.output == "own\n"
    settings = seen[0].settings
    assert (settings.model, settings.port, settings.num_slots) == ("folder", 81, 5)
    assert settings.trust_tokenizer
    assert seen[0].sources["port"] == "flag --port"


def test_a_switch_can_be_turned_off_against_a_variable() -> None:
    app, seen = command(["model"])
    arguments = ["--model", "folder", "--no-trust-tokenizer"]
    CliRunner().invoke(app, arguments, env={"RELIGHT_TRUST_TOKENIZER": "true"})
    assert not seen[0].settings.trust_tokenizer


def test_an_error_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise BadSetting("port is 'x' [flag]; wanted 0 to 65535")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: port is 'x' [flag]; wanted 0 to 65535\n"


def test_a_folder_that_cannot_be_written_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "folder")
    done = relight("synth", folder, "--no-tokenizer")
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert folder in error


def test_the_help_of_a_setting_shows_its_default() -> None:
    text = relight("serve", "--help", COLUMNS="200").stdout
    assert "Address to listen on. [default: 127.0.0.1]" in text


def test_the_help_of_synth_names_every_preset() -> None:
    text = " ".join(relight("synth", "--help", COLUMNS="200").stdout.split())
    assert ", ".join(PRESETS) in text


def test_a_task_that_does_not_exist_is_one_line_that_names_all() -> None:
    done = relight("eval", "--tasks", "letters, sums")
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if line.strip()]
    assert "'sums'" in error
    assert "key 4K" in error
