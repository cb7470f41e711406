"""The machine code of `memory.py`, as numba's intrinsics: each gives its signature for some types, and what writes the code for them."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils


def byte_at(_context: Any, array: Any, place: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load(builder.gep(data, [args[1]]), typ=ir.IntType(8))

    return types.uint8(array, types.intp), code


def word_at(_context: Any, array: Any, place: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        word = ir.IntType(64)
        at = builder.bitcast(builder.gep(data, [args[1]]), ir.PointerType(word))
        return builder.load(at, align=1, typ=word)

    return types.uint64(array, types.intp), code


def high_product(_context: Any, left: Any, right: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), code


def leading_zeros(_context: Any, word: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


def trailing_zeros(_context: Any, word: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


def double_bits(_context: Any, number: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), code


def double_of_bits(_context: Any, bits: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), code


def borrowed(_context: Any, array: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        struct.meminfo = cgutils.get_null_value(struct.meminfo.type)
        struct.parent = cgutils.get_null_value(struct.parent.type)
        return struct._getvalue()  # noqa: SLF001 - the library's way

    return array(array), code


def copy_bytes(_context: Any, out: Any, to: Any, array: Any, place: Any, size: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0]).data
        source = context.make_array(signature.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(builder, builder.gep(target, [args[1]]), builder.gep(source, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, array, types.intp, types.intp), code


def move_bytes(_context: Any, out: Any, to: Any, place: Any, size: Any) -> Any:
    """See `memory.py`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        cgutils.raw_memmove(builder, builder.gep(data, [args[1]]), builder.gep(data, [args[2]]), args[3], 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.intp, types.intp), code
