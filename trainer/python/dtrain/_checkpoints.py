"""Checkpoints on disk: docs/checkpoint_format.md. Reading them, and, where no dtrain runs the
program, committing them by the same rules."""

import datetime
import errno
import hashlib
import json
import math
import os
import re
import shutil
from pathlib import Path

from ._command import DtrainError
from ._socket import warn
from ._world import world

_storage = None  # what configure() said, or the environment
_found = []  # the checkpoint to resume from, once it was looked for: (folder, manifest) or None


class Damaged(Exception):
    """A checkpoint that was committed and is not whole any more."""


class Storage:
    """A folder with checkpoints, of which this process is the only committer."""

    def __init__(self, path, num_to_keep=None, score_attribute="", score_order="max"):
        if num_to_keep is not None and (not isinstance(num_to_keep, int) or num_to_keep < 1):
            raise DtrainError(f"num_to_keep={num_to_keep}: a whole number from 1 is needed")
        if score_order not in ("max", "min"):
            raise DtrainError(f"score_order={score_order}: max or min")
        self.folder = Path(os.path.abspath(path)) / "checkpoints"
        self.num_to_keep, self.score_attribute = num_to_keep, score_attribute or ""
        self.highest = score_order == "max"
        self._cleared = False

    def commit(self, step, source, metrics, keep):
        """Takes the folder `source` as a checkpoint of one shard; returns the committed folder."""
        who = world()
        if not self._cleared:  # what an earlier run left unfinished
            shutil.rmtree(self.folder / ".tmp", ignore_errors=True)
            self._cleared = True
        temporary = self.folder / ".tmp" / f"attempt-{who.attempt}-step-{step}"
        shard = temporary / "shard-00000-of-00001"
        if shard.exists():
            shutil.rmtree(shard)
        copied = keep
        try:
            temporary.mkdir(parents=True, exist_ok=True)
            files = _listed(source)
            if not keep:
                try:
                    os.rename(source, shard)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    copied = True
            if copied:
                shutil.copytree(source, shard)
            records = []
            for path in files:
                size, digest = _sum(shard / path, sync=True)
                records.append({"path": path, "size": size, "sha256": digest})
            for folder, _, _ in os.walk(shard):
                _sync_folder(folder)
            _write(shard / "shard.json", {"format": "dtrain-shard", "version": 1, "shard": 0, "shards": 1,
                                          "step": step, "files": records})
            number = 1 + max((n for n, _ in _numbered(self.folder, bad=True)), default=-1)
            _write(temporary / "manifest.json", {
                "format": "dtrain-checkpoint", "version": 1, "number": number, "job": who.job,
                "attempt": who.attempt, "step": step, "world_size": who.size, "shards": 1,
                "created": datetime.datetime.now(datetime.timezone.utc)
                           .isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "metrics": metrics,
                "files": [{**r, "path": f"{shard.name}/{r['path']}"} for r in records]})
            final = self.folder / f"checkpoint_{number:06d}"
            os.rename(temporary, final)
        except BaseException:
            _give_back(shard, source)
            raise
        _sync_folder(self.folder)
        if copied and not keep:  # from another file system
            try:
                shutil.rmtree(source)
            except OSError as error:
                warn(f"{source} is committed as {final} and not removed: {error}")
        try:
            self._retain()
        except OSError as error:  # this one is committed all the same
            warn(f"older checkpoints than {final} are not removed: {error}")
        return final

    def _retain(self):
        if self.num_to_keep is None:
            return
        whole = []
        for number, folder in _numbered(self.folder):
            try:
                whole.append((number, folder, opened(folder)["metrics"]))
            except Damaged:
                continue

        def score(entry):
            try:
                value = float(entry[2][self.score_attribute])
            except (KeyError, ValueError):
                value = math.nan
            if math.isnan(value):
                return -math.inf
            return value if self.highest else -value

        newest = max(number for number, _, _ in whole)
        whole.sort(key=lambda e: (score(e) if self.score_attribute else 0, e[0]), reverse=True)
        in_use = [found[0] for found in _found if found]  # other ranks may still read it
        for number, folder, _ in whole[self.num_to_keep:]:
            if number != newest and folder not in in_use:
                # The manifest goes first: half removed must not look whole.
                (folder / "manifest.json").unlink()
                shutil.rmtree(folder)


