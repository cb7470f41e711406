"""The Protocols through which drivers reach the outside.

`tidemark.shared.adapters` has the implementations; each keeps the contract that its docstring states.
"""
