"""Tells whether grammars compile, in a process of its own: a client's grammar may take for ever,
or all memory, or bring the compiler down, and then it is this process that ends.

It reads a folder with a tokenizer, then grammars, and answers each with a reason why not, or with
nothing: all are JSON strings, one a line. Run as `python -m relight.text.compile`; it ends with its
standard input.
"""

import json
import resource
import sys
from pathlib import Path

from relight.base.errors import BadRequest
from relight.text.grammar import Vocabulary
from relight.text.tokenizer import Tokenizer

MAX_BYTES = 4 << 30
"""Of address space, most of which is never touched."""


def reason_against(vocabulary: Vocabulary, grammar: str) -> str:
    """Why the grammar does not compile; nothing if it does."""
    try:
        vocabulary.compile(grammar)
    except BadRequest as error:
        return error.message
    return ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    # Whoever started us has checked the tokenizer.
    vocabulary = Vocabulary(Tokenizer.load(Path(json.loads(sys.stdin.readline())), trust=True))
    print(json.dumps(""), flush=True)
    for line in sys.stdin:
        print(json.dumps(reason_against(vocabulary, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
