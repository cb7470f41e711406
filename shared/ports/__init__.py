"""What drivers need of the outside, as Protocols.

`shared.adapters` has the implementations; each keeps the contract that its docstring states.
"""
