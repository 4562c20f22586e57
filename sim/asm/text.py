"""The text form of programs: `assemble` reads it, `sim.asm.disassembler` writes it.

The grammar, with ``{ }`` for repetition, ``[ ]`` for optional parts, and tokens in quotes:

    program   = { name ":" | bundle }
    bundle    = "{" [ item { "|" item } ] "}"
    item      = slot "." operation [ operand { "," operand } ]
              | "imm" digit "=" source
              | "reserved" "=" integer
    operand   = register | source | field "=" integer
    source    = integer | float | label

White space only separates tokens; ``#`` starts a comment that ends with the line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from hdl.config import Config
from hdl.isa import SLOTS
from sim.asm.assembler import Assembler, Bundle, Program
from sim.asm.operands import REGISTERS, Immediate, Register

__all__ = ["AssemblyError", "assemble"]


class AssemblyError(ValueError):
    """Invalid program text.

    Attributes
    ----------
    line, column : int
        Position in the text, both from 1.
    """

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


@dataclass(frozen=True)
class _Token:
    """A token of assembly text; kind is ``name``, ``number``, ``end``, or the character itself."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)

    def fail(self, message: str) -> NoReturn:
        raise AssemblyError(self.line, self.column, message)


_TOKEN = re.compile(r"""
    (?P<blank> [ \t\r]+ | \#.* )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    | (?P<number> [+-]? (?: 0[xX]\w* | [0-9] (?: [eE][+-] | [\w.] )* ) )
    | (?P<mark> [{}|:,.=] )
""", re.VERBOSE)
_REGISTER = re.compile(rf"({'|'.join(REGISTERS)})([0-9]+)")
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
_FLOAT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?f")
_PATTERN = re.compile(r"0f([0-9a-fA-F]{8})")


def _tokens(text: str) -> Iterator[_Token]:
    number = 1
    column = 1
    for number, line in enumerate(text.split("\n"), 1):
        column = 1
        while column <= len(line):
            match = _TOKEN.match(line, column - 1)
            if match is None:
                raise AssemblyError(number, column, "text must be names, numbers and { } | : , . "
                                    f"=, not {line[column - 1]!r}")
            kind = str(match.lastgroup)
            if kind != "blank":
                yield _Token(match[0] if kind == "mark" else kind, match[0], number, column)
            column += len(match[0])
    yield _Token("end", "", number, column)


