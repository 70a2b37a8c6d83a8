"""Metal source to C++: what every target shares.

A preprocessed .metal source goes in. Out come C++ text, in which address spaces and attributes are gone, and a table of
what was in them: kernels with their arguments, and function constants. How threadgroup variables and constants are
spelled is the target's business (`Target`), as is the code around the text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Protocol

from .tokens import Source, SourceError

ADDRESS_SPACES = frozenset({"device", "constant", "threadgroup", "thread", "threadgroup_imageblock", "ray_data"})

BUILT_INS = frozenset(
    {
        "thread_position_in_grid",
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threads_per_grid",
        "threadgroups_per_grid",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
        "thread_index_in_threadgroup",
        "simdgroups_per_threadgroup",
        "dispatch_simdgroups_per_threadgroup",
        "threads_per_simdgroup",
        "thread_execution_width",
        "thread_index_in_quadgroup",
        "quadgroup_index_in_threadgroup",
        "quadgroups_per_threadgroup",
    }
)


@dataclass(frozen=True)
class Argument:
    """A parameter of a kernel."""

    name: str
    kind: str  # buffer, threadgroup, value
    index: int  # of [[buffer(i)]] or [[threadgroup(i)]]
    built_in: str = ""  # thread_position_in_grid and its like, for kind value
    gate: str = ""  # the constant in [[buffer(i), function_constant(gate)]]


@dataclass(frozen=True)
class Constant:
    """constant type name [[function_constant(index)]];"""

    name: str
    type: str
    index: int


@dataclass(frozen=True)
class Kernel:
    """An entry point under the name that the host uses."""

    name: str
    function: str  # C++ expression of the function
    parameter_types: tuple[str, ...] | None  # to choose an overload, when the instantiation gave them
    arguments: tuple[Argument, ...]
    max_threads: int
    constants: tuple[int, ...]  # indices of the function constants that its code names


@dataclass(frozen=True)
class Translation:
    body: str
    kernels: tuple[Kernel, ...]
    constants: tuple[Constant, ...]

    def kernel(self, name: str) -> Kernel:
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        known = ", ".join(sorted(kernel.name for kernel in self.kernels)) or "none"
        raise SourceError(f"no kernel named {name!r}; there are: {known}")


class Target(Protocol):
    """How a target spells what C++ has no word for."""

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str: ...

    def function_constant(self, constant: Constant) -> str: ...

    def derived_constant(self, type_name: str, name: str, expression: str) -> str: ...


def translate(text: str, target: Target) -> Translation:
    """Translate a preprocessed source."""
    source = Source(text)
    constants = _take_constants(source, target)
    definitions = _find_kernels(source)
    instantiations = _take_instantiations(source)
    _rewrite_threadgroup_variables(source, target)
    optional = _optional_constants(source)
    users = _ConstantUsers(
        source, {c.name: c.index for c in constants.direct if c.name not in optional}, constants.derived
    )
    _drop_attributes(source)
    _drop_duplicates(source)
    _rewrite_words(source)
    return Translation(
        source.render(),
        tuple(_name_kernels(definitions, instantiations, users)),
        tuple(constants.direct),
    )


# Function constants ---------------------------------------------------------------------------------------------------


@dataclass
class _Constants:
    direct: list[Constant] = field(default_factory=list)
    derived: dict[str, set[str]] = field(default_factory=dict)  # name: names in its expression


def _take_constants(source: Source, target: Target) -> _Constants:
    found = _Constants()
    i = 0
    while i < len(source):
        if source.text(i) == "constant" and source.text(i - 1) in {"", ";", "}", "{", "static", "]]"}:
            end = source.find(";", i, len(source))
            _take_constant(source, target, found, i, end)
        i += 1
    return found


def _take_constant(source: Source, target: Target, found: _Constants, start: int, end: int) -> None:
    declaration_end = source.find("=", start, end)
    attribute = next((i for i in range(start, declaration_end) if source.text(i) == "[["), -1)
    if attribute >= 0 and source.text(attribute + 1) == "function_constant":
        words = [w for w in source.texts(start + 1, attribute) if w not in {"const", "constexpr"}]
        index = int("".join(source.texts(attribute + 3, source.partner[attribute + 2])))
        constant = Constant(words[-1], " ".join(words[:-1]), index)
        found.direct.append(constant)
        source.replace(_with_static(source, start), end + 1, target.function_constant(constant))
        return
    if declaration_end == end or any(t in {"(", "[", "{"} for t in source.texts(start, declaration_end)):
        return
    names = {source.text(i) for i in range(declaration_end + 1, end) if source.is_name(i)}
    known = {c.name for c in found.direct} | set(found.derived)
    if names & known:
        words = [w for w in source.texts(start + 1, declaration_end) if w not in {"const", "constexpr"}]
        found.derived[words[-1]] = names
        expression = " ".join(source.texts(declaration_end + 1, end))
        text = target.derived_constant(" ".join(words[:-1]), words[-1], expression)
        source.replace(_with_static(source, start), end + 1, text)


def _with_static(source: Source, start: int) -> int:
    return start - 1 if source.text(start - 1) == "static" else start


def _optional_constants(source: Source) -> set[str]:
    """Constants that the source asks about with is_function_constant_defined."""
    return {
        source.text(i + 2)
        for i in range(len(source))
        if source.text(i) == "is_function_constant_defined" and source.text(i + 1) == "("
    }


class _ConstantUsers:
    """Which function constants the code reachable from a function names."""

    def __init__(self, source: Source, constants: dict[str, int], derived: dict[str, set[str]]) -> None:
        self._constants = constants
        self._names_in: dict[str, set[str]] = {name: set(names) for name, names in derived.items()}
        for name, start, end in _bodies(source):
            names = {source.text(i) for i in range(start, end) if source.is_name(i)}
            self._names_in.setdefault(name, set()).update(names)

    def of(self, function: str) -> tuple[int, ...]:
        seen: set[str] = set()
        waiting = [function]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self._names_in.get(name, ()))
        return tuple(sorted({self._constants[name] for name in seen & self._constants.keys()}))


def _bodies(source: Source) -> list[tuple[str, int, int]]:
    """Name and extent of everything that has parentheses or a name in front of braces."""
    found = []
    for i, partner in source.partner.items():
        if source.text(i) != "{":
            continue
        head = i - 1
        while head >= 0 and source.text(head) in {"const", "thread", "device", "threadgroup", "constant"}:
            head -= 1
        start = i
        if source.text(head) == ")":
            start = source.opener[head]
            head = start - 1
        if source.is_name(head) and source.text(head) not in _STATEMENTS:
            found.append((source.text(head), start, partner))
    return found


_STATEMENTS = frozenset({"if", "for", "while", "switch", "else", "do", "return", "constexpr"})


# Kernels --------------------------------------------------------------------------------------------------------------


@dataclass
class _Definition:
    name: str
    is_template: bool
    arguments: tuple[Argument, ...]
    max_threads: int
    host_name: str | None


@dataclass
class _Instantiation:
    host_name: str
    function: str
    base: str
    parameter_types: tuple[str, ...] | None


def _attribute_words(source: Source, i: int) -> list[str]:
    return source.texts(i + 1, source.partner[i])


def _host_name(source: Source, i: int) -> str | None:
    if source.text(i + 1) != "host_name":
        return None
    strings = [t.text[1:-1] for t in source.tokens[i : source.partner[i]] if t.kind == "string"]
    return "".join(strings)


def _find_kernels(source: Source) -> list[_Definition]:
    found = []
    for i in range(len(source)):
        is_word = source.text(i) == "kernel" and source.text(i - 1) != "[["
        is_attribute = source.text(i) == "[[" and source.text(i + 1) == "kernel"
        if not (is_word or is_attribute):
            continue
        start = i
        while source.text(start - 1) in {"]]", "static", "inline"}:
            start = source.opener.get(start - 1, start - 1)
        if source.text(start - 1) == "template":
            continue  # an explicit instantiation
        definition = _read_kernel(source, start, i)
        if is_word:
            source.drop(i, i + 1)
        if definition is not None:
            found.append(definition)
    return found


def _read_kernel(source: Source, start: int, i: int) -> _Definition | None:
    max_threads, host_name = 1024, None
    at = start
    while source.text(at) != "void":
        if source.text(at) == "[[":
            host_name = _host_name(source, at) or host_name
            max_threads = _max_threads(source, at) or max_threads
        if at >= len(source) or source.text(at) in {";", "{"}:
            raise SourceError(f"a kernel that does not return void: {' '.join(source.texts(start, start + 8))}")
        at = source.after(at)
    name_at = at + 1
    while source.text(name_at) == "[[":
        name_at = source.after(name_at)
    if source.text(name_at + 1) != "(":
        raise SourceError(f"no parameters after kernel {source.text(name_at)!r}")
    close = source.partner[name_at + 1]
    if source.text(close + 1) == ";":
        return None  # a declaration
    arguments = _read_arguments(source, name_at + 2, close)
    return _Definition(source.text(name_at), source.text(start - 1) == ">", arguments, max_threads, host_name)


def _max_threads(source: Source, attribute: int) -> int | None:
    """The number in [[max_total_threads_per_threadgroup(n)]], unless template parameters decide it."""
    for i in range(attribute + 1, source.partner[attribute]):
        if source.text(i) == "max_total_threads_per_threadgroup":
            factors = source.texts(i + 2, source.partner[i + 1])
            if all(factor.isdigit() for factor in factors[::2]) and set(factors[1::2]) <= {"*"}:
                return math.prod(int(factor) for factor in factors[::2])
    return None


def _read_arguments(source: Source, start: int, end: int) -> tuple[Argument, ...]:
    parts = [_read_argument(source, a, b) for a, b in source.split(start, end)]
    taken = {p.index for p in parts if p.kind == "buffer"}
    arguments = []
    for part in parts:
        if part.kind == "unnumbered":
            index = next(n for n in range(len(parts) + len(taken) + 1) if n not in taken)
            taken.add(index)
            part = Argument(part.name, "buffer", index)
        arguments.append(part)
    return tuple(arguments)


def _read_argument(source: Source, start: int, end: int) -> Argument:
    attribute = next((i for i in range(start, end) if source.text(i) == "[["), end)
    name = source.text(attribute - 1)
    words = _attribute_words(source, attribute) if attribute < end else []
    if "buffer" in words:
        index = int(words[words.index("buffer") + 2])
        gate = words[words.index("function_constant") + 2] if "function_constant" in words else ""
        return Argument(name, "buffer", index, gate=gate)
    if words[:1] == ["threadgroup"]:
        return Argument(name, "threadgroup", int(words[2]))
    built_in = next((w for w in words if w in BUILT_INS), "")
    if built_in:
        return Argument(name, "value", 0, built_in=built_in)
    if words:
        raise SourceError(f"argument {name!r} has an attribute that is not known: {' '.join(words)}")
    if "threadgroup" in source.texts(start, end):
        return Argument(name, "threadgroup", 0)
    return Argument(name, "unnumbered", -1)


def _take_instantiations(source: Source) -> list[_Instantiation]:
    found = []
    for i in range(len(source)):
        if source.text(i) != "template" or source.text(i + 1) != "[[":
            continue
        at, host_name = i + 1, None
        while source.text(at) in {"[[", "kernel"}:
            if source.text(at) == "[[":
                host_name = _host_name(source, at) or host_name
            at = source.after(at)
        end = at
        while source.text(end) != ";":
            end = source.after(end)
        if host_name is not None:
            found.append(_read_instantiation(source, at, end, host_name))
        source.drop(i, end + 1)
    return found


def _read_instantiation(source: Source, start: int, end: int, host_name: str) -> _Instantiation:
    """`decltype(f<...>) f<...>` or `void f<...>(parameters)`."""
    at = source.after(start + 1) if source.text(start) == "decltype" else start + 1
    open_at = source.find("(", at, end)
    words = [w for w in source.texts(at, open_at) if w not in ADDRESS_SPACES]
    parameter_types = None
    if open_at < end:
        parts = source.split(open_at + 1, source.partner[open_at])
        parameter_types = tuple(_parameter_type(source, a, b) for a, b in parts)
    base = words[words.index("<") - 1] if "<" in words else words[-1]
    return _Instantiation(host_name, " ".join(words), base, parameter_types)


def _parameter_type(source: Source, start: int, end: int) -> str:
    end = next((i for i in range(start, end) if source.text(i) == "[["), end)
    words = ["const" if w == "constant" else w for w in source.texts(start, end)]
    words = [w for w in words if w not in ADDRESS_SPACES]
    names = [w for w in words if re.fullmatch(r"[A-Za-z_]\w*", w) and w != "const"]
    if len(names) > 1 and words[-1] == names[-1] and words[-2] != "::":
        words.pop()
    return " ".join(words)


def _name_kernels(
    definitions: list[_Definition], instantiations: list[_Instantiation], users: _ConstantUsers
) -> list[Kernel]:
    by_name = {definition.name: definition for definition in definitions}
    kernels = [
        Kernel(d.host_name or d.name, d.name, None, d.arguments, d.max_threads, users.of(d.name))
        for d in definitions
        if not d.is_template
    ]
    for i in instantiations:
        if i.base not in by_name:
            raise SourceError(f"host_name {i.host_name!r} instantiates {i.base!r}, which is not a kernel")
        d = by_name[i.base]
        kernels.append(Kernel(i.host_name, i.function, i.parameter_types, d.arguments, d.max_threads, users.of(d.name)))
    return kernels


# Threadgroup variables ------------------------------------------------------------------------------------------------


def _rewrite_threadgroup_variables(source: Source, target: Target) -> None:
    for i in range(len(source)):
        if source.text(i) != "threadgroup" or source.text(i - 1) not in {";", "{", "}", ")"} or source.is_dropped(i):
            continue
        end = source.find(";", i, len(source))
        if source.find("=", i, end) == end and not _declares_pointer(source, i + 1, end):
            source.replace(i, end + 1, _threadgroup_declaration(source, target, i + 1, end))


def _declares_pointer(source: Source, start: int, end: int) -> bool:
    return any(source.find(mark, start, end) < end for mark in ("*", "&", "("))


def _threadgroup_declaration(source: Source, target: Target, start: int, end: int) -> str:
    parts = source.split(start, end)
    first_end = source.find("[", *parts[0])
    type_name = " ".join(w for w in source.texts(start, first_end - 1) if w not in ADDRESS_SPACES)
    declarations = []
    for number, (a, b) in enumerate(parts):
        name_at = first_end - 1 if number == 0 else a
        dimensions = " ".join(source.texts(name_at + 1, b))
        declarations.append(target.threadgroup_variable(type_name, source.text(name_at), dimensions))
    return " ".join(declarations)


# Words ----------------------------------------------------------------------------------------------------------------


def _drop_attributes(source: Source) -> None:
    for i, partner in list(source.partner.items()):
        if source.text(i) == "[[":
            source.drop(i, partner + 1)


def _is_const(source: Source, i: int) -> bool:
    """Whether a token is `constant` and not, after a parameter list, the qualifier of a member function."""
    return source.text(i) == "constant" and source.text(i - 1) not in {")", "const"}


_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?|0[xX][\da-fA-F.]+[pP][+-]?\d+")


def _rewrite_words(source: Source) -> None:
    for i, token in enumerate(source.tokens):
        if source.is_dropped(i):
            continue
        if token.kind == "name" and token.text in ADDRESS_SPACES:
            source.replace(i, i + 1, "const" if _is_const(source, i) else "")
        elif token.kind == "number":
            literal = _literal(token.text)
            if literal != token.text:
                source.replace(i, i + 1, literal)


def _literal(text: str) -> str:
    """MSL has no double: an unsuffixed literal is a float; h and bf make a half and a bfloat."""
    is_hex = text.lower().startswith("0x")
    if _FLOAT.fullmatch(text):
        return text + "f"
    if is_hex:
        return text
    for suffix, type_name in (("bf", "bfloat"), ("h", "half")):
        if text.lower().endswith(suffix):
            digits = text[: -len(suffix)]
            return f"(({type_name}){digits if _FLOAT.fullmatch(digits) else digits + '.0'}f)"
    return text


# Declarations that differ by address space only -----------------------------------------------------------------------


def _drop_duplicates(source: Source) -> None:
    """Drop every declaration that is another one over again once address spaces are gone."""
    _Deduplication(source).scope(0, len(source), "")


class _Deduplication:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: dict[tuple[str, str], str] = {}

    def scope(self, start: int, end: int, path: str) -> None:
        source = self._source
        i = begin = start
        while i < end:
            text = source.text(i)
            if text == "{":
                i = begin = self._braces(begin, i, end, path)
            elif text == ";":
                self._declaration(path, begin, i, i + 1, suffix=";")
                i = begin = i + 1
            elif text == ":" and source.text(i - 1) in {"public", "private", "protected"}:
                i = begin = i + 1
            else:
                i = source.after(i)

    def _braces(self, begin: int, brace: int, end: int, path: str) -> int:
        """Handle the declaration begin..brace with the block that follows; return where the next one begins."""
        source = self._source
        close = source.partner[brace]
        head = source.texts(begin, brace)
        if "namespace" in head[:3] or head[:1] == ["extern"]:
            self.scope(brace + 1, close, f"{path}/{' '.join(head)}")
            return close + 1
        if self._is_class(head):
            stop = source.find(";", close, end) + 1
            if not self._declaration(path, begin, brace, stop):
                self.scope(brace + 1, close, f"{path}/{self._key(begin, brace)}")
            return stop
        if self._is_initializer(head):
            stop = source.find(";", close, end) + 1
            return min(stop, end)
        self._declaration(path, begin, brace, close + 1)
        return close + 2 if source.text(close + 1) == ";" else close + 1

    def _declaration(self, path: str, begin: int, head_end: int, end: int, suffix: str = "") -> bool:
        """Note a declaration; drop it and return True if it repeats one that had other address spaces."""
        if all(self._source.is_dropped(i) for i in range(begin, head_end)):
            return False
        key = (path, self._key(begin, head_end) + suffix)
        written = " ".join(self._source.texts(begin, head_end))
        if self._seen.setdefault(key, written) == written:
            return False
        self._source.drop(begin, end)
        return True

    def _key(self, begin: int, end: int) -> str:
        words: list[str] = []
        for i in range(begin, end):
            word = self._source.text(i)
            if self._source.is_dropped(i):
                continue
            if _is_const(self._source, i):
                word = "const"
            if word in ADDRESS_SPACES or (word == "const" and words[-1:] == ["const"]):
                continue
            words.append(word)
        return " ".join(words)

    @staticmethod
    def _is_class(head: list[str]) -> bool:
        depth = 0
        for word in head:
            if word == "(":
                return False
            if word == "<":
                depth += 1
            elif word == ">":
                depth -= 1
            elif depth == 0 and word in {"struct", "class", "union"}:
                return True
        return False

    @staticmethod
    def _is_initializer(head: list[str]) -> bool:
        head = _without_template_head(head)
        if "enum" in head[:2] or "(" not in head:
            return True
        return "=" in head and head.index("=") < head.index("(") and "operator" not in head


def _without_template_head(head: list[str]) -> list[str]:
    while head[:1] == ["template"]:
        depth = 0
        for i, word in enumerate(head):
            depth += (word == "<") - (word == ">")
            if word == ">" and depth == 0:
                head = head[i + 1 :]
                break
        else:
            return head
    return head
