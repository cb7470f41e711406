"""Failures of what lies outside, drawn at random: those that last are told from those that pass.

A case is a kind of outside, a failure of it, the moment at which it begins, and whether it is mended after a while. The oracle: what can
never succeed makes the processor FAILED within a bound, with a reason that names place and finding; `check --connect` says so before a
start. What may pass is waited out with its reason shown, and mended it goes on by itself; each record comes out once. No reason is
the bare name of an exception, has a stack or a password, and nothing is waited for in silence.
"""
