"""The folder of the disk transport while both sides change it at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parity.weights.host.library import Library, VersionFile
from parity.weights.manifest import Manifest


def test_a_writer_may_clear_receipts_away_while_receivers_sign(tmp_path: Path):
    library = Library(tmp_path)
    library.make()
    gone = VersionFile("p", Manifest(1, ()), {}, "full", None, ())  # withdrawn: not announced
    done = threading.Event()

    def sign(who: str) -> None:
        for _ in range(40):
            library.sign(gone, who, "refused", "no")

    def prune() -> None:
        while not done.is_set():
            library.prune(1)

    with ThreadPoolExecutor(3) as threads:
        pruning = threads.submit(prune)
        signing = [threads.submit(sign, f"engine-{n}") for n in range(2)]
        errors = [each.exception(60) for each in signing]
        done.set()
        errors.append(pruning.exception(60))
    assert errors == [None] * 3
    library.prune(1)
    assert list((tmp_path / "receipts").iterdir()) == []