def assemble(text: str, config: Config | None = None) -> Program:
    """Assembles a text to a program.

    Parameters
    ----------
    text : str
        The program, in the grammar of this module.
    config : Config or None
        The chip whose instruction memory the program must fit, and whose operations it may use;
        None for no limit.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    AssemblyError
        If the text is invalid, or the program does not fit.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, not {text!r}")
    return _Parser(text, Assembler(config)).program()


class _Parser:
    """Parses assembly text, with one token of lookahead, and builds the program."""

    def __init__(self, text: str, assembler: Assembler) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._assembler = assembler
        self._uses: dict[str, _Token] = {}

    def program(self) -> Program:
        while self._next.kind != "end":
            if self._next.kind == "{":
                self._bundle()
            else:
                name = self._take("name", "a label or '{'")
                self._take(":", "':' after a label")
                self._at(name, self._assembler.label, name.text)
        for label, token in self._uses.items():
            if label not in self._assembler.labels:
                token.fail(f"label {label!r} is not defined")
        return self._assembler.assemble()

    def _take(self, kind: str, expected: str) -> _Token:
        token = self._next
        if token.kind != kind:
            token.fail(f"expected {expected}, not {token}")
        if kind != "end":
            self._next = next(self._tokens)
        return token

    def _skip(self, kind: str) -> bool:
        """Consumes the next token if it is of this kind; returns whether it is."""
        if self._next.kind != kind:
            return False
        self._next = next(self._tokens)
        return True

    @staticmethod
    def _at(token: _Token, call: Any, *arguments: Any, **named: int) -> Any:
        """Returns ``call(*arguments, **named)``; turns its errors into an `AssemblyError`.

        The position of the `AssemblyError` is that of ``token``.
        """
        try:
            return call(*arguments, **named)
        except (TypeError, ValueError) as error:
            raise AssemblyError(token.line, token.column, str(error)) from None

    def _bundle(self) -> None:
        start = self._take("{", "'{'")
        bundle = self._assembler.bundle()
        self._at(start, bundle.__enter__)
        if not self._skip("}"):
            self._item(bundle)
            while self._skip("|"):
                self._item(bundle)
            self._take("}", "'|', ',' or '}'")
        self._at(start, bundle.__exit__, None, None, None)

    def _item(self, bundle: Bundle) -> None:
        name = self._take("name", "a slot")
        if self._skip("="):
            if name.text == "reserved":
                self._at(name, bundle.reserved, self._integer())
            elif isinstance(register := self._register(name), Immediate):
                self._at(name, bundle.immediate, register.number, self._source())
            else:
                name.fail(f"only imm0, imm1, imm2 and reserved can be set, not {name}")
            return
        if name.text not in SLOTS:
            name.fail(f"slot must be one of {', '.join(SLOTS)}, not {name}")
        self._take(".", "'.' after a slot")
        operation = self._take("name", "an operation")
        operands: list[Any] = []
        fields: dict[str, int] = {}
        tokens: dict[int | str | None, _Token] = {}
        if self._next.kind in ("name", "number"):
            self._operand(operands, fields, tokens)
            while self._skip(","):
                self._operand(operands, fields, tokens)
        try:
            if operation.text not in ("illegal", "conflict"):
                bundle.operation(name.text, operation.text, *operands, **fields)
            elif operands:
                tokens[0].fail(f"operands of {operation.text} must be fields, as in op=1")
            else:
                bundle.raw(name.text, **fields)
        except AssemblyError:
            raise
        except (TypeError, ValueError) as error:
            token = tokens.get(bundle.failing, operation)
            raise AssemblyError(token.line, token.column, str(error)) from None

    def _operand(self, operands: list[Any], fields: dict[str, int],
                 tokens: dict[int | str | None, _Token]) -> None:
        """Parses an operand or a field, and adds its value to ``operands`` or ``fields``.

        Its first token is stored in ``tokens``, by the operand's position or the field's name.
        """
        if self._next.kind != "name":
            self._ordered(fields)
            tokens[len(operands)] = self._next
            operands.append(self._source())
            return
        name = self._take("name", "an operand")
        if self._skip("="):
            if name.text in fields:
                name.fail(f"field {name} is already given")
            tokens[name.text] = name
            fields[name.text] = self._integer()
            return
        self._ordered(fields, name)
        tokens[len(operands)] = name
        register = self._register(name)
        if register is None:
            self._uses.setdefault(name.text, name)
        operands.append(name.text if register is None else register)

    def _ordered(self, fields: dict[str, int], token: _Token | None = None) -> None:
        if fields:
            (token or self._next).fail("operands must come before fields")

    def _register(self, token: _Token) -> Register | None:
        """Returns the register that a token names, or None if the token does not look like one."""
        match = _REGISTER.fullmatch(token.text)
        if match is None:
            return None
        register: Register = self._at(token, REGISTERS[match[1]], int(match[2]))
        return register

    def _integer(self) -> int:
        token = self._take("number", "an integer")
        if not _INTEGER.fullmatch(token.text):
            token.fail(f"expected an integer, not {token}")
        return _integer(token.text)

    def _source(self) -> int | float | str:
        """Parses a number or a label."""
        if self._next.kind == "name":
            name = self._take("name", "a label")
            self._uses.setdefault(name.text, name)
            return name.text
        token = self._take("number", "a register, a number or a label")
        if _INTEGER.fullmatch(token.text):
            return _integer(token.text)
        if match := _PATTERN.fullmatch(token.text):
            return int(match[1], 16)
        if not _FLOAT.fullmatch(token.text):
            token.fail("a number must be an integer, a float as 1.5f, or the pattern of one as "
                       f"0f3FC00000, not {token}")
        return float(token.text[:-1])


def _integer(text: str) -> int:
    """Returns the value of an integer literal, which, unlike Python's, may start with zeros."""
    return int(text, 16 if "x" in text.lower() else 10)
