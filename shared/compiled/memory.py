"""Single instructions on bytes and words that the compiler does not find by itself."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def byte_at(_context: Any, array: Any, place: Any) -> Any:
    """The byte of an array of bytes at a place ≥ 0; nothing is checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load(builder.gep(data, [args[1]]), typ=ir.IntType(8))

    return types.uint8(array, types.intp), code


@intrinsic
def word_at(_context: Any, array: Any, place: Any) -> Any:
    """Eight bytes of an array of bytes from a place ≥ 0, the first the lowest; nothing is checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        word = ir.IntType(64)
        at = builder.bitcast(builder.gep(data, [args[1]]), ir.PointerType(word))
        return builder.load(at, align=1, typ=word)

    return types.uint64(array, types.intp), code


@intrinsic
def high_product(_context: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the product of two words."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), code


@intrinsic
def leading_zeros(_context: Any, word: Any) -> Any:
    """How many of a word's upper bits are 0; the word is not 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def trailing_zeros(_context: Any, word: Any) -> Any:
    """How many of a word's lower bits are 0; the word is not 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), code


@intrinsic
def double_bits(_context: Any, number: Any) -> Any:
    """The bits of a double as a whole number."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), code


@intrinsic
def double_of_bits(_context: Any, bits: Any) -> Any:
    """The double with these bits."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), code


@intrinsic
def borrowed(_context: Any, array: Any) -> Any:
    """The same array, without a count of its holders: the caller holds it. Counting would cost at each call of a part."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        struct.meminfo = cgutils.get_null_value(struct.meminfo.type)
        struct.parent = cgutils.get_null_value(struct.parent.type)
        return struct._getvalue()  # noqa: SLF001 - the library's way

    return array(array), code


@intrinsic
def copy_bytes(_context: Any, out: Any, to: Any, array: Any, place: Any, size: Any) -> Any:
    """Copy so many bytes from a place of one array of bytes to a place of another; nothing is checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, args[0]).data
        source = context.make_array(signature.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(builder, builder.gep(target, [args[1]]), builder.gep(source, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, array, types.intp, types.intp), code


@intrinsic
def move_bytes(_context: Any, out: Any, to: Any, place: Any, size: Any) -> Any:
    """Move so many bytes of an array of bytes from a place to another, which may lie among them; nothing is checked."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        cgutils.raw_memmove(builder, builder.gep(data, [args[1]]), builder.gep(data, [args[2]]), args[3], 1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.intp, types.intp), code
