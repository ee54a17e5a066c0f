"""What `parity doctor` finds out and says; `examine.py` puts it together, `report.py` holds it."""
