"""AIR as LLVM assembly to LLVM assembly for the host, and the kernel's signature out of its metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlx_tessl.emulator.rewriter import BUILT_INS, Argument, Constant, Kernel

# What a parameter is to the emulator, and the type of the same calling convention that the kernel is called with.
_VALUE_TYPES = {
    "i16": ("ushort", "ushort"),
    "i32": ("uint", "uint"),
    "<2 x i32>": ("metal::uint2", "air::uint2v"),
    "<3 x i32>": ("metal::uint3", "air::uint3v"),
}

# Functions without a meaning of their own on a host: given bodies that the optimizer sees through.
_DEFINITIONS = {
    "air.normalize_function_constant_predicate.i8": (
        "define internal i8 @air.normalize_function_constant_predicate.i8(i8 %0) {\n"
        "  %2 = icmp ne i8 %0, 0\n  %3 = zext i1 %2 to i8\n  ret i8 %3\n}"
    ),
    "air.is_uniform.f32": "define internal i1 @air.is_uniform.f32(float %0) {\n  ret i1 true\n}",
}


@dataclass(frozen=True)
class AirKernel:
    """A kernel of an AIR module with its function constants set."""

    ir: str
    kernel: Kernel
    constants: tuple[Constant, ...]
    parameters: tuple[tuple[str, str], ...]  # types as the emulator and as the kernel has them
    externals: frozenset[str]  # functions of AIR that it calls


def translate(air: str, name: str, values: Mapping[int, bool | int]) -> AirKernel:
    """Make a kernel fit for the host, with the given function constants."""
    metadata = _Metadata(air)
    constants = metadata.constants()
    by_name = {constant.name: values.get(constant.index, 0) for constant in constants}
    arguments, kinds, max_threads = metadata.kernel(by_name)
    parameters = tuple(_parameter(text, kind) for text, kind in zip(_parameter_texts(air, name), kinds, strict=True))
    ir = _narrow_matrices(_unfuse(_host_globals(_set_constants(air, values))))
    for function, definition in _DEFINITIONS.items():
        ir = re.sub(rf"^declare \S+ @{re.escape(function)}\(.*$", lambda _, d=definition: d, ir, flags=re.M)
    externals = frozenset(re.findall(r"^declare .*?@((?:air\.|__tensorops)[\w.]+)\(", ir, flags=re.M))
    kernel = Kernel(name, "air::run_kernel", None, arguments, max_threads, tuple(c.index for c in constants))
    return AirKernel(ir, kernel, constants + _unused_constants(constants, values), parameters, externals)


def _unused_constants(used: tuple[Constant, ...], values: Mapping[int, bool | int]) -> tuple[Constant, ...]:
    """Constants of the source that the kernel does not read: AIR does not list them, and Metal lets them be set."""
    others = values.keys() - {constant.index for constant in used}
    return tuple(Constant(f"unused_{i}", "bool" if isinstance(values[i], bool) else "int", i) for i in sorted(others))


# Text -----------------------------------------------------------------------------------------------------------------


def _set_constants(ir: str, values: Mapping[int, bool | int]) -> str:
    """What Metal does when it makes a pipeline: function constants become constants."""

    def constant(match: re.Match[str]) -> str:
        head, index, type_name = match.groups()
        return f"{head} = internal unnamed_addr addrspace(2) constant {type_name} {int(values.get(int(index), 0))}"

    linkage = r"internal unnamed_addr addrspace\(2\) externally_initialized constant"
    return re.sub(rf"^(@\S*MTL_FC_INIT_(\d+)_\w+) = {linkage} (\S+) undef", constant, ir, flags=re.M)


def _host_globals(ir: str) -> str:
    """Drop sections that only Metal knows, and let no optimizer think that threadgroup memory is one thread's own."""
    ir = re.sub(r',? section "air\.\w+"', "", ir)
    return re.sub(r"= internal (?:unnamed_addr )?addrspace\(3\) global", "= hidden addrspace(3) global", ir)


def _unfuse(ir: str) -> str:
    """Metal leaves it to the GPU whether a * b + c is rounded once or twice; the emulator always rounds twice."""
    definition = (
        r"define internal \1 @air.multiply_add.\2(\1 %a, \1 %b, \1 %c) {\n"
        r"  %product = fmul \1 %a, %b\n  %sum = fadd \1 %product, %c\n  ret \1 %sum\n}"
    )
    ir = re.sub(r"^declare ([^@]+) @llvm\.fmuladd\.(\w+)\(.*$", definition, ir, flags=re.M)
    return ir.replace("@llvm.fmuladd.", "@air.multiply_add.")


