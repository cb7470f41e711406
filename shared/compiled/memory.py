"""Single instructions on bytes and words that the compiler does not find by itself; `instructions.py` has the code."""

from tidemark.shared.compiled.compiling import instruction


@instruction
def byte_at(array, place):
    """The byte of an array of bytes at a place ≥ 0; nothing is checked."""


@instruction
def word_at(array, place):
    """Eight bytes of an array of bytes from a place ≥ 0, the first the lowest; nothing is checked."""


@instruction
def high_product(left, right):
    """The upper 64 bits of the product of two words."""


@instruction
def leading_zeros(word):
    """How many of a word's upper bits are 0; the word is not 0."""


@instruction
def trailing_zeros(word):
    """How many of a word's lower bits are 0; the word is not 0."""


@instruction
def double_bits(number):
    """The bits of a double as a whole number."""


@instruction
def double_of_bits(bits):
    """The double with these bits."""


@instruction
def borrowed(array):
    """The same array, without a count of its holders: the caller holds it. Counting would cost at each call of a part."""


@instruction
def copy_bytes(out, to, array, place, size):
    """Copy so many bytes from a place of one array of bytes to a place of another; nothing is checked."""


@instruction
def move_bytes(out, to, place, size):
    """Move so many bytes of an array of bytes from a place to another, which may lie among them; nothing is checked."""
