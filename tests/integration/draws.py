"""Draws of one seed on two devices whose logits differ slightly.

A draw takes one number below 1, which depends on the seed and the position alone, and finds the token in whose share
of the probabilities it falls, the likeliest token first. Devices sum in different orders, so their logits differ by
roundings, and the limits of the shares differ with them. So the tokens are equal unless the number falls between two
such limits: in any case the two tokens' shares have the number in common.
"""

import math

# Both devices round activations to bf16, of 8 bits, at about 8 places of each layer. A value that falls on two sides
# of a rounding limit differs by 2^-8 of itself, and such differences add up like independent ones. They have no common
# direction, so they move a logit by that part of what logits differ from each other, which is about 1 in a model of
# random weights with unit gain.
ROUNDINGS_A_LAYER, LOGIT_SPREAD = 8, 1


def bound(layers):
    """How much the log-probability of one token may differ between two devices."""
    return 2**-8 * math.sqrt(ROUNDINGS_A_LAYER * layers) * LOGIT_SPREAD


def share(row, token, temperature, top_k, top_p, min_p):
    """(begin, end) of the token's share among the likeliest tokens `row`, [(token, log-probability), ...]."""
    row = sorted(row, key=lambda one: -one[1])[:top_k]
    weights = [math.exp((logprob - row[0][1]) / temperature) for _, logprob in row]
    limit, kept, end = top_p * sum(weights), 0, 0
    for end, weight in enumerate(weights, 1):
        kept += weight
        if kept >= limit or (end < len(weights) and weights[end] < min_p):
            break
    at = [one for one, _ in row].index(token)
    before = sum(weights[:at])
    return before / kept, (before + weights[at]) / kept


def check(test, one, other, layers, sampling):
    """`one` and `other`: for each drawn token (token, its log-probability, the likeliest ones as in share()). Returns
    how many positions were compared: behind a token that differs, the two answers have nothing in common."""
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        known = dict(b[2])
        for token, logprob in a[2]:
            test.assertAlmostEqual(logprob, known.get(token, logprob), delta=bound(layers), msg=(at, token))
        shares = [share(row, token, **sampling) for token, _, row in (a, b)]
        test.assertLess(max(s[0] for s in shares), min(s[1] for s in shares), (at, a, b))
        if a[0] != b[0]:
            return at + 1
    return len(one)
