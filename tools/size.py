"""Prints the lines of code of each room, without blank lines, comments and docstrings, and of its
tests. A signal when something grows, never a limit."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            lines.difference_update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    return len(lines)


def main() -> None:
    code, tests, files = Counter[str](), Counter[str](), Counter[str]()
    for path in sorted([*ROOT.glob("relight/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        top, *inner = path.relative_to(ROOT).parts
        room = inner[0] if len(inner) > 1 else "."
        lines = code_lines(path.read_text(encoding="utf-8"))
        if top == "tests" or path.name.startswith("test_"):
            tests[room] += lines
        else:
            code[room] += lines
            files[room] += 1
    print(f"{'room':10} {'files':>6} {'code':>7} {'tests':>7}")
    for room in sorted(code | tests):
        print(f"{room:10} {files[room]:6} {code[room]:7} {tests[room]:7}")
    print(f"{'total':10} {files.total():6} {code.total():7} {tests.total():7}")


if __name__ == "__main__":
    main()