def _narrow_matrices(ir: str) -> str:
    """An 8x8 matrix is 64 floats in AIR, of which a lane holds the first two: keep only those."""

    def mask(match: re.Match[str]) -> str:
        first, second = (_narrow_index(index) for index in match[1].split(", ")[:2])
        return f"<2 x i32> <{first}, {second}>"

    ir = re.sub(r"<64 x i32> <([^>]*)>", mask, ir)
    ir = re.sub(r"(shufflevector <64 x float> .*<2 x i32> )<([^>]*)>", _narrow_selection, ir)
    return ir.replace("<64 x float>", "<2 x float>")


def _narrow_selection(match: re.Match[str]) -> str:
    return match[1] + "<" + ", ".join(_narrow_index(index) for index in match[2].split(", ")) + ">"


def _narrow_index(index: str) -> str:
    """An index into two vectors of 64 as one into two of two."""
    number = index.removeprefix("i32 ")
    return f"i32 {int(number) - 62}" if number.isdigit() and int(number) >= 64 else index


def _parameter_texts(air: str, name: str) -> list[str]:
    start = re.search(rf"^define [^@]*@{re.escape(name)}\(", air, flags=re.M)
    if start is None:
        raise ValueError(f"no kernel {name}")
    texts, depth, begin, at = [], 0, start.end(), start.end()
    while depth >= 0:
        depth += (air[at] in "(<[{") - (air[at] in ")>]}")
        if depth < 0 or (depth == 0 and air[at] == ","):
            texts.append(air[begin:at].strip())
            begin = at + 1
        at += 1
    return texts


def _parameter(text: str, is_written: bool) -> tuple[str, str]:
    if text.startswith("ptr"):
        pointer = "void*" if is_written else "const void*"
        return pointer, pointer
    vector = re.match(r"<[^>]*>", text)
    return _VALUE_TYPES[vector[0] if vector else text.split()[0]]


# Metadata -------------------------------------------------------------------------------------------------------------


class _Metadata:
    """The !air nodes of a module."""

    def __init__(self, air: str) -> None:
        self._nodes = dict(re.findall(r"^(![\w.]+) = (?:distinct )?!\{(.*)\}$", air, flags=re.M))

    def constants(self) -> tuple[Constant, ...]:
        found = []
        for node in self._children("!air.function_constants"):
            type_name, name = re.findall(r'!"([^"]*)"', node)
            index = re.findall(r"i32 (\d+)", node)[-1]
            found.append(Constant(name, type_name, int(index)))
        return tuple(found)

    def kernel(self, constants: Mapping[str, bool | int]) -> tuple[tuple[Argument, ...], list[bool], int]:
        """Arguments, whether each is written through, and the threads that a threadgroup may have."""
        (kernel,) = self._children("!air.kernel")
        _, arguments, *attributes = re.findall(r"!\d+", kernel)
        nodes = [self._nodes[reference] for reference in re.findall(r"!\d+", self._nodes[arguments])]
        limits = [re.search(r'air\.max_work_group_size", i32 (\d+)', self._nodes[a]) for a in attributes]
        max_threads = next((int(limit[1]) for limit in limits if limit), 1024)
        parsed = tuple(self._argument(node, constants) for node in nodes)
        return parsed, ["air.read_write" in node or '"air.write"' in node for node in nodes], max_threads

    def _argument(self, node: str, constants: Mapping[str, bool | int]) -> Argument:
        name = re.search(r'"air\.arg_name", !"([^"]*)"', node)
        label = name[1] if name else ""
        if '"air.buffer"' in node:
            index = re.search(r'"air\.location_index", i32 (\d+)', node)
            gate = re.search(r'"air\.function_constant", (!\d+)', node)
            is_there = ""
            if gate:
                constant = re.findall(r'!"([^"]*)"', self._nodes[gate[1]])[-1]
                is_there = str(bool(constants[constant])).lower()
            assert index is not None
            return Argument(label, "buffer", int(index[1]), gate=is_there)
        built_in = next(word for word in re.findall(r'!"air\.(\w+)"', node) if word in BUILT_INS)
        return Argument(label, "value", 0, built_in=built_in)

    def _children(self, name: str) -> list[str]:
        return [self._nodes[reference] for reference in re.findall(r"!\d+", self._nodes.get(name, ""))]
