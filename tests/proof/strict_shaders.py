"""Holds the shaders to what Metal's compiler demands: `python tests/proof/strict_shaders.py`.

Each kernels/*.metal is compiled, and not run, by clang against declarations of the Metal library (strict/), in the
oldest and the newest Metal language that the family is built in. Address spaces are clang's own address_space(N), so
that a missing or a wrong `device`, and a write to `constant`, are type errors. What clang would let pass and Metal
refuses, or what has hurt this field before, is found in clang's syntax tree and in the text: see RULES.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolbox import ROOT, zig

STRICT = Path(__file__).parent / "strict"
Node = dict[str, Any]

# Oldest and newest Metal language of each capability: ahead of time it is the oldest that the capability needs, from
# source at run time MLX takes the newest that the system has.
LANGUAGES = {"portable": ("310", "410"), "tensorops": ("400", "410"), "tensorops27": ("410",)}

ADDRESS_SPACES = """
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread __attribute__((noderef))
"""  # noderef is a mark that changes no type: it shows in the tree where `thread` was written

LIBRARY_HEADERS = {"metal_stdlib", "metal_simdgroup", "metal_simdgroup_matrix", "metal_atomic"}
TENSOR_HEADERS = {"metal_tensor", "MetalPerformancePrimitives/MetalPerformancePrimitives.h"}

RULES = {
    "compile": "must compile with address spaces checked",
    "ascii": "is ASCII: Metal receives the source in that encoding",
    "include": "includes headers of kernels/common and kernels/args and of Metal, tensors only in tensorops families",
    "host-name": "gives each kernel its own host_name, and the function the name of no other",
    "function-constant": "declares each function constant once, under an index of its own, and names declared ones",
    "double": "uses no double: Metal has none",
    "static-local": "has no static variable inside a function: Metal refuses them",
    "recursion": "has no recursion: Metal refuses it",
    "address-space": "gives every pointer and reference an address space, as Metal demands",
    "short-product": "forms no product in 16 bits or less: offsets overflow past 32767",
    "bare-decltype": "wraps decltype in remove_addrspace_t where a tensor operation takes a type (SDK 27)",
}


@dataclass(frozen=True, order=True)
class Finding:
    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.message}"


def capability(shader: Path) -> str:
    """By the end of the family's name, as the build decides it."""
    suffix = shader.stem.rsplit("_", 1)[-1]
    return suffix if suffix in LANGUAGES else "portable"


# ---- text rules


def source_files(shader: Path, root: Path) -> list[Path]:
    """The shader and the headers of ours that it includes."""
    found = [shader]
    for file in found:
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(errors="replace"), re.M):
            header = root / name
            if header.exists() and header not in found:
                found.append(header)
    return found


def check_text(shader: Path, root: Path) -> Iterator[Finding]:
    headers = LIBRARY_HEADERS if capability(shader) == "portable" else LIBRARY_HEADERS | TENSOR_HEADERS
    for file in source_files(shader, root):
        name = str(file.relative_to(root))
        for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
            if any(byte > 0x7F for byte in line):
                yield Finding(name, number, "ascii", "holds a byte outside ASCII")
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            include = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if include is None:
                continue
            opening, header = include.groups()
            ours = re.fullmatch(r"kernels/(common|args)/\w+\.h", header) and (root / header).exists()
            if not (ours if opening == '"' else header in headers):
                yield Finding(name, number, "include", f"a {capability(shader)} family may not include {header}")


# ---- from Metal to what clang can read


@dataclass
class Translation:
    """Preprocessed Metal, rewritten line for line into C++ that clang's front end takes."""

    text: str
    findings: list[Finding] = field(default_factory=list)


def preprocess(shader: Path, root: Path, language: str) -> str:
    result = zig(
        *("clang", "-E", "-x", "c++", "-nostdinc", "-undef", f"-D__METAL_VERSION__={language}", "-D__METAL__"),
        *(f"-isystem{STRICT}", f"-I{root}", shader),
    )
    if result.returncode:
        raise SyntaxError(result.stderr)
    return result.stdout


def places(text: str, root: Path) -> Iterator[tuple[str, int, str]]:
    """(file, line number, line) of preprocessed text, by its line markers."""
    file, number = "", 0
    for line in text.splitlines():
        marker = re.match(r'# (\d+) "([^"]*)"', line)
        if marker:
            number, file = int(marker[1]) - 1, marker[2].removeprefix(f"{root}/")
            continue
        number += 1
        yield file, number, line


FUNCTION_CONSTANT = re.compile(r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]\s*;")
INSTANTIATION = re.compile(
    r'template\s*\[\[\s*host_name\(((?:\s*"[^"]*")+)\s*\)\s*\]\]\s*\[\[\s*kernel\s*\]\]\s*(decltype\((.+?)\)\s+(\S.*?));'
)
THREADGROUP_VARIABLE = re.compile(r"\bthreadgroup\s+([\w:<>, ]+?)\s+(\w+)((?:\s*\[[^\]]*\])*)\s*;")
FLOAT_LITERAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")


