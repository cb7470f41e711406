"""This package's functions to machine code, by numba and LLVM: one object for all of them, with an entry for each compiled function.

An entry takes what Python hands over and makes numba's arrays of it, in the memory of the caller's (CC5). It looks at the fields of the
array objects, whose layout is part of numpy's binary interface, and refuses what a function does not name (CC4).

Numba would optimize each part, and make machine code of it, before a function that calls it could be compiled, and then once more in
each such function. Here an entry is put together of parts as they were written, and optimized once.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core.codegen import AOTCodeLibrary, AOTCPUCodegen
from numba.core.registry import cpu_target
from numba.extending import intrinsic, typeof_impl
from numba.np import arrayobj

from tidemark.shared.compiled import instructions
from tidemark.shared.compiled.compiling import RESULTS_MAX, Array, Compiled, InnerFunction, functions

# Machine code that is made on one machine is read on another, whose processor may lack features of this one.
_CPU: Final = "generic"
_CONFIG: Any = numba.config
for _name in [name for name in os.environ if name.startswith("NUMBA_")]:
    del os.environ[_name]  # a user's settings of numba are for programs of the user: this code is the same for all
_CONFIG.reload_config()
_CONFIG.CPU_NAME, _CONFIG.CPU_FEATURES = _CPU, ""


class _Written(AOTCodeLibrary):
    """The code of a part as it was written: what is put together of it is optimized (`bitcode`)."""

    def finalize(self) -> None:
        """Nothing is left to do: others link this code, and nobody runs it here."""
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """No machine code is made of it."""
        return 0


class _Codegen(AOTCPUCodegen):
    _library_class = _Written

    def set_env(self, _name: str, _env: Any) -> None:
        """Of globals that the interpreter would be asked for: compiled functions ask it for nothing."""


# This process compiles these functions and nothing else (CC6): what numba has of its own becomes a part like others.
_CODEGEN: Final = _Codegen("tidemark", _CPU)
cpu_target.target_context._internal_codegen = _CODEGEN  # noqa: SLF001 - as the library's own compiler ahead of time

_njit: Any = partial(numba.njit, nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

# Fields of numpy's objects: places in bytes.
_TYPE: Final = 8
_DATA, _DIMENSIONS_COUNT, _DIMENSIONS, _DESCRIPTION, _FLAGS = 16, 24, 32, 56, 64
_TYPE_NUMBER: Final = 28
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

_INT, _WORD = ir.IntType(32), ir.IntType(64)
# The destructor that arrays of an entry would call if they were counted and the last holder let go: no entry's are.
_NEVER_CALLED: Final = "define void @NRT_MemInfo_call_dtor(ptr %0) {\n  ret void\n}\n"


def everything() -> Sequence[Compiled]:
    """All functions of this package."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        import_module(f"tidemark.shared.compiled.{path.stem}")
    return functions()


def bitcode(function: Compiled) -> bytes:
    """A function with its entry, optimized, in LLVM's own form."""
    made = _entry(function)
    whole = binding.parse_assembly(_NEVER_CALLED)
    whole.data_layout = _CODEGEN._data_layout  # noqa: SLF001 - the library's way
    for library in _libraries(made.library):
        whole.link_in(library._final_module, preserve=True)  # noqa: SLF001
    whole.get_function(made.fndesc.llvm_func_name).name = function.name
    for each in (*whole.functions, *whole.global_variables):
        if not each.is_declaration and each.name != function.name:
            each.linkage = "internal"  # other modules have parts of the same names
    levels = {"loop_vectorize": _CODEGEN._loopvect, "slp_vectorize": False, "opt": _CODEGEN._opt_level, "cost": "cheap"}  # noqa: SLF001
    for options in (levels, {}):  # counts of holders go with the first, as in `CPUCodeLibrary`
        passes, builder = _CODEGEN._module_pass_manager(**options)  # noqa: SLF001
        passes.run(whole, builder)
    return bytes(whole.as_bitcode())


def machine_code(made: Iterable[bytes]) -> bytes:
    """The functions, of which `bitcode` is given, as an object file for this architecture."""
    whole = binding.parse_assembly("")
    for each in made:
        whole.link_in(binding.parse_bitcode(each))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    return bytes(target.create_target_machine(_CPU, "", 3, "pic", "small").emit_object(whole))


def _libraries(first: Any) -> list[Any]:
    """A library, and all that it was put together of, each once."""
    found: dict[Any, None] = {}
    waiting = [first]
    while waiting:
        library = waiting.pop()
        if library not in found:
            found[library] = None
            waiting += library._linking_libraries  # noqa: SLF001
    return [*found]


