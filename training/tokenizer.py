"""Trains ember's tokenizer: byte-level BPE with 4,096 entries and the markers of the chat format.

What is copied must be spelt alike wherever it stands, so a space joins the word behind it only if
that word is one of the corpus's frequent ones. Digits and capitals in a row stand alone. The fixed
parts of schemas and of tool markup are pieces of their own, so that BPE makes each one token.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Bpe

from relight.text.tokenizer import MARKERS, SPELLING

VOCAB_SIZE = 4096
FREQUENT_WORDS = 420
"""Words that take the space before them along; each costs the pattern one alternative."""

GLUE = (
    r"\{\"name\": \"",
    r"\", \"description\": \"",
    r"[.。]?\", \"parameters\": \{\"type\": \"object\", \"properties\": \{\"",
    r"\": \{\"type\": \"",
    r"\"\}, \"",
    r"\"\}\}, \"required\": \[\"",
    r"\"\]\}\}",
    r"(?:invoke|parameter) name=\"",
    r"\" string=\"(?:true|false)\">",
    r"\">\n</?",
    r"(?:tool_calls|invoke|parameter)>(?:\n</?)?",
    r"</?tool_result>",
)

PARTICLES = "的在是把和向了里有我你不这那个几吗"
"""Chinese is written without spaces: these characters end words well enough."""


def train_tokenizer(texts: Iterable[str], folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. The same texts give the same bytes."""
    corpus = list(texts)
    tokenizer = Bpe(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern(frequent_words(corpus))), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(SPELLING[name], normalized=False) for name in MARKERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPELLING["bos"],
        "eos_token": SPELLING["eos"],
        "pad_token": SPELLING["pad"],
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": 8192,
    }
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, "utf-8")


def frequent_words(corpus: list[str]) -> list[str]:
    counts: Counter[str] = Counter()
    for text in corpus:
        counts.update(re.findall(r"(?<= )[A-Za-z][a-z]+(?![A-Za-z_])", text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return sorted(ranked[:FREQUENT_WORDS])


def pattern(words: list[str]) -> str:
    """The pieces that BPE never merges across, first match first."""
    return "|".join(
        (
            *GLUE,
            rf" (?:{'|'.join(words)}|[a-z])(?![A-Za-z_])",
            r"[A-Z](?![a-z])",
            r"[A-Z]?[a-z]+",
            r"\d",
            rf"[{PARTICLES}]|(?:(?![{PARTICLES}])[\u4e00-\u9fff])+",
            r"\n+",
            r" +",
            r"[-+*×=] ?",
            r"[^-+*×=\sA-Za-z0-9\u4e00-\u9fff]+ ?",
        )
    )