def opened(folder):
    """The manifest of a committed checkpoint whose files are all there with their sizes. Raises
    Damaged."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != "dtrain-checkpoint" or manifest["version"] != 1:
            raise ValueError("not a manifest of version 1")
        for record in manifest["files"]:
            path = folder / record["path"]
            if path.is_symlink() or not path.is_file():
                raise Damaged(f"{path}: is missing")
            if path.stat().st_size != record["size"]:
                raise Damaged(f"{path}: has {path.stat().st_size} bytes, its record says {record['size']}")
        return {**manifest, "step": int(manifest["step"]), "shards": int(manifest["shards"]),
                "metrics": dict(manifest["metrics"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{folder / 'manifest.json'}: {error}") from None


def resume_path(shard=0):
    """The folder that was handed over as shard `shard` of the newest checkpoint, only to be read,
    or None if there is no checkpoint to resume from."""
    found = _resumed()
    if found is None:
        return None
    folder, manifest = found
    if not 0 <= shard < manifest["shards"]:
        raise DtrainError(f"{folder}: there is no shard {shard}, it has {manifest['shards']}")
    return folder / f"shard-{shard:05d}-of-{manifest['shards']:05d}"


def resume_step():
    """The step of that checkpoint, or 0."""
    found = _resumed()
    return found[1]["step"] if found else 0


def storage():
    """Where this program keeps checkpoints itself, or None."""
    global _storage
    if _storage is None and os.environ.get("DTRAIN_STORAGE_PATH"):
        _storage = Storage(os.environ["DTRAIN_STORAGE_PATH"])
    return _storage


def set_storage(value):
    global _storage
    _storage = value
    _found.clear()


def _resumed():
    if not _found:
        _found.append(_look())
    return _found[0]


def _look():
    """Damaged ones are passed over for the one before, and said."""
    named = os.environ.get("DTRAIN_CHECKPOINT")
    own = not os.environ.get("DTRAIN_REPORT_SOCKET")
    if named:
        named = Path(named)
        older = re.fullmatch(r"checkpoint_(\d{6,})", named.name)
        choice = [named] + [path for number, path in _numbered(named.parent)
                            if older and number < int(older.group(1))]
    elif own and storage():
        choice = [path for _, path in _numbered(storage().folder)]
    else:
        return None
    damaged = []
    for folder in choice:
        try:
            manifest = opened(folder)
            for record in manifest["files"]:
                try:
                    size, digest = _sum(folder / record["path"])
                except FileNotFoundError:
                    raise Damaged(f"{folder / record['path']}: is missing") from None
                if digest != record["sha256"]:
                    damaged.append(folder)
                    raise Damaged(f"{folder / record['path']}: its content does not match its SHA-256")
        except Damaged as error:
            warn(f"passed over a checkpoint that is not whole: {error}")
            continue
        if own and not named and world().rank == 0:
            for bad in damaged:
                os.rename(bad, bad.with_name(bad.name + ".bad"))
        return folder, manifest
    if choice:
        raise DtrainError(f"no checkpoint in {choice[0].parent} is whole",
                          hint="move them away to begin anew")
    return None


def _numbered(folder, bad=False):
    """(number, path) of the committed checkpoints of a folder, the newest first."""
    found = []
    try:
        entries = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in entries:
        match = re.fullmatch(r"checkpoint_(\d{6,})(\.bad)?", name)
        if match and (bad or not match.group(2)) and match.group(1) == f"{int(match.group(1)):06d}":
            found.append((int(match.group(1)), Path(folder) / name))
    return sorted(found, reverse=True)


def _give_back(shard, source):
    """What was not committed is the caller's again, where it was."""
    try:
        if os.path.lexists(shard) and not os.path.lexists(source):
            for made in ("shard.json", "shard.json.part"):
                (shard / made).unlink(missing_ok=True)
            os.rename(shard, source)
    except OSError as error:
        warn(f"{source} was not committed, and is {shard} now: {error}")
    else:
        shutil.rmtree(shard.parent, ignore_errors=True)


def _listed(source):
    """The files of a folder that is to become a shard, relative. Regular ones only."""
    files = []
    for folder, folders, names in os.walk(source):
        for name in folders + names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, source)
            if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):
                raise DtrainError(f"{path}: a checkpoint has regular files only")
            if relative == "shard.json":
                raise DtrainError(f"{path}: the name is taken by the checkpoint format")
            if os.path.isfile(path):
                files.append(relative)
    return sorted(files)


def _sum(path, sync=False):
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            digest.update(part)
            size += len(part)
        if sync:
            os.fsync(file.fileno())
    return size, digest.hexdigest()


def _write(path, document):
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    _sync_folder(path.parent)


def _sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
