#!/usr/bin/env python3
"""The instances of an aws_cloud.Cloud as real hosts (hosts.py): each boots what its image would, a user `ubuntu` whom
its key pair lets in, its boot data as cloud-init runs them, and the instance metadata service in its own network.

    aws_lab.enter(); lab.enter()           # first thing in the program, in this order
    make_networks()                        # hosts.py's; this machine is 10.77.0.1 there
    with Cloud(host="10.77.0.1") as cloud, Machines(cloud) as machines:
        ...RunInstances...
        machines[instance_id].address      # once it runs; it is both its private and its public one
        machines[instance_id].metadata["latest/meta-data/spot/instance-action"] = "{…}"
        machines[instance_id].asked()  # what its metadata service was asked for, each time

Boot data: a script (#!), a #cloud-config with ssh_keys, ssh_authorized_keys and merge_how, both as MIME parts, all
that gzipped too. Who logs in may become root by sudo. As
with cloud-init they count at an instance's first boot alone, but where the #cloud-config says `always` of scripts-user:
then the scripts are run at each boot, those of boot data that were changed while it was stopped.
"""

import collections
import concurrent.futures
import contextlib
import email
import gzip
import json
import subprocess
import sys
import threading
from pathlib import Path

import aws_roles
from hosts import UID, Host, Hosts

METADATA = "169.254.169.254"
LOGIN = "ubuntu"


class Metadata(collections.UserDict):
    """What the service says, by path; in a file, which the service reads at each request."""

    def __init__(self, path):
        self.path = path
        super().__init__()

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self.save()

    def __delitem__(self, name):
        super().__delitem__(name)
        self.save()

    def save(self):
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.data))
        fresh.rename(self.path)