def translate(text: str, root: Path, first_of_each: bool = False) -> Translation:
    """`first_of_each`: keep one instantiation of each kernel."""
    findings = []
    constants: dict[str, str] = {}
    host_names: Counter[str] = Counter()
    instantiated = set()
    lines = ADDRESS_SPACES.splitlines()
    place = ("", 0)
    for file, number, line in places(text, root):
        if (file, number) != (place[0], place[1] + 1):
            lines.append(f'# {number} "{file}"')
        place = (file, number)

        for _, name, index in FUNCTION_CONSTANT.findall(line):
            if name in constants or index in constants.values():
                findings.append(Finding(file, number, "function-constant", f"{name} ({index}) is declared twice"))
            constants[name] = index
        for name in re.findall(r"function_constant\(([A-Za-z_]\w*)\)", line):
            if name not in constants:
                findings.append(Finding(file, number, "function-constant", f"{name} is declared nowhere above"))
        for literals, _, expression, function in INSTANTIATION.findall(line):
            name = "".join(re.findall(r'"([^"]*)"', literals))
            host_names[name] += 1
            if host_names[name] == 2:
                findings.append(Finding(file, number, "host-name", f"{name} is given to two kernels"))
            if "".join(expression.split()) != "".join(function.split()):
                findings.append(Finding(file, number, "host-name", f"{name} names {function} as {expression}"))
        if re.search(r"cooperative_tensor\s*<[^;]*(?<!remove_addrspace_t<)decltype\(", line):
            findings.append(Finding(file, number, "bare-decltype", line.strip()))

        lines.append(rewrite(line, instantiated if first_of_each else None))
    return Translation("\n".join(lines) + "\n", findings)


def rewrite(line: str, instantiated: set[str] | None) -> str:
    def instantiation(match: re.Match[str]) -> str:
        function = match[4].split("<")[0]
        if instantiated is not None and function in instantiated:
            return ""
        if instantiated is not None:
            instantiated.add(function)
        return f"template {match[2]};"

    def threadgroup_variable(match: re.Match[str]) -> str:
        kind, name, dimensions = match.groups()
        # clang gives automatic variables no address space: a reference to some place in threadgroup memory stands in.
        alias = f"threadgroup_{name}"
        return (
            f"typedef {kind} {alias}{dimensions}; threadgroup {alias}& {name} = "
            f"*reinterpret_cast<threadgroup {alias}*>(16);"
        )

    line = FUNCTION_CONSTANT.sub(r"extern constant \1 \2;", line)
    line = INSTANTIATION.sub(instantiation, line)
    line = THREADGROUP_VARIABLE.sub(threadgroup_variable, line)
    line = re.sub(r"\bconstant\s+constexpr\b|\bconstexpr\s+constant\b", "constexpr", line)
    return FLOAT_LITERAL.sub(r"\1f", line)


