"""Who this process is among the ranks, as its environment says: dtrain's, torchrun's, srun's, nobody's."""

import os
import re
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
    """This rank, of how many: as dtrain or torchrun says, else as srun does, else one rank alone."""
    if not os.environ.get("RANK"):
        if "SLURM_PROCID" in os.environ and "SLURM_NTASKS" in os.environ:
            return _of_slurm()
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


def _of_slurm():
    """A task of srun, as trainer/core/environment.cpp reads it."""
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"):
        if not os.environ.get(name):
            raise DtrainError(f"SLURM_PROCID is set and {name} is not",
                              hint="start the program with srun, or unset SLURM_PROCID")
    rank, size = _number("SLURM_PROCID", 0), _number("SLURM_NTASKS", 1, 1)
    if rank >= size:
        raise DtrainError(f"SLURM_PROCID={rank}: not below SLURM_NTASKS={size}")
    local, node = _number("SLURM_LOCALID", 0), _number("SLURM_NODEID", 0)
    names = _first("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if not names:
        raise DtrainError("SLURM_PROCID is set and SLURM_JOB_NODELIST is not")
    nodes = _hosts_in(names)
    tasks = _tasks_by_node(_first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    if nodes == 1:
        local_size = size
    elif node < len(tasks):
        local_size = tasks[node]
    else:  # as srun deals them out when nothing else is asked for
        local_size = max(local + 1, size // nodes)
    return World(rank=rank, size=size, local_rank=local, local_size=local_size, node_rank=node, nodes=nodes,
                 attempt=_number("SLURM_RESTART_COUNT", 0) + 1, job=os.environ.get("DTRAIN_JOB_ID", ""))


def _first(*names):
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _hosts_in(names):
    """How many hosts are in a list as Slurm writes it: node[08-10,12],gpu1 are 5."""
    hosts = 0
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", names):
        of_part = 1
        for ranges in re.findall(r"\[(.*?)\]", part):
            of_brackets = 0
            for one in ranges.split(","):
                match = re.fullmatch(r"(\d+)(?:-(\d+))?", one)
                if not match or int(match.group(2) or match.group(1)) < int(match.group(1)):
                    raise DtrainError(f"{names[:200]}: not a list that Slurm writes")
                of_brackets += int(match.group(2) or match.group(1)) - int(match.group(1)) + 1
            of_part *= of_brackets
        hosts += of_part
    return hosts


def _tasks_by_node(text):
    """2(x3),1 is 2, 2, 2, 1."""
    tasks = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not match or int(match.group(2) or 1) > 65536:
            raise DtrainError(f"{text[:200]}: not a list that Slurm writes")
        tasks += [int(match.group(1))] * int(match.group(2) or 1)
    return tasks
