"""What a person watching a run sees; `display.py` is the contract, `choose.py` picks one."""
