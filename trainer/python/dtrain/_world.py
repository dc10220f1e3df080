"""Who this process is among the ranks, as its environment says: dtrain's, torchrun's, nobody's."""

import os
from dataclasses import dataclass

from ._command import DtrainError


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node_rank: int = 0
    nodes: int = 1
    attempt: int = 1  # of this job, from 1
    job: str = ""  # empty where dtrain did not start it

    @property
    def restart_count(self):
        return self.attempt - 1


def _number(name, default, low=0):
    text = os.environ.get(name)
    if text is None or text == "":
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise DtrainError(f"{name}={text}: a whole number from {low} is needed")
    return value


def world():
    """This rank, of how many. Without RANK in the environment: one rank alone."""
    if not os.environ.get("RANK"):
        return World(job=os.environ.get("DTRAIN_JOB_ID", ""))
    if not os.environ.get("WORLD_SIZE"):
        raise DtrainError("RANK is set and WORLD_SIZE is not")
    rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1, 1)
    if rank >= size:
        raise DtrainError(f"RANK={rank}: not below WORLD_SIZE={size}")
    return World(rank=rank, size=size, local_rank=_number("LOCAL_RANK", 0),
                 local_size=_number("LOCAL_WORLD_SIZE", 1, 1), node_rank=_number("GROUP_RANK", 0),
                 nodes=_number("GROUP_WORLD_SIZE", 1, 1),
                 attempt=_number("DTRAIN_ATTEMPT", _number("TORCHELASTIC_RESTART_COUNT", 0) + 1, 1),
                 job=os.environ.get("DTRAIN_JOB_ID", ""))
