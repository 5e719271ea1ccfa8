import io

from rich.console import Console

from relight.cli.progress import load_bar, load_line


def test_the_line_after_loading_gives_bytes_seconds_and_rate():
    assert load_line(3_000_000_000, 1.5) == "loaded 3.00 GB in 1.5 s (2.00 GB/s)"


def test_the_bar_ends_with_one_line_of_what_was_loaded():
    console = Console(record=True, width=100, file=io.StringIO())
    with load_bar(console) as progress:
        progress(0, 2_000_000_000)
        progress(2_000_000_000, 2_000_000_000)
    assert "loaded 2.00 GB in" in console.export_text()


def test_nothing_is_said_about_loading_when_nothing_was_moved():
    console = Console(record=True, width=100, file=io.StringIO())
    with load_bar(console) as progress:
        progress(0, 0)
    assert not console.export_text().strip()