def clang(text: str, *arguments: str) -> tuple[str, str]:
    """Standard output and the errors of a syntax check."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as file:
        file.write(text)
        file.flush()
        result = zig(
            *("clang", "-x", "c++", "-std=c++23", "-fsyntax-only", "-nostdinc", "-fdeclspec", "-fno-exceptions"),
            *("-w", "-ferror-limit=0", *arguments, file.name),
        )
        return result.stdout, result.stderr if result.returncode else ""


def compile_errors(errors: str, shader: str) -> Iterator[Finding]:
    found = re.findall(r"^(.+?):(\d+):\d+: (?:fatal )?error: (.*)$", errors, re.M)
    for file, line, message in found:
        yield Finding(file, int(line), "compile", message)
    if errors and not found:
        yield Finding(shader, 0, "compile", errors.strip().splitlines()[0])


# ---- rules on the syntax tree


NARROW = re.compile(r"(?:const )?(?:short|unsigned short|ushort|int16_t|uint16_t|char|signed char|unsigned char|uchar)")


class Tree:
    """Walks clang's tree in source order, which is how its locations are to be read: each is told as a difference."""

    def __init__(self, root: Node) -> None:
        self.findings: list[Finding] = []
        self.calls: dict[str, set[str]] = {}
        self.functions: dict[str, tuple[str, str, int]] = {}
        self.file = ""
        self.line = 0
        self.visit(root, None)
        self.find_recursion()

    def locate(self, node: Node) -> tuple[str, int]:
        """Follows all the places a node tells and gives the first: where it stands in the source."""
        first = None
        for location in (node.get("loc", {}), *(node.get("range", {}).get(end, {}) for end in ("begin", "end"))):
            for part in (location.get("spellingLoc"), location.get("expansionLoc"), location):
                if part:
                    self.file = part.get("presumedFile", part.get("file", self.file))
                    self.line = part.get("presumedLine", part.get("line", self.line))
            if location and first is None:
                first = (self.file, self.line)
        return first or (self.file, self.line)

    def visit(self, node: Node, function: str | None) -> None:
        here = self.locate(node)
        if node.get("isImplicit"):  # copies and assignments that clang gives each struct
            return
        kind = node.get("kind", "")
        if kind in ("FunctionDecl", "CXXMethodDecl") and "id" in node:
            function = node["id"]
            self.functions[function] = (node.get("name", ""), *here)
        if here[0].startswith("kernels/"):  # Metal's own headers are not held to our rules
            self.findings.extend(Finding(*here, rule, message) for rule, message in self.check(node, kind, function))
        for child in node.get("inner", ()):
            self.visit(child, function)

    def check(self, node: Node, kind: str, function: str | None) -> Iterator[tuple[str, str]]:
        written = node.get("type", {}).get("qualType", "")
        if re.search(r"\bdouble\b", written) and kind.endswith(("Decl", "Literal", "CastExpr")):
            yield "double", f"{node.get('name', kind)} is {written}"
        if kind == "VarDecl" and function and node.get("storageClass") == "static":
            yield "static-local", f"{node['name']} is static inside a function"
        if kind in ("ParmVarDecl", "VarDecl", "FieldDecl") and lacks_address_space(written):
            yield "address-space", f"{node.get('name', 'a parameter')} is {written}"
        if kind == "DeclRefExpr" and function:
            self.calls.setdefault(function, set()).add(node.get("referencedDecl", {}).get("id", ""))
        if kind == "BinaryOperator" and node.get("opcode") == "*" and all(map(is_narrow, node.get("inner", ()))):
            yield "short-product", "both factors have 16 bits or less"
        cut = kind == "ImplicitCastExpr" and node.get("castKind") == "IntegralCast" and NARROW.fullmatch(written)
        if cut and any(has_product(child) for child in node.get("inner", ())):
            yield "short-product", f"a product is cut to {written}"

    def find_recursion(self) -> None:
        for start, (name, file, line) in self.functions.items():
            seen: set[str] = set()
            ahead = list(self.calls.get(start, ()))
            while ahead:
                callee = ahead.pop()
                if callee not in seen:
                    seen.add(callee)
                    ahead.extend(self.calls.get(callee, ()))
            if start in seen and file.startswith("kernels/"):
                self.findings.append(Finding(file, line, "recursion", f"{name} calls itself, perhaps through others"))


def lacks_address_space(written: str) -> bool:
    """Of a type as clang writes it; deduced and function types aside."""
    pointee = re.fullmatch(r"(.*[^&*\s])\s*(?:\*|&|&&)\s*(?:const)?", written)
    if pointee is None or "(" in written:
        return False
    return not re.search(r"\b(device|constant|threadgroup|thread|address_space)\b", written)


def is_narrow(node: Node) -> bool:
    """Whether an operand held 16 bits or less before C++ promoted it; constants do not count."""
    if node.get("kind") == "ImplicitCastExpr" and node.get("castKind") in ("IntegralCast", "LValueToRValue"):
        return is_narrow(node["inner"][0])
    if node.get("kind") in ("ParenExpr", "SubstNonTypeTemplateParmExpr"):
        return is_narrow(node["inner"][0])
    if node.get("kind", "").endswith("Literal"):
        return False
    desugared = node.get("type", {}).get("desugaredQualType", node.get("type", {}).get("qualType", ""))
    return NARROW.fullmatch(desugared) is not None


def has_product(node: Node) -> bool:
    if node.get("kind") == "BinaryOperator" and node.get("opcode") == "*":
        return True
    through = ("ParenExpr", "ImplicitCastExpr", "BinaryOperator")
    return node.get("kind") in through and any(has_product(child) for child in node.get("inner", ()))


# ---- all of it


def check_shader(shader: Path, root: Path = ROOT) -> list[Finding]:
    """Everything found in a family, in each language it claims."""
    name = str(shader.relative_to(root))
    findings = set(check_text(shader, root))
    for language in LANGUAGES[capability(shader)]:
        try:
            text = preprocess(shader, root, language)
        except SyntaxError as error:
            findings.update(compile_errors(str(error), name))
            continue
        whole = translate(text, root)
        findings.update(whole.findings)
        findings.update(compile_errors(clang(whole.text)[1], name))
    if not any(finding.rule == "compile" for finding in findings):
        tree, _ = clang(translate(text, root, first_of_each=True).text, "-Xclang", "-ast-dump=json")
        findings.update(Tree(json.loads(tree)).findings)
    return sorted(findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree whose kernels/ are checked")
    root = parser.parse_args().root.resolve()
    shaders = sorted((root / "kernels").glob("*.metal"))
    if not shaders:
        print(f"there is no shader in {root / 'kernels'}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda shader: check_shader(shader, root), shaders))
    for shader, findings in zip(shaders, results, strict=True):
        languages = " and ".join(LANGUAGES[capability(shader)])
        print(f"{shader.relative_to(root)}: {len(findings) or 'no'} findings in Metal {languages}")
        for finding in findings:
            print(f"  {finding}")
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
