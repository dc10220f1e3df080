#!/usr/bin/env python3
"""A real Slurm on this machine, in a lab of its own (lab.py), with nobody's slurm.conf but its own.

  tests/support/slurm.py [--nodes 4] [--gpus 0] -- COMMAND…

runs COMMAND beside slurmctld and a slurmd for each of n1, n2, …, which are all this machine: two
CPUs, 2 GiB and that many GPUs (which are none) each, in the partitions `normal` and, before it,
`high`. Where there can be no lab, or no Slurm is installed, it ends with 77, which is a skipped test.

The Slurm is this system's, or, with DTRAIN_TEST_SLURM=NAME, that of .deps/hosts/NAME (scripts/setup
--tests makes them): its programs, and whatever they start, have that as their system. Which processes
are a step's it knows by ProctrackType=proctrack/linuxproc, or by that of DTRAIN_TEST_PROCTRACK=cgroup.
"""

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab import SOURCE, available, base, enter, sh, which

SKIPPED = 77
FREEZER = Path("/sys/fs/cgroup/freezer")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun")
# Its daemons take each other at their word; where nobody else is no munge is needed.
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=6817
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/{proctrack}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,defer_batch
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
TaskProlog={folder}/task_prolog
KillWait=30
GresTypes=gpu
NodeName=DEFAULT CPUs=2 RealMemory=2048 State=UNKNOWN{gres}
{nodes}
PartitionName=normal Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=2 State=UP
"""


def other_system():
    """The system whose Slurm it is; None: this one's."""
    name = os.environ.get("DTRAIN_TEST_SLURM")
    return SOURCE / ".deps" / "hosts" / name if name else None


def proctrack():
    return os.environ.get("DTRAIN_TEST_PROCTRACK") or "linuxproc"


def version():
    return sh("slurmctld", "-V").split()[-1]


def missing():
    """None where a Slurm can run in this lab, else why not."""
    why = available()
    if why is None and not all(which(program) for program in PROGRAMS):
        why = "Slurm needs the packages slurmctld slurmd slurm-client (scripts/setup --tests)"
    if why is None and other_system() and not (other_system() / ".complete").exists():
        why = f"there is no {other_system()} (scripts/setup --tests)"
    # Its plugin for version 2 alone takes no machine that has a hierarchy of version 1 beside it.
    if why is None and proctrack() == "cgroup" and not (os.access(FREEZER, os.W_OK) and (FREEZER / "tasks").exists()):
        why = f"proctrack/cgroup needs control groups of version 1 in {FREEZER}"
    return why


# As many sites have one: a scratch folder for each job.
TASK_PROLOG = """\
#!/bin/sh
mkdir -p "{folder}/scratch/$SLURM_JOB_ID" && echo "export TMPDIR={folder}/scratch/$SLURM_JOB_ID"
"""


class Slurm:
    """With it SLURM_CONF is set, for whoever is started by this program."""

    def __init__(self, nodes=4, gpus=0):
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.gpus = gpus
        self.folder = base() / "slurm"
        self.group = None

    def __enter__(self):
        # slurmd resolves no name where there is but a loopback.
        if not sh("ip", "link", "show", "lab0", check=False):
            sh("ip", "-batch", "-", input="link add lab0 type bridge\nlink set lab0 up\n"
               "addr add 10.77.0.1/24 dev lab0\n")
        for name in ("state", "spool", "dev"):
            (self.folder / name).mkdir(parents=True)
        if proctrack() == "cgroup":
            self.take_control_groups()
        if other_system():
            self.take_programs_of(other_system())
        print(f"Slurm {version()}, proctrack/{proctrack()}", flush=True)
        host = os.uname().nodename
        places = "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={17000 + number}"
                           for number, name in enumerate(self.nodes))
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, folder=self.folder, nodes=places,
            proctrack=proctrack(), gres=f" Gres=gpu:{self.gpus}" if self.gpus else ""))
        # Without the file 22.05 takes no groups; later ones look for some, which are systemd's.
        if proctrack() == "cgroup":
            (self.folder / "cgroup.conf").write_text(
                f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={FREEZER.parent}\nIgnoreSystemd=yes\n")
        elif other_system():
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.folder / "task_prolog").write_text(TASK_PROLOG.format(folder=self.folder))
        (self.folder / "task_prolog").chmod(0o755)
        # slurmd wants a device of each.
        devices = [self.folder / "dev" / f"gpu{number}" for number in range(self.gpus)]
        for device in devices:
            os.mknod(device, 0o020666, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.start_controller("-c")
        for name in self.nodes:
            (self.folder / "spool" / name).mkdir()
            # For PMIx, whose files are called alike on all nodes.
            (self.folder / "tmp" / name).mkdir(parents=True)
            self.start_node(name)
        self.until(lambda: sh("sinfo", "-h", "-p", "normal", "-t", "idle", "-o", "%D", check=False).strip()
                   == str(len(self.nodes)), "all nodes are idle")
        return self

    def __exit__(self, *_):
        sh("scancel", "--me", check=False)
        for pid in self.folder.glob("*.pid"):
            sh("kill", pid.read_text().strip(), check=False)
        del os.environ["SLURM_CONF"]
        if self.group:
            self.leave_control_groups()

    def take_control_groups(self):
        """One of the lab's own, which its processes see in the place of all: Slurm's, /slurm_n1 and so on,
        are no other lab's. Of a lab that is killed empty ones stay."""
        self.group = FREEZER / f"dtrain-lab-{secrets.token_hex(4)}"
        self.group.mkdir()
        (self.group / "cgroup.procs").write_text("0")
        sh("mount", "--bind", self.group, FREEZER)

    def leave_control_groups(self):
        sh("umount", FREEZER)
        (FREEZER / "cgroup.procs").write_text("0")

        def gone():
            """What is left there of Slurm's, which goes on asking for a slurmctld, is killed."""
            for folder, _, _ in os.walk(self.group, topdown=False):
                for pid in (Path(folder) / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            return not self.group.exists()
        self.until(gone, "Slurm has ended")

    def take_programs_of(self, system):
        """In the place of ours, each started in that system, which has the lab's folders where we have
        them; what a job starts is its system's own."""
        top = base() / "system"
        for name in ("system", "system.upper", "system.work", "bin"):
            (base() / name).mkdir()
        sh("mount", "-t", "overlay", "none", "-o",
           f"lowerdir={system},upperdir={top}.upper,workdir={top}.work", top)
        for folder in ("/proc", "/sys", "/dev", self.folder, base() / "tmp", base() / "home"):
            (top / str(folder)[1:]).mkdir(parents=True, exist_ok=True)
            sh("mount", "--rbind", folder, f"{top}{folder}")
        shutil.copy("/etc/passwd", top / "etc/passwd")
        for program in PROGRAMS:
            wrapper = base() / "bin" / program
            wrapper.write_text(f'#!/bin/sh\nexec chroot {top} {program} "$@"\n')
            wrapper.chmod(0o755)
            sh("mount", "--bind", wrapper, Path(which(program)).resolve())

    def start_controller(self, *options):
        sh("slurmctld", *options)

    def start_node(self, name):
        sh("slurmd", "-N", name)

    def until(self, holds, what, limit=60):
        end = time.monotonic() + limit
        while not holds():
            if time.monotonic() > end:
                logs = "".join(f"\n{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))
                raise RuntimeError(f"it is not so after {limit} s that {what}{logs}")
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    why = missing()
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    with Slurm(options.nodes, options.gpus):
        return subprocess.run(options.command).returncode


if __name__ == "__main__":
    enter()
    sys.exit(main())
