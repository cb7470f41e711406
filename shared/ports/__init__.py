"""What drivers need of the outside, as Protocols.

`tidemark.shared.adapters` has the implementations; each keeps the contract that its docstring states.
"""
