"""Drafting: guesses at a row's next tokens that cost next to nothing, for the model to verify in one step.

As Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding", 2.1), without a
second model: the guesses come from the row's own prompt and continuation, by what followed the same
tokens before. A wrong guess costs time and changes no token, so guesses may be rough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_DRAFT = 8  # tokens guessed ahead
MAX_ROWS = 1  # several keep the processor busy with tokens that are certain
PROMISING = 0.5  # of the last tokens guessed right: with less, guessing takes longer than it saves
MAX_SUFFIXES = 1 << 15  # remembered at a time, some 4 MB a row; then the table starts anew

_ORDERS = (2, 4)  # lengths of the suffixes that are looked up
_TOKEN_BITS = 24
_MAX_VOTES = 3
_COST = 0.06  # of one more token of one row in a step, in steps of one token
_LEAST = 0.1  # a guess that is less likely than this to be read is not worth a step's widening
# Of each order, the longest first: its first rate, a bit that tells its suffixes from others', their mask.
_SUFFIXES = [
    (rank * (_MAX_VOTES + 1), 1 << _TOKEN_BITS * order, (1 << _TOKEN_BITS * order) - 1)
    for rank, order in reversed([*enumerate(_ORDERS)])
]
_LONGEST = _SUFFIXES[0][2]


class Draft:
    """Guesses what follows the tokens of one row, and how likely each guess is to come true.

    For each suffix met, the table holds one token that followed it, and by how many votes it leads the
    others (Boyer and Moore's majority vote). How often a guess by a suffix of that length, with that
    lead, came true is measured on every token, drafted or not: so likelihoods are those of this row, at
    its temperature, and drafting that is off costs nothing to try again.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self._table: dict[int, int] = {}  # suffix -> token << 2 | votes
        self._rates = [0.3] * (len(_ORDERS) * (_MAX_VOTES + 1))
        self.hits = 0.0  # the share of the last tokens, some 16, that was guessed right
        self._recent = 0  # the last tokens in one number, the newest in its lowest bits
        for token in tokens:
            self.learn(token)

    def learn(self, token: int) -> None:
        """Take the row's next token."""
        table, recent = self._table, self._recent
        guessed = hit = False
        for first_rate, mark, mask in _SUFFIXES:
            suffix = recent & mask | mark
            entry = table.get(suffix)
            if entry is None:
                table[suffix] = token << 2
                continue
            votes, right = entry & _MAX_VOTES, entry >> 2 == token
            if not guessed:  # by the longest suffix that is known
                guessed, hit = True, right
                self._rates[first_rate + votes] += (right - self._rates[first_rate + votes]) / 24
            if right:
                table[suffix] = entry + (votes < _MAX_VOTES)
            else:
                table[suffix] = entry - 1 if votes else token << 2
        self.hits += (hit - self.hits) / 16
        self._recent = (recent << _TOKEN_BITS | token) & _LONGEST
        if len(table) > MAX_SUFFIXES:
            table.clear()

    def propose(self, most: int) -> tuple[list[int], list[float]]:
        """Up to `most` tokens, and for each how likely it and all before it are to come true."""
        table, recent = self._table, self._recent
        tokens: list[int] = []
        likely: list[float] = []
        chance = 1.0
        while len(tokens) < most:
            for first_rate, mark, mask in _SUFFIXES:
                entry = table.get(recent & mask | mark)
                if entry is not None:
                    chance *= self._rates[first_rate + (entry & _MAX_VOTES)]
                    break
            if entry is None or chance < _LEAST:
                break
            tokens.append(entry >> 2)
            likely.append(chance)
            recent = (recent << _TOKEN_BITS | entry >> 2) & _LONGEST
        return tokens, likely


def worthwhile(likely: Sequence[Sequence[float]]) -> int:
    """How many drafted tokens a step should read: the number that promises the most tokens a second.

    likely: for each row that reads on, what `Draft.propose` said of its guesses. What a wider step costs is
    taken as fixed and not measured on the way, so that the same seed reads the same widths every time.
    """
    best, expected = 0, float(len(likely))
    best_rate = expected * 1.02  # less is not worth the risk
    for drafted in range(1, 1 + max(map(len, likely), default=0)):
        expected += sum(chances[drafted - 1] for chances in likely if len(chances) >= drafted)
        rate = expected / (1 + _COST * len(likely) * drafted)
        if rate > best_rate:
            best, best_rate = drafted, rate
    return best
