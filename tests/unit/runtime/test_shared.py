"""What hosts of a run must share, and the interface on which they speak; the rest needs hosts."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from parity.errors import ConfigError
from parity.runtime.ray import shared
from parity.runtime.ray.role import interface_of


class FakeActor:
    """A process on a host that sees the folder, or another one under its path."""

    def __init__(self, host: str, *, sees: bool = True) -> None:
        self.host = host
        self.sees = sees
        self.__ray_call__ = self

    def remote(self, work: Callable[[object], object]) -> object:
        answer = work(None)
        return (answer[0] and self.sees, self.host) if isinstance(answer, tuple) else answer


class FakeCalls:
    """Has every answer at once."""

    async def gather(self, asked: Mapping[str, object], what: str, *, deadline_s: float) -> Any:
        return asked


def check(folder: Path, actors: dict[str, FakeActor], *, maker: str | None = None) -> None:
    given: Any = actors
    calls: Any = FakeCalls()
    asyncio.run(
        shared.check_shared(
            *(folder, given), key="weights.dir", calls=calls, deadline_s=1.0, maker=maker
        )
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_LOOK_S", 0.0)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.9")


@pytest.mark.parametrize("maker", [None, "trainer-0"])
def test_a_folder_that_all_see_is_fine_and_left_as_it_was(
    tmp_path: Path, maker: str | None
) -> None:
    folder = tmp_path / "new"
    check(folder, {"trainer-0": FakeActor("10.0.0.1"), "engine-0": FakeActor("b")}, maker=maker)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("maker", "who"), [(None, "the driver"), ("trainer-0", "trainer-0")])
def test_who_sees_another_folder_is_named_with_the_key(
    tmp_path: Path, maker: str | None, who: str
) -> None:
    actors = {"trainer-0": FakeActor("10.0.0.1"), "engine-0": FakeActor("10.0.0.2", sees=False)}
    said = rf"what {who} writes there isn't seen by engine-0 on 10\.0\.0\.2; set weights\.dir"
    with pytest.raises(ConfigError, match=said):
        check(tmp_path, actors, maker=maker)
    assert list(tmp_path.iterdir()) == []


def test_gloo_speaks_on_the_interface_that_has_the_address() -> None:
    name = interface_of("127.0.0.1")
    assert name is not None
    assert name.startswith("lo")
    assert interface_of("203.0.113.250") is None
