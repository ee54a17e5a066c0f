"""Forward passes over slots; `decoder.py` is the contract, `selection.py` chooses."""
