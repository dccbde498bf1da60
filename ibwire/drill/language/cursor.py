"""A position in a line of tokens, checks of the next token, and their errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ibwire.base.errors import ScriptError
from ibwire.drill.language.tokens import Kind, Token

SYMBOLS = frozenset({
    "psn", "rq_psn", "sq_psn", "qpn", "peer_qpn", "mtu", "pkey",
    "va", "rkey", "lkey", "size", "end",
    "srqn",
    "cm_id", "chosen_cm_id", "peer_cm_id", "transaction", "service",
    "gid", "peer_gid", "guid", "peer_guid",
})  # fmt: skip
"""Values of the connection, of its first memory region, and of its connection management."""

PARTS = ("va", "rkey", "lkey", "size", "end")
"""Attributes of a named region or window."""

OWNED = ("rq_psn", "sq_psn", "qpn", "peer_qpn", "mtu", "pkey")
"""Attributes of a named queue pair."""

IDENTIFIERS = ("cm_id", "chosen_cm_id", "peer_cm_id", "transaction")
"""Those of its exchange with the connection manager."""


class Cursor:
    """A place in the tokens of a line."""

    def __init__(
        self,
        path: str,
        tokens: tuple[Token, ...],
        captured: set[str],
        regions: set[str],
        queue_pairs: set[str],
    ) -> None:
        self.path = path
        self.captured = captured
        """Variables with a value at this line."""
        self.regions = regions
        """Memory regions and windows named before this line."""
        self.queue_pairs = queue_pairs
        """Queue pairs named before this line."""
        self._tokens = tokens
        self._at = 0

    @property
    def here(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    @property
    def after(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    @property
    def at_end(self) -> bool:
        """Whether the end of the line is reached."""
        return self.here.kind is Kind.END

    def take(self) -> Token:
        """Take the next token; the end of the line is never passed."""
        token = self.here
        if token.kind is not Kind.END:
            self._at += 1
        return token

    def takes(self, sign: str) -> bool:
        """Take this sign if it is next."""
        found = self.here.kind is Kind.SIGN and self.here.text == sign
        if found:
            self._at += 1
        return found

    def takes_name(self, name: str) -> bool:
        """Take this word if it is next."""
        found = self.here.kind is Kind.NAME and self.here.text == name
        if found:
            self._at += 1
        return found

    def sign(self, sign: str) -> Token:
        """Take this sign, which must be next."""
        token = self.here
        if not self.takes(sign):
            raise self.expected(f"'{sign}'", token)
        return token

    def name(self, what: str) -> Token:
        """Take a name, which must be next."""
        if self.here.kind is not Kind.NAME:
            raise self.expected(what, self.here)
        return self.take()

    def end(self, what: str = "the end of the line") -> None:
        """Raise unless the line ends here."""
        if not self.at_end:
            raise self.expected(what, self.here)

    @property
    def position(self) -> int:
        """The number of tokens taken."""
        return self._at

    def text_since(self, position: int) -> str:
        """The text since a position, as written, with normal spaces."""
        return "".join(token.text for token in self._tokens[position : self._at])

    def error(self, token: Token, reason: str) -> ScriptError:
        """An error about a token."""
        return ScriptError(self.path, token.line, token.column, reason)

    def expected(self, what: str, found: Token) -> ScriptError:
        """An error about a token other than the expected one."""
        return self.error(found, f"expected {what}, found {found}")

    def unknown(self, token: Token, what: str, known: Iterable[str]) -> ScriptError:
        """An error about an unknown name."""
        return self.error(token, unknown(token.text, what, known))

    def check_symbol(self, token: Token, names: Mapping[str, int]) -> None:
        """Raise for an unknown symbol."""
        owner, _, part = token.text.partition(".")
        if token.text in SYMBOLS or (owner in self.regions and part in PARTS):
            return
        if owner in self.queue_pairs and part in (*OWNED, *IDENTIFIERS):
            return
        own = [f"{name}.{part}" for name in self.regions for part in PARTS]
        parts = (*OWNED, *IDENTIFIERS)
        own += [f"{name}.{part}" for name in self.queue_pairs for part in parts]
        raise self.unknown(token, "number", [*(names or SYMBOLS), *own])


def own_symbols(symbols: Mapping[str, int], owner: str) -> dict[str, int]:
    """Symbols in a line of a queue pair: its own have no name before them there."""
    if not owner:
        return dict(symbols)
    begin = f"{owner}."
    own = {name[len(begin) :]: symbols[name] for name in symbols if name.startswith(begin)}
    return {**symbols, **own}


def unknown(name: str, what: str, known: Iterable[str]) -> str:
    """A message about an unknown name, with the known ones."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, 1)
    if close:
        hint = f"did you mean {close[0]}?"
    elif not names:
        hint = "expected nothing more"
    elif len(names) <= _MOST_LISTED:
        hint = f"expected {', '.join(names)}"
    else:
        hint = f"expected one such as {', '.join(names[:_FEW])}"
    return f"{name} is not {with_article(what)}; {hint}"


_MOST_LISTED = 40
_FEW = 12


def with_article(noun: str) -> str:
    """A noun with `a` or `an`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
