"""dtrain from Python, with nothing but the standard library.

In a rank: report, checkpoint, resume_path, resume_step, world, progress, heartbeat, configure.
On the laptop: submit, job, up, down, status. docs/python.md has both.
"""

from ._checkpoints import resume_path, resume_step
from ._command import DtrainError
from ._job import Checkpoint, Job, Result, down, job, status, submit, up
from ._rank import checkpoint, configure, heartbeat, progress, report
from ._world import World, world

__version__ = "0.1.0"
__all__ = ["Checkpoint", "DtrainError", "Job", "Result", "World", "checkpoint", "configure", "down",
           "heartbeat", "job", "progress", "report", "resume_path", "resume_step", "status", "submit",
           "up", "world"]
