"""The seeded coin of TokenRouter's `fixed` router, so that a dispatcher of our own takes the very same decisions.

Counter-based: a pure function of (seed, choice, position, purpose, model), as in `scheduler/src/router/draw.rs`.
"""

import struct

MASK = (1 << 64) - 1
GOLDEN = 0x9E37_79B9_7F4A_7C15
PURPOSE_ROUTE = 1
ENTRY_MODEL = 0


def mix(x):
    """A bijection of 64-bit words (xor, shift, multiply)."""
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & MASK
    return x ^ (x >> 31)


def draw(seed, choice, position, purpose=PURPOSE_ROUTE, model=ENTRY_MODEL):
    """A number in [0, 1) with 53 random bits."""
    state = mix((seed & MASK) ^ GOLDEN)
    for word in (choice, position, purpose, model):
        state = mix(state ^ mix((word + GOLDEN) & MASK))
    return (state >> 11) / (1 << 53)


def share(fraction):
    """The share as the router holds it: rounded to 32 bits once."""
    return struct.unpack("f", struct.pack("f", fraction))[0]


def asks_large(seed, position, fraction):
    """Whether the large model writes the token at `position` (tokens of the prompt count) of a request."""
    return draw(seed, 0, position) < fraction


def writers(seed, prompt_tokens, answer_tokens, fraction):
    """Who writes each token of an answer: 0 the small model, 1 the large one."""
    fraction = share(fraction)
    return [int(asks_large(seed, prompt_tokens + i, fraction)) for i in range(answer_tokens)]
