"""How a followed job is shown: lines as they come; in a notebook a line of progress that is updated in
place, in a terminal on stderr."""

import base64
import contextlib
import html
import sys


@contextlib.contextmanager
def shown(job, world_size):
    show = (_Notebook if _in_notebook() else _Lines)(job, world_size)
    try:
        yield show
    finally:
        show.close()


def _in_notebook():
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def line_of(event):
    end = "" if event.get("partial") else "\n"
    if event.get("type") == "released":
        return f"[dtrain: {event['bytes']} bytes of output are missing here: released, as log_limit says]\n"
    if "base64" in event:
        return base64.b64decode(event["base64"]).decode("utf-8", "replace") + end
    return event.get("text", "") + end


class _Lines:
    """`world_size` is asked once, at the first line: before that a job may have no ranks."""

    def __init__(self, job, world_size):
        self._job = job
        self._world_size = world_size
        self._ranks = None
        self._drawn = False
        self._state = None
        self._rank = None  # whose progress is shown: the lowest one's that tells any

    def __call__(self, event):
        kind = event["type"]
        if kind in ("log", "released"):
            self._log(event)
        elif kind == "state" and event["state"] != self._state:
            self._state = event["state"]
            self._note(f"{self._job}: {event['state']}" + (f", {event['reason']}" if event.get("reason") else ""))
        elif kind == "event" and event.get("level") in ("warning", "error"):
            self._note(f"{event['level']}: {event['message']}")
        elif kind == "progress":
            rank = event.get("rank") or 0
            if self._rank is None or rank <= self._rank:
                self._rank = rank
                self._progress(event)

    def _log(self, event):
        self._clear()
        if event.get("rank") is None:
            prefix = f"[setup {event.get('node')}] "
        else:
            if self._ranks is None:
                self._ranks = self._world_size()
            prefix = f"[{event['rank']}] " if self._ranks > 1 else ""
        out = sys.stderr if event.get("stream") in ("err", "setup") else sys.stdout
        out.write(prefix + line_of(event))
        out.flush()

    def _note(self, text):
        self._clear()
        print(text, file=sys.stderr, flush=True)

    def _progress(self, event):
        if not sys.stderr.isatty():
            return
        self._clear()
        sys.stderr.write(progress_text(event))
        sys.stderr.flush()
        self._drawn = True

    def _clear(self):
        if self._drawn:
            sys.stderr.write("\r\033[K")
        self._drawn = False

    def close(self):
        self._clear()


class _Notebook(_Lines):
    """Plain display(display_id=…) of IPython: no widgets."""

    def __init__(self, job, world_size):
        super().__init__(job, world_size)
        from IPython.display import display
        self._newest = None
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def _progress(self, event):
        self._newest = event
        self._update()

    def _note(self, text):
        if text.startswith(self._job + ": "):
            self._update()
        else:
            print(text, flush=True)

    def _update(self):
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self):
        state = self._state or ""
        where = progress_text(self._newest) if self._newest else ""
        bar = ""
        if self._newest and self._newest.get("total"):
            bar = f'<progress value="{self._newest["step"]}" max="{self._newest["total"]}"></progress> '
        return {"text/plain": f"{self._job} {state} {where}".rstrip(),
                "text/html": f"<b>{html.escape(self._job)}</b> {html.escape(state)} {bar}{html.escape(where)}"}

    def _clear(self):
        pass


def progress_text(event):
    text = f"step {event['step']}" + (f"/{event['total']}" if event.get("total") else "")
    if event.get("epoch") is not None:
        text += f"  epoch {event['epoch']}"
    for name, value in (event.get("metrics") or {}).items():
        text += f"  {name} {float(value):.6g}"
    return text + (f"  {event['message']}" if event.get("message") else "")
