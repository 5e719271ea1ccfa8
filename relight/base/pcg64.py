"""The random integers of numpy's `default_rng`, from a seed. Knows nothing of what they are for.

V4.1's hash multipliers were drawn with it. numpy does not promise the same draws for ever, so the
generator is here: PCG XSL-RR 128/64 of O'Neill (2014), seeded by a pool of four hashed words.
"""

WORD, QUAD, STATE = 2**32 - 1, 2**64 - 1, 2**128 - 1
STEP = 0x2360ED051FC65DA44385DF649FCCF645

POOL_WORDS = 4
POOL_START, POOL_FACTOR = 0x43B0D7E5, 0x931E8875
OUTPUT_START, OUTPUT_FACTOR = 0x8B51F9DD, 0x58F38DED
MIX_LEFT, MIX_RIGHT = 0xCA01F9DD, 0x4973F715


class Pcg64:
    """`seed` is below 2^128."""

    def __init__(self, seed: int) -> None:
        assert 0 <= seed <= STATE
        words = _seed_words(seed)
        high, low, high_increment, low_increment = (
            words[2 * i] | words[2 * i + 1] << 32 for i in range(4)
        )
        self._increment = ((high_increment << 64 | low_increment) << 1 | 1) & STATE
        self._state = self._increment  # one step from 0
        self._state = self._state + (high << 64 | low) & STATE
        self._advance()

    def _advance(self) -> None:
        self._state = self._state * STEP + self._increment & STATE

    def quad(self) -> int:
        """64 random bits."""
        self._advance()
        folded, turn = (self._state >> 64 ^ self._state) & QUAD, self._state >> 122
        return (folded >> turn | folded << 64 - turn) & QUAD

    def below(self, bound: int) -> int:
        """Uniform in 0 … bound - 1, by Lemire's multiplication; `bound` above 2^32, since numpy
        draws smaller ones in another way."""
        assert 2**32 < bound <= QUAD
        product = self.quad() * bound
        if product & QUAD < bound:
            threshold = (2**64 - bound) % bound
            while product & QUAD < threshold:
                product = self.quad() * bound
        return product >> 64


class _Hash:
    """Hashes words, each with another constant."""

    def __init__(self, start: int, factor: int) -> None:
        self._constant, self._factor = start, factor

    def __call__(self, word: int) -> int:
        word ^= self._constant
        self._constant = self._constant * self._factor & WORD
        word = word * self._constant & WORD
        return word ^ word >> 16


def _seed_words(seed: int) -> list[int]:
    hashed = _Hash(POOL_START, POOL_FACTOR)
    pool = [hashed(seed >> 32 * i & WORD) for i in range(POOL_WORDS)]
    for source in range(POOL_WORDS):
        for target in range(POOL_WORDS):
            if source != target:
                mixed = (pool[target] * MIX_LEFT - hashed(pool[source]) * MIX_RIGHT) & WORD
                pool[target] = mixed ^ mixed >> 16
    hashed = _Hash(OUTPUT_START, OUTPUT_FACTOR)
    return [hashed(pool[i % POOL_WORDS]) for i in range(8)]
