"""The `#SBATCH` lines of a script: which options a user may give, and what Parity writes itself.

Used by `slurm.py`. sbatch reads these lines with rules of quoting of its own, so a value is one
word of plain characters or it is refused; what the shell reads is quoted by `slurm.py`.
"""

import re
from collections.abc import Mapping, Sequence

from parity.errors import ConfigError
from parity.registry import known

# Long options of sbatch that concern nobody but the site. A flag takes no value.
FLAGS = ("contiguous", "spread-job", "use-min-nodes")
OPTIONAL_VALUE = ("exclusive", "nice")
VALUED = (
    "account acctg-freq begin cluster-constraint clusters comment constraint core-spec "
    "cores-per-socket deadline delay-boot dependency error exclude gpus-per-node gres hint "
    "job-name licenses mail-type mail-user mem-per-cpu mem-per-gpu network nodefile nodelist "
    "open-mode output partition prefer priority profile qos reservation sockets-per-node switches "
    "thread-spec threads-per-core time time-min tmp wckey"
).split()
OWN = {  # what follows from the run file or from another option
    "nodes": "placement.nodes",
    "ntasks": "placement.nodes",
    "ntasks-per-node": "placement.nodes",
    "cpus-per-task": "--cpus",
    "mem": "--memory-gib",
    "signal": "--grace-s",
    "requeue": "--requeue",
    "no-requeue": "--requeue",
    "chdir": "the folder in which you run `parity launch`",
    "export": "--setup",
    "gpus": "placement.trainer_ranks and placement.engine_replicas",
}
_PLAIN = re.compile(r"[A-Za-z0-9_.,:=/@%+*&|()\[\]~^!-]+")
_COUNT = re.compile(r"(?:^|:)(\d+)$")


def parse(words: Sequence[str]) -> dict[str, str | None]:
    """`NAME=VALUE` or `NAME` words as options; a later one wins. Raises ConfigError."""
    found: dict[str, str | None] = {}
    for word in words:
        name, has_value, value = word.removeprefix("--").partition("=")
        found[name] = value if has_value else None
        _check(name, found[name])
    return found


def _check(name: str, value: str | None) -> None:
    if name in OWN:
        raise ConfigError(f"--sbatch {name} follows from the run; set {OWN[name]} instead.")
    names = [*VALUED, *FLAGS, *OPTIONAL_VALUE]
    if name not in names:
        raise ConfigError(f"--sbatch has no option {name!r}; {known(name, sorted(names))}")
    if name in FLAGS and value is not None:
        raise ConfigError(f"--sbatch {name} takes no value; write --sbatch {name}.")
    if name in VALUED and not value:
        raise ConfigError(f"--sbatch {name} needs a value; write --sbatch {name}=VALUE.")
    if value is not None and not _PLAIN.fullmatch(value):
        raise ConfigError(
            f"--sbatch {name} is {value!r}; a value may have letters, digits and"
            " _.,:=/@%+*&|()[]~^!- only, because sbatch has quoting rules of its own."
        )


def devices(
    given: Mapping[str, str | None], *, count: int, resource: str | None
) -> dict[str, str | None]:
    """The option that asks for the devices of a node; the user's own where it has the count."""
    for name in ("gpus-per-node", "gres"):
        value = given.get(name)
        if value is None:
            continue
        last = _COUNT.search(value)
        if last is None or int(last[1]) != count:
            raise ConfigError(
                f"--sbatch {name} is {value!r}, and the run is placed on {count} devices a node;"
                f" let it end with :{count}, as in --sbatch {name}=KIND:{count}."
            )
        return {}
    if resource is None or count == 0:
        return {}
    if resource == "GPU":
        return {"gpus-per-node": str(count)}
    return {"gres": f"{resource.lower()}:{count}"}


def lines(options: Mapping[str, str | None]) -> list[str]:
    """As sbatch reads them."""
    return [
        f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={value}"
        for name, value in options.items()
    ]
