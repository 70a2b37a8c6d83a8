"""The CPU as a target: a kernel library for the emulator's host runtime."""

from __future__ import annotations

from .rewriter import Argument, Constant, Kernel, Translation


class HostTarget:
    """Spells threadgroup variables and constants with the names of kernel_library.h."""

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str:
        return (
            f"typedef {type_name} emu_type_{name} {dimensions}; static emu::ThreadgroupPlace emu_place_{name}; "
            f'auto& {name} = emu::threadgroup_variable<emu_type_{name}>(emu_place_{name}, "{name}");'
        )

    def function_constant(self, constant: Constant) -> str:
        return f"static constexpr emu::function_constant<{constant.type}, {constant.index}> {constant.name}{{}};"

    def derived_constant(self, type_name: str, name: str, expression: str) -> str:
        compute = f"+[]() -> {type_name} {{ return {expression}; }}"
        return f"static constexpr emu::derived_constant<{type_name}> {name}{{{compute}}};"


def library_source(translation: Translation, kernels: list[Kernel], checked: bool) -> str:
    """The text of a kernel library: the translated source and the tables that the host runtime reads."""
    lines = [translation.body, '\n# 1 "kernel table"', "namespace emu_table {"]
    for number, kernel in enumerate(kernels):
        lines += _kernel_tables(number, kernel)
    rows = ", ".join(_kernel_row(number, kernel) for number, kernel in enumerate(kernels))
    lines.append(f"static const emu::KernelInfo kernels[] = {{{rows}}};")
    constants = ", ".join(f'{{"{c.name}", {c.index}, emu::constant_type<{c.type}>()}}' for c in translation.constants)
    lines.append(f"static const emu::ConstantInfo constants[] = {{{constants or '{}'}}};")
    lines.append(
        "static const emu::LibraryInfo library = {emu::abi_version, "
        f"{str(checked).lower()}, kernels, {len(kernels)}, constants, {len(translation.constants)}, "
        "&emu::machine, emu::constant_values, &tessl_scalar_flops};"
    )
    lines.append("}")
    lines.append(
        'extern "C" __attribute__((visibility("default"))) const emu::LibraryInfo* tessl_kernel_library() '
        "{ return &emu_table::library; }\n"
    )
    return "\n".join(lines)


def _kernel_tables(number: int, kernel: Kernel) -> list[str]:
    function = f"&{kernel.function}"
    if kernel.parameter_types is not None:
        function = f"static_cast<void (*)({', '.join(kernel.parameter_types)})>({function})"
    arguments = ", ".join(_argument(argument) for argument in kernel.arguments)
    used = ", ".join(str(index) for index in kernel.constants) or "-1"
    return [
        f"static constexpr auto function{number} = {function};",
        f"struct Arguments{number} {{",
        f"  static constexpr auto list = emu::Arguments<decltype({function})>::of({arguments});",
        "};",
        f"static const int32_t used{number}[] = {{{used}}};",
    ]


def _kernel_row(number: int, kernel: Kernel) -> str:
    return (
        f'{{"{kernel.name}", &emu::Entry<function{number}, Arguments{number}>::run, Arguments{number}::list.items, '
        f"{len(kernel.arguments)}, {kernel.max_threads}, used{number}, {len(kernel.constants)}}}"
    )


def _argument(argument: Argument) -> str:
    index = str(argument.index)
    if argument.kind == "value":
        index = f"static_cast<int32_t>(emu::BuiltIn::{argument.built_in})"
    gate = f"+[]() -> bool {{ return {argument.gate}; }}" if argument.gate else "nullptr"
    return f'emu::ArgumentInfo{{emu::ArgumentKind::{argument.kind}, {index}, 0, 0, false, {gate}, "{argument.name}"}}'
