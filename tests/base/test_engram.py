"""Compares the constants of n-gram hashes with published figures, numpy and the golden model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relight.base.engram import is_prime, multipliers, table_primes, table_rows
from relight.base.official import V41_FLASH
from relight.base.pcg64 import Pcg64

ENGRAM = json.loads((Path(__file__).parents[1] / "golden" / "v41" / "engram.json").read_text())
OFFICIAL = V41_FLASH.engram
assert OFFICIAL is not None
TINY = replace(OFFICIAL, heads=2, head_dim=32, vocab_size=200, compressed_vocab=265)


def test_the_published_primes_and_rows():
    first, second = table_primes(OFFICIAL, 2)
    assert first[0][:3] == (16000057, 16000079, 16000081)
    assert (first[1][0], first[2][0], first[2][-1]) == (16000189, 16000339, 16000463)
    assert (second[0][0], second[2][-1]) == (16000477, 16000889)
    assert table_rows(OFFICIAL, 2) == (384006168, 384016682)


def test_the_published_multipliers():
    assert multipliers(OFFICIAL, 1) == (
        *(76632096046245, 4839876093313),
        *(35959672319349, 73987337458391),
    )
    assert multipliers(OFFICIAL, 14) == (
        *(67716810739261, 51510806800915),
        *(30921347202721, 82619226485591),
    )


def test_the_constants_of_the_golden_model():
    assert [[list(order) for order in table] for table in table_primes(TINY, 2)] == ENGRAM["primes"]
    assert list(table_rows(TINY, 2)) == ENGRAM["rows"]
    assert [list(multipliers(TINY, layer)) for layer in (1, 4)] == ENGRAM["multipliers"]


def test_products_of_a_class_and_a_multiplier_stay_in_64_bits():
    for spec in (OFFICIAL, TINY):
        for layer in range(64):
            largest = max(multipliers(spec, layer))
            assert largest % 2 == 1
            assert largest * (spec.compressed_vocab - 1) < 2**63


def test_small_primes_are_told_from_all_other_numbers():
    sieve = np.ones(10_000, dtype=bool)
    sieve[:2] = False
    for factor in range(2, 100):
        sieve[2 * factor :: factor] = False
    assert [is_prime(n) for n in range(10_000)] == sieve.tolist()


@pytest.mark.parametrize("number", [2047, 3277, 25326001, 16000057 * 17])
def test_numbers_that_deceive_single_witnesses_are_composite(number):
    assert not is_prime(number)


@pytest.mark.parametrize("seed", [0, 1, 10007, 140098, 2**32, 2**40 + 3, 2**127 + 9])
def test_draws_are_those_of_numpy(seed):
    theirs, ours = np.random.default_rng(seed), Pcg64(seed)
    for bound in (2**32 + 2, 46539438283891, 2**62 + 1, 2**63 - 1):
        wanted = theirs.integers(0, bound, size=50, dtype=np.int64).tolist()
        assert [ours.below(bound) for _ in range(50)] == wanted
