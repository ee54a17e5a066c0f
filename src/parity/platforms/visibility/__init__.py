"""Which devices a process may use: how the visibility variables read and compose.

`lists.py` reads one value, `compose.py` composes them into the map from logical index to physical
id, `names.py` finds misspelt and foreign names. Nothing outside this folder reads such a variable.
"""
