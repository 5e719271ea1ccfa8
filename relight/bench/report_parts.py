"""Pieces of an HTML page: tables, pictures, folded parts. Knows no result; all text is escaped."""

import base64
import html
from collections.abc import Iterable, Sequence

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.4rem;
  border-bottom: 1px solid #ddd; } h3 { font-size: 1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; font-size: .85rem; margin: .6rem 0; }
th, td { text-align: left; padding: .18rem .7rem .18rem 0; border-bottom: 1px solid #eee;
  vertical-align: top; } th { color: #666; font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.valid { color: #00734f; } .invalid, .no { color: #b03024; } .incomplete, .null { color: #8a6d00; }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; }
figcaption, .dim { color: #666; font-size: .85rem; max-width: 48rem; }
details { margin: .5rem 0; } summary { cursor: pointer; color: #0b5c94; }
.scroll { overflow-x: auto; } code { font-size: .85em; }
"""


def page(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def text(value: object) -> str:
    return html.escape(str(value))


def heading(level: int, words: str, anchor: str = "") -> str:
    place = f' id="{text(anchor)}"' if anchor else ""
    return f"<h{level}{place}>{text(words)}</h{level}>"


def paragraph(words: str, kind: str = "") -> str:
    return f'<p class="{kind}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def status(word: str) -> str:
    return f'<span class="{text(word)}">{text(word)}</span>'


def link(anchor: str, words: str) -> str:
    return f'<a href="#{text(anchor)}">{text(words)}</a>'


def bullets(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A column whose name begins with `#` has numbers, and stands at the right. Cells are HTML."""
    kinds = [' class="n"' if name.startswith("#") else "" for name in columns]

    def row(tag: str, cells: Sequence[str]) -> str:
        joined = "".join(
            f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{joined}</tr>"

    head = row("th", [text(name.removeprefix("#")) for name in columns])
    return (
        '<div class="scroll"><table>'
        + head
        + "".join(row("td", r) for r in rows)
        + "</table></div>"
    )


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, without those that are not known."""
    rows = [(text(name), text(value)) for name, value in pairs if value not in (None, "", [])]
    return table(("what", "value"), rows)


def folded(summary: str, inner: str, anchor: str = "") -> str:
    place = f' id="{text(anchor)}"' if anchor else ""
    return f"<details{place}><summary>{text(summary)}</summary>{inner}</details>"


def picture(svg: bytes, caption: str) -> str:
    """As data, so that the page needs no other file and pictures share no names."""
    data = base64.b64encode(svg).decode()
    return (
        f'<figure><img alt="{text(caption)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
