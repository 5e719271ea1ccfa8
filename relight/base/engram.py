"""The constants of Engram's n-gram hashes: primes and multipliers. Knows no tensor and no token.

A layer with a table has one prime for each order (2 … max_ngram) and head. A hash is taken modulo
its prime, so primes are the sizes of buckets that lie behind each other in the table.
"""

from collections.abc import Iterator

from relight.base.pcg64 import Pcg64
from relight.base.specs import EngramSpec

LAYER_SEED = 10007

WITNESSES = (2, 3, 5, 7)
"""Miller-Rabin with these is exact below 3,215,031,751, above any size that a config may give."""


def table_primes(spec: EngramSpec, num_tables: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Primes by table, order and head. The search starts at `vocab_size` again for each order and
    leaves out what was used before, in other tables too."""
    used: set[int] = set()

    def bucket_sizes() -> Iterator[int]:
        candidate = spec.vocab_size
        for _ in range(spec.heads):
            while candidate in used or not is_prime(candidate):
                candidate += 1
            used.add(candidate)
            yield candidate

    return tuple(
        tuple(tuple(bucket_sizes()) for _ in range(spec.max_ngram - 1)) for _ in range(num_tables)
    )


def table_rows(spec: EngramSpec, num_tables: int) -> tuple[int, ...]:
    """Rows of each table: the sum of its primes."""
    return tuple(sum(map(sum, orders)) for orders in table_primes(spec, num_tables))


def multipliers(spec: EngramSpec, layer: int) -> tuple[int, ...]:
    """Odd factors of the tokens 0 … max_ngram - 1 back. Products with a class of tokens stay below
    2^63."""
    bound = max(1, (2**63 - 1) // spec.compressed_vocab // 2)
    generator = Pcg64(LAYER_SEED * layer)
    return tuple(2 * generator.below(bound) + 1 for _ in range(spec.max_ngram))


def is_prime(number: int) -> bool:
    if number < 2:
        return False
    for witness in WITNESSES:
        if number % witness == 0:
            return number == witness
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, witness, odd, twos) for witness in WITNESSES)


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
