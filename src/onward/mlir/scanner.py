"""Read characters of an MLIR text: names, numbers, quoted texts, brackets; with the place of what is wrong.

The text is bytes read as Latin-1, one character per byte: it cannot fail, and a quoted text gives its bytes back.
Nothing is evaluated, no function here is recursive, and what is skipped is skipped in one pass.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from typing import NoReturn

from onward.errors import Diagnostic, ModelError

M130 = "M130"

_SPACE = re.compile(r"[ \t\r\n]*")
_UNQUOTED = re.compile(r'[^"\\\n]*')
_ESCAPE = re.compile(r"\\(?:([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_SPECIAL = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_VALUE = re.compile(r"%([A-Za-z0-9_$.-]+)")
_NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?)?)")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_BRACKET = re.compile(r'->|[()\[\]{}<>"]')
DIGITS = 400  # of a number: a float64 written in full has 309


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a text may need. Every text that we know is within the defaults."""

    file_bytes: int = 6 * 2**30  # the hex of a protobuf file of 2 GB, and what is around it
    nesting: int = 100
    operations: int = 2_000_000
    rank: int = 64
    splat_bytes: int = 2**28  # that what is written once and used often may take, and 16 times the size of the text


DEFAULT = Limits()


class Scanner:
    """A text and a position in it."""

    def __init__(self, text: str, limits: Limits = DEFAULT) -> None:
        self.text, self.limits = text, limits
        self.position = 0
        self._lines: list[int] = []

    # -- places ----------------------------------------------------------------------------------------------

    def line(self, position: int | None = None) -> int:
        """Return the number of the line at a position."""
        if not self._lines:
            self._lines = [found.start() for found in re.finditer("\n", self.text)] or [len(self.text)]
        return bisect.bisect_left(self._lines, self.position if position is None else position) + 1

    def fail(self, message: str, needed: str = "", *, at: int | None = None) -> NoReturn:
        """Raise an error about what is at the position."""
        position = self.position if at is None else at
        line = self.line(position)
        column = position - self.text.rfind("\n", 0, position)
        shown = self.text[position : position + 40].partition("\n")[0]
        raise ModelError(
            Diagnostic(
                M130,
                message,
                place=f"line {line}, column {column}",
                found=f"`{shown}`" if shown else "the end" if position >= len(self.text) else "the end of the line",
                needed=needed,
            )
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def skip(self) -> None:
        """Go past spaces and comments."""
        while True:
            found = _SPACE.match(self.text, self.position)
            assert found is not None
            self.position = found.end()
            if not self.text.startswith("//", self.position):
                return
            end = self.text.find("\n", self.position)
            self.position = len(self.text) if end < 0 else end

    def peek(self, length: int = 1) -> str:
        """Return the next characters that are not space."""
        self.skip()
        return self.text[self.position : self.position + length]

    def take(self, token: str) -> bool:
        """Go past `token` if it is next. A word must end where it ends."""
        self.skip()
        if not self.text.startswith(token, self.position):
            return False
        end = self.position + len(token)
        if token[-1].isalpha() and (found := _WORD.match(self.text, self.position)) and found.end() > end:
            return False
        self.position = end
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"`{token}` is missing", needed=f"`{token}`")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go past what a pattern finds here."""
        self.skip()
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def word(self, what: str = "a name") -> str:
        """Return a bare name."""
        found = self.match(_WORD)
        if found is None:
            self.fail(f"{what} is missing", needed=what)
        return found[0]

    def optional_word(self) -> str:
        """Return a bare name, or an empty text, without going past it."""
        self.skip()
        found = _WORD.match(self.text, self.position)
        return "" if found is None else found[0]

    def value(self) -> str:
        """Return the name of a value, without `%`."""
        found = self.match(_VALUE)
        if found is None:
            self.fail("the name of a value is missing", needed="a name such as `%0`")
        return found[1]

    def number(self) -> str:
        """Return the text of a number."""
        found = self.match(_NUMBER)
        if found is None:
            self.fail("a number is missing", needed="a number")
        if len(found[0]) > DIGITS:
            self.fail("a number has too many digits", needed=f"at most {DIGITS}", at=found.start())
        return found[0]

    def raw_string(self) -> str:
        """Return a quoted text as it is written, without its quotes; escapes are left."""
        self.skip()
        begin = self.position
        end = self._end_of_string(begin)
        if end is None:
            self.fail("a text in quotes is missing, or does not end on its line", needed='a text such as `"a"`')
        self.position = end
        return self.text[begin + 1 : end - 1]

    def _end_of_string(self, begin: int) -> int | None:
        """Return where the quoted text that begins there ends; None if there is none.

        A regex that counts escapes would keep a stack of them.
        """
        if not self.text.startswith('"', begin):
            return None
        at = begin + 1
        while True:
            found = _UNQUOTED.match(self.text, at)
            assert found is not None
            at = found.end()
            if self.text.startswith('"', at):
                return at + 1
            if not self.text.startswith("\\", at) or self.text.startswith("\\\n", at) or at + 1 >= len(self.text):
                return None
            at += 2

    def string(self) -> bytes:
        """Return the bytes of a quoted text."""
        begin = self.position
        raw = self.raw_string()
        if "\\" not in raw:
            return raw.encode("latin-1")

        def plain(found: re.Match[str]) -> str:
            if found[1]:
                return chr(int(found[1], 16))
            if found[2] not in _SPECIAL:
                self.fail(f"`\\{found[2]}` has no meaning in a text", at=begin)
            return _SPECIAL[found[2]]

        return _ESCAPE.sub(plain, raw).encode("latin-1")

    def name(self, what: str = "a name") -> str:
        """Return a name, bare or in quotes."""
        if self.peek() == '"':
            return self.string().decode("utf-8", "surrogateescape")
        return self.word(what)

    def balanced(self) -> str:
        """Return what is between the bracket here and the one that closes it; quoted texts may hold any bracket."""
        self.skip()
        begin = self.position
        expected: list[str] = []
        at = begin
        while (found := _BRACKET.search(self.text, at)) is not None:
            token, at = found[0], found.end()
            if token == '"':
                at = self._end_of_string(found.start()) or at
            elif token in _CLOSING:
                expected.append(_CLOSING[token])
            elif token in (")", "]", "}", ">"):
                if not expected or expected.pop() != token:
                    self.fail("brackets do not fit together", at=found.start())
                if not expected:
                    self.position = found.end()
                    return self.text[begin + 1 : found.start()]
        self.fail("a bracket is not closed", at=begin)
