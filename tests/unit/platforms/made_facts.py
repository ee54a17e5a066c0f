"""Facts of machines that aren't here."""

from collections.abc import Mapping, Sequence

from parity.platforms.facts import Facts, SmiDevice, SmiProbe, TorchBuild

BUILDS = {
    "cpu": TorchBuild("2.13.0+cpu"),
    "cuda": TorchBuild("2.13.0", cuda="13.0"),
    "hip": TorchBuild("2.13.0+rocm7.2", hip="7.2.26015"),
    "both": TorchBuild("2.13.0+odd", cuda="13.0", hip="7.2.26015"),
    "xpu": TorchBuild("2.13.0+xpu", xpu="20250301"),
    "none": None,
}


def probe(tool: str, answer: int | str | Sequence[str]) -> SmiProbe:
    """A tool that lists this many devices, or these UUIDs, or ended in this status."""
    if isinstance(answer, str):
        path = None if answer == "absent" else f"/usr/bin/{tool}"
        return SmiProbe(tool, answer, path=path, detail="as it was faked")
    uuids = [None] * answer if isinstance(answer, int) else answer
    devices = tuple(SmiDevice(index, uuid) for index, uuid in enumerate(uuids))
    return SmiProbe(tool, "ok", path=f"/usr/bin/{tool}", devices=devices, version="25.5.0")


def make(
    build: str = "cpu",
    *,
    npu: bool = False,
    smi: Mapping[str, int | str | Sequence[str]] | None = None,
    counts: Mapping[str, int | None] | None = None,
    nodes: Sequence[str] = (),
    versions: Mapping[str, str | None] | None = None,
    **environment: str,
) -> Facts:
    """Facts in a few words: `make("hip", smi={"amd-smi": 8}, HIP_VISIBLE_DEVICES="0")`."""
    return Facts(
        torch=BUILDS[build],
        plugins={"torch_npu": "2.9.0"} if npu else {},
        environment=environment,
        smi=tuple(probe(tool, answer) for tool, answer in (smi or {}).items()),
        device_counts=counts or {},
        device_nodes=tuple(nodes),
        versions=versions or {},
    )