class Machine(Host):
    """A host that is nobody's yet; start() makes an instance of it."""

    def __init__(self, index, options):
        super().__init__(index, {**Hosts.DEFAULTS, "home": f"/home/{LOGIN}", **options})
        self.folder = self.folder.with_name(f"machine-{index}")
        self.root = self.folder / "root"
        self.service = self.script = None
        self.failure = None  # why it does not boot
        self.is_made = False

    def assign(self, instance, key, user_data):
        self.name = instance.id
        self.login_key, self.user_data = key, user_data

    def link(self, network):
        return f"{network}-m{self.index}"  # a name of 15 characters at most

    def make_user(self):
        etc, user_home = self.root / "etc", self.path(self.user_home)
        for name, row in (("passwd", f"{LOGIN}:x:{UID}:{UID}::{self.user_home}:/bin/bash"), ("group", f"{LOGIN}:x:{UID}:"),
                          ("shadow", f"{LOGIN}:*:19000:0:99999:7:::")):
            with open(etc / name, "a") as file:
                file.write(row + "\n")
        (user_home / ".ssh").mkdir(parents=True)
        (user_home / ".ssh/authorized_keys").write_text("")
        self.path("/root/.ssh/authorized_keys").write_text("")  # nobody is let in who has no key pair
        sudoers = etc / "sudoers.d/90-cloud-init-users"
        sudoers.write_text(f"{LOGIN} ALL=(ALL) NOPASSWD:ALL\n")
        sudoers.chmod(0o440)
        for path in (user_home, user_home / ".ssh", user_home / ".ssh/authorized_keys"):
            path.chmod(0o600 if path.is_file() else 0o700)
            subprocess.run(["chown", f"{UID}:{UID}", path], check=True)

    def make_ready(self):
        """All but what makes it that instance; what takes long."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metadata = Metadata(self.folder / "metadata")
        self.metadata.save()
        self.make([self])
        self.in_network("ip", "addr", "add", f"{METADATA}/32", "dev", "lo")
        self.service = subprocess.Popen(["nsenter", f"--net={self.folder}/net", sys.executable, __file__, self.metadata.path],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.service.stdout.readline()
        self.is_made = True

    def start(self, instance, role_credentials):
        """Boots it, and starts what its boot data say."""
        _, settings = parts_of(self.user_data)
        if not self.is_made:
            self.make_ready()
        self.prepare(self)
        self.path("~/.ssh/authorized_keys").write_text(self.login_key + "\n" if self.login_key else "")
        if settings:
            settings.pop("merge_how", None)
            settings.pop("cloud_final_modules", None)
            if keys := settings.pop("ssh_keys", None):
                self.take_host_key(keys)
            with open(self.path("~/.ssh/authorized_keys"), "a") as file:
                file.writelines(key + "\n" for key in settings.pop("ssh_authorized_keys", []))
            assert not settings, f"cloud-config that this is not: {sorted(settings)}"
        self.metadata.update({
            "latest/meta-data/instance-id": instance.id, "latest/meta-data/instance-type": instance.instance_type,
            "latest/meta-data/ami-launch-index": str(instance.ami_launch_index),
            "latest/meta-data/local-ipv4": self.address, "latest/meta-data/public-ipv4": self.address,
            "latest/meta-data/placement/availability-zone": instance._placement.zone,
            "latest/meta-data/placement/region": instance.region_name,
            "latest/meta-data/instance-life-cycle": instance.lifecycle or "on-demand",
            **({"latest/user-data": self.user_data.decode("latin-1")} if self.user_data else {}), **role_credentials})
        if self.is_up():
            self.restart_sshd()
        else:
            self.boot()
        self.run_scripts()

    def start_again(self, role_credentials):
        """After it was stopped: its disk is as it was."""
        self.metadata.update({"latest/user-data": self.user_data.decode("latin-1"), **role_credentials})
        self.boot()
        finals = parts_of(self.user_data)[1].get("cloud_final_modules", [])
        if any(each in (["scripts-user", "always"], ["scripts_user", "always"]) for each in finals):
            self.run_scripts()

    def run_scripts(self):
        scripts = parts_of(self.user_data)[0]
        for old in self.path("/var/lib/cloud/scripts").glob("part-*"):
            old.unlink()
        for number, script in enumerate(scripts, 1):
            path = self.path(f"/var/lib/cloud/scripts/part-{number:03}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(script)
            path.chmod(0o700)
        with open(self.folder / "console", "ab") as console:
            self.script = subprocess.Popen(
                self.inside("/bin/sh", "-c", 'cd /; for part in /var/lib/cloud/scripts/*; do [ ! -e "$part" ] || "$part"; done'),
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                     "OMP_WAIT_POLICY": "passive"})  # as in hosts.py

    def asked(self):
        return asked_of(self.metadata.path).read_text().splitlines()

    def take_host_key(self, keys):
        path = self.path("/etc/ssh/ssh_host_ed25519_key")
        path.write_text(keys["ed25519_private"].rstrip("\n") + "\n")
        path.with_suffix(".pub").write_text(keys["ed25519_public"].strip() + "\n")

    def remove(self):
        super().remove()
        for process in filter(None, (self.service, self.script)):
            process.kill()
            process.wait()
        if self.service:
            self.service.stdout.close()


def asked_of(metadata):
    """The file that a metadata service notes in what it is asked for."""
    return metadata.with_suffix(".asked")


def parts_of(data):
    """([scripts], {settings}) of boot data."""
    if not data:
        return [], {}
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    if data.startswith(b"#!"):
        return [data], {}
    if data.startswith(b"#cloud-config"):
        import yaml
        return [], yaml.safe_load(data)
    scripts, settings = [], {}
    message = email.message_from_bytes(data)
    assert message.is_multipart(), f"boot data that cloud-init does not know: {data[:60]}"
    for part in message.get_payload():
        more, inner = parts_of(part.get_payload(decode=True).lstrip(b"\n"))
        scripts += more
        settings.update(inner)
    return scripts, settings


class Machines:
    """Those of one cloud. A machine is made and removed by a thread of its own; wait() is for that. Options as those of
    hosts.Hosts."""

    def __init__(self, cloud, roles=None, prepare=lambda machine: None, **options):
        self.cloud = cloud
        self.options = options
        self.prepare = prepare  # what is called with each before it boots
        # What the metadata service says of an instance's role.
        self.roles = roles or (lambda instance: aws_roles.metadata_of(cloud, instance))
        self.machines = {}
        self.lock = threading.Lock()
        self.threads = []
        self.free = list(range(200))
        self.spares = []  # machines that are made already
        cloud.hold_pending = True
        cloud.on_launch, cloud.on_terminate = self._launch, self._terminate
        cloud.on_stop, cloud.on_start = self._stop, self._start_again
        cloud.on_associate = self._associate
        cloud.on_modify = self._modify
        cloud.hold_stopping = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        for machine in [*self.machines.values(), *self.spares]:
            machine.remove()

    def __getitem__(self, instance_id):
        return self.machines[instance_id]

    def __iter__(self):
        return iter(list(self.machines.values()))

    def __len__(self):
        return len(self.machines)

    def make_spares(self, count):
        """So many instances to come need not be made any more, and start at once."""
        fresh = [Machine(self.free.pop(0), self.options) for _ in range(count - len(self.spares))]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda machine: (machine.make_ready(), machine.boot()), fresh))
        self.spares += fresh

    def wait(self):
        """Until all that was begun is done. Raises what a machine could not boot for."""
        while self.threads:
            self.threads.pop(0).join()
        for machine in self:
            if machine.failure:
                raise RuntimeError(f"{machine.name}: {machine.failure}") from machine.failure

    def _launch(self, instance, data):
        key = self.cloud.backend.key_pairs.get(instance.key_name)
        with self.lock:
            machine = self.spares.pop(0) if self.spares else Machine(self.free.pop(0), self.options)
            machine.assign(instance, key.material_public.decode().strip() if key else None, data)
            machine.prepare = self.prepare
            self.machines[instance.id] = machine
        nic = instance.nics[0]
        for address in nic.private_ip_addresses:
            address["PrivateIpAddress"] = machine.address
        nic.private_ip_address = machine.address
        if nic.public_ip:
            nic.public_ip = machine.address
        self._begin(machine, lambda: (machine.start(instance, self.roles(instance)), self._running(instance.id)))

    def _running(self, instance_id):
        with self.cloud.lock:  # it may be terminated by now
            if self.cloud.backend.get_instance(instance_id).state == "pending":
                self.cloud.run(instance_id)

    def _terminate(self, instance_id):
        with self.lock:
            machine = self.machines.pop(instance_id, None)
        if machine:
            self._begin(machine, lambda: (machine.remove(), self.free.append(machine.index)))

    def _associate(self, instance_id):
        machine, instance = self.machines[instance_id], self.cloud.backend.get_instance(instance_id)
        self._begin(machine, lambda: machine.metadata.update(self.roles(instance)))

    def _stop(self, instance_id):
        machine = self.machines[instance_id]
        self._begin(machine, lambda: (machine.poweroff(), self._halted(instance_id)))

    def _halted(self, instance_id):
        with self.cloud.lock:
            if self.cloud.backend.get_instance(instance_id).state == "stopping":
                self.cloud.halt(instance_id)

    def _modify(self, instance_id, data):
        self.machines[instance_id].user_data = data

    def _start_again(self, instance_id):
        machine, instance = self.machines[instance_id], self.cloud.backend.get_instance(instance_id)
        if instance.nics[0].public_ip:  # moto gives it another, as AWS
            instance.nics[0].public_ip = machine.address
        self._begin(machine, lambda: (machine.start_again(self.roles(instance)), self._running(instance_id)))

    def _begin(self, machine, work):
        """What is begun for one machine is done in turn."""
        before = getattr(machine, "thread", None)

        def run():
            if before:
                before.join()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                machine.failure = error

        machine.thread = threading.Thread(target=run)
        self.threads.append(machine.thread)
        machine.thread.start()


def serve(path):
    """The metadata service, version 2 alone; runs in the host's network."""
    import http.server
    import secrets
    tokens = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status, text=""):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode("latin-1"))))
            self.end_headers()
            self.wfile.write(text.encode("latin-1"))

        def do_PUT(self):
            if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return self.answer(400)
            tokens.add(token := secrets.token_urlsafe(32))
            self.answer(200, token)

        def do_GET(self):
            if self.headers.get("X-aws-ec2-metadata-token") not in tokens:
                return self.answer(401)
            print(self.path.strip("/"), file=asked, flush=True)
            said = json.loads(path.read_text())
            name = self.path.strip("/")
            below = sorted({entry[len(name) + 1:].partition("/")[0] + "/" * ("/" in entry[len(name) + 1:])
                            for entry in said if entry.startswith(name + "/")})
            if name in said:
                self.answer(200, said[name])
            elif below:
                self.answer(200, "\n".join(below))
            else:
                self.answer(404)

        def log_message(self, *_):
            pass

    with open(asked_of(path), "a") as asked, http.server.ThreadingHTTPServer((METADATA, 80), Handler) as server:
        print("ready", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