@typeof_impl.register(InnerFunction)
def _(made: InnerFunction, _context: Any) -> Any:
    """Numba meets a part as a global name of the function that it compiles."""
    if made.compiler is None:
        if made.how == "instruction":
            made.compiler = intrinsic(getattr(instructions, made.function.__name__))
            cpu_target.typing_context.refresh()
        else:
            made.compiler = _njit(forceinline=made.how == "inlined")(made.function)
    return cpu_target.typing_context.resolve_value_type(made.compiler)


def _entry(function: Compiled) -> Any:
    """A function behind its entry, as numba has compiled them."""
    names = [f"a{number}" for number in range(len(function.kinds))]
    arrays = {name: kind for name, kind in zip(names, function.kinds, strict=True) if isinstance(kind, Array)}
    fits = " and ".join(f"fits_{name}(array, {name})" for name in arrays) or "True"
    given = ", ".join(
        f"take_{name}({name})" if name in arrays else f"{name} != 0" if kind == "bool" else name
        for name, kind in zip(names, function.kinds, strict=True)
    )
    zeros = ["int64(0)"] * RESULTS_MAX
    results = [f"int64(found[{n}])" for n in range(function.results)] if function.results > 1 else ["int64(found)"]
    results = ([] if not function.results else results) + zeros
    text = (
        f"def entry(array, {', '.join(names)}):\n"
        f"    if not ({fits}):\n        return int64(1), {', '.join(zeros)}\n"
        f"    found = called({given})\n"
        f"    return int64(0), {', '.join(results[:RESULTS_MAX])}\n"
    )
    room: dict[str, Any] = {"int64": np.int64, "called": _njit(function.function)}
    for name, kind in arrays.items():
        room |= {f"fits_{name}": _fits(kind), f"take_{name}": _take(kind)}
    exec(text, room)  # noqa: S102 - the text is made above
    entry: Any = _njit(room["entry"])
    entry.compile((types.intp,) * (1 + len(names)))
    (made,) = entry.overloads.values()
    return made


def _field(builder: Any, address: Any, place: int, kind: Any) -> Any:
    """The value in an object of the interpreter's or numpy's."""
    at = builder.add(address, ir.Constant(_WORD, place))
    return builder.load(builder.inttoptr(at, kind.as_pointer()), typ=kind)


def _fits(kind: Array) -> Callable[..., Any]:
    """Whether an object is such an array."""
    flags = _CONTIGUOUS | _ALIGNED | (_WRITEABLE if kind.written else 0)

    @intrinsic
    def fits(_context: Any, array: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array, address = args
            is_array = builder.icmp_signed("==", _field(builder, address, _TYPE, _WORD), array)
            with builder.if_else(is_array) as (then, otherwise):
                with then:
                    number = _field(builder, _field(builder, address, _DESCRIPTION, _WORD), _TYPE_NUMBER, _INT)
                    same = builder.icmp_signed("==", number, ir.Constant(_INT, np.dtype(kind.dtype).num))
                    count = _field(builder, address, _DIMENSIONS_COUNT, _INT)
                    same = builder.and_(same, builder.icmp_signed("==", count, ir.Constant(_INT, kind.dimensions)))
                    found = builder.and_(_field(builder, address, _FLAGS, _INT), ir.Constant(_INT, flags))
                    same = builder.and_(same, builder.icmp_signed("==", found, ir.Constant(_INT, flags)))
                    from_then = builder.block
                with otherwise:
                    from_otherwise = builder.block
            result = builder.phi(ir.IntType(1))
            result.add_incoming(same, from_then)
            result.add_incoming(ir.Constant(ir.IntType(1), 0), from_otherwise)
            return result

        return types.boolean(array, address), code

    return fits


def _take(kind: Array) -> Callable[..., Any]:
    """The object as an array of numba's, in the same memory and without a holder."""
    made = types.Array(getattr(types, "boolean" if kind.dtype == "bool" else kind.dtype), kind.dimensions, "C")
    size = np.dtype(kind.dtype).itemsize

    @intrinsic
    def take(_context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            (address,) = args
            array = context.make_array(made)(context, builder)
            lengths = _field(builder, address, _DIMENSIONS, _WORD)
            shape = [_field(builder, lengths, 8 * n, _WORD) for n in range(kind.dimensions)]
            strides = [ir.Constant(_WORD, size)]
            for length in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            data = builder.inttoptr(_field(builder, address, _DATA, _WORD), array.data.type)
            arrayobj.populate_array(
                array,
                data=data,
                shape=shape,
                strides=strides,
                itemsize=ir.Constant(_WORD, size),
                meminfo=None,
                parent=None,
            )
            return array._getvalue()  # noqa: SLF001 - the library's way

        return made(address), code

    return take
