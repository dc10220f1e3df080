"""AWS as it is for tests, on loopback: moto, and in front of it what moto lacks or has wrong, and faults as a test
says. In the Python of aws_lab.enter().

    with Cloud() as cloud:
        env = cloud.environment()              # what a user of it has set
        cloud.capacity["us-west-2a", "p3.2xlarge"] = 0
        cloud.fault("RunInstances", "lose")    # it is done, and nobody hears of it
        cloud.asked                            # [(action, parameters, its error's code or "")]
        cloud.problems                         # what no client of AWS's would have sent

Signatures are checked as AWS does, over what was sent, and each request of EC2's and IAM's by botocore's model of it:
a key that the model does not have is refused. Whoever asks by the credentials of an instance's role (aws_roles.py) may
do what its policy says. Beyond moto it has p3 instances, the deep-learning image's parameter, tokens
of clients, the bounds of user data and counts, capacity by zone and type, a quota of vCPUs, placement groups,
instances that are pending until they are let run, and such as are not known at once.
"""

import base64
import contextlib
import copy
import datetime
import functools
import http.server
import json
import re
import socket
import sys
import threading
import time
import urllib.parse
import uuid
import xml.etree.ElementTree as ET

import aws_roles
from aws_roles import ACCOUNT, REGION, Refused

KEY, SECRET = "AKIADTRAINTESTSKEY01", "a-secret-of-dtrains-tests/0123456789+abc"
EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"
MOST_USER_DATA = 16 * 1024
SKEW = datetime.timedelta(minutes=5)
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
OLD_DLAMI = "Deep Learning Base Proprietary Nvidia Driver GPU AMI (Ubuntu 20.04) 20250101"  # for GPUs before Turing
# name: vCPUs, GPUs, memory in MiB
P3 = {"p3.2xlarge": (8, 1, 62464), "p3.8xlarge": (32, 4, 249856), "p3.16xlarge": (64, 8, 499712)}


@functools.cache
def slow_things():
    """moto's application, and botocore's models."""
    from moto.core.utils import get_service_model
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    return DomainDispatcherApplication(create_backend_app), {each: get_service_model(each) for each in ("ec2", "iam")}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments):
        self.open = set()  # connections
        super().__init__(*arguments)

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        super().shutdown_request(request)
        self.open.discard(request)

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # who asked may be dead
            super().handle_error(request, client_address)


class Cloud:
    def __init__(self, host="127.0.0.1"):
        self.host = host
        self.lock = threading.RLock()  # one request at a time, as moto wants it
        self.keys = {KEY: SECRET}
        self.sessions = {}  # temporary keys: (token, role)
        self.by_role = []  # [(role, action)]
        self.asked = []
        self.problems = []
        # (zone, type) and (zone, type, "spot"): how many more there are; absent: without end
        self.capacity = {}
        self.parameters = {}  # of SSM's, besides AWS's own: an image each
        self.vcpus = None  # how many may run; None: without end
        self.hold_pending = False  # new instances stay pending until run()
        self.hold_stopping = False  # those that are stopped stay stopping until halt()
        self.unknown_for = 0  # so many requests about them do not know new instances yet
        self.prices = {"p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "m5.large": 0.096, "gp3": 0.08}  # None: nobody may ask
        self.spot_prices = {}  # by zone and type; absent: next to nothing
        self.on_launch = lambda instance, user_data: None  # moto's instance; with the lock held, as the others
        self.on_terminate = self.on_stop = self.on_start = self.on_associate = lambda instance_id: None
        self.on_modify = lambda instance_id, user_data: None
        self._faults = []
        self._tokens = {}  # client token: (parameters, instance ids, answer)
        self._unknown = {}  # instance id: requests left
        self._groups = {}  # placement groups: their strategy and tags
        self._as_before = set()  # of the ids of a request, those that were so already

    # ---- life

    def __enter__(self):
        import moto.settings
        from moto.ec2 import ec2_backends
        from moto.moto_api._internal import moto_api_backend
        moto_api_backend.reset()  # one process has one account
        moto.settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")
        self.moto, self.models = slow_things()
        self.backend = ec2_backends[ACCOUNT][REGION]
        self._add_types()
        self.image = sorted(image.id for image in self.backend.describe_images()
                            if image.name and "ubuntu" in image.name.lower())[0]
        self.old_image = self.add_image(OLD_DLAMI)
        self.server = Server((self.host, 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://{self.host}:{self.server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def environment(self):
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_EC2_METADATA_DISABLED": "true"}

    # ---- what a test says and sees

    def fault(self, action, kind, times=1, after=0):
        """The next requests of that action ("*": of any) fail, but for the first `after` of them. `kind`: "throttle"; "busy" (500); "lose": done, and
        the connection ends without an answer; "drop": not done, likewise; or an error's code."""
        with self.lock:
            self._faults.append([action, kind, times, after])

    def add_image(self, name):
        """One more, which is like another, and newer than all; its id."""
        image = copy.copy(self.backend.amis[self.image])
        # EC2 tells whole seconds, and moto's own images are each of that in which it came to it.
        image.creation_date = max(each.creation_date for each in self.backend.amis.values()) + datetime.timedelta(seconds=1)
        image.id, image.name = f"ami-{len(self.backend.amis):017x}", name
        self.backend.amis[image.id] = image
        return image.id

    def instances(self, *states):
        """Ids of those in these states, or of all that are not terminated."""
        with self.lock:
            return sorted(instance.id for instance in self.backend.all_instances()
                          if (instance.state in states if states else instance.state != "terminated"))

    def run(self, *ids):
        """Pending ones run from now on."""
        with self.lock:
            for each in ids or self.instances("pending"):
                self._set_state(each, "running", 16)

    def halt(self, *ids):
        """Those that are stopping are stopped from now on."""
        with self.lock:
            for each in ids or self.instances("stopping"):
                self._set_state(each, "stopped", 80)

    def stop(self, *ids):
        """Somebody stops them at the console."""
        with self.lock:
            self.backend.stop_instances(list(ids))
            for each in ids:
                self._stopped(each)

    def end(self, instance_id, reason="Server.SpotInstanceTermination"):
        """AWS takes it back."""
        with self.lock:
            self.backend.terminate_instances([instance_id])
            instance = self.backend.get_instance(instance_id)
            instance._reason = reason
            instance.state_reason.code, instance.state_reason.message = reason, f"{reason}: no capacity"
            self.on_terminate(instance_id)

    def settle(self):
        """Until nobody is connected any more, so that what was on its way is done."""
        until = time.monotonic() + 60
        while self.server.open:
            assert time.monotonic() < until, "somebody stays connected"
            time.sleep(0.01)

    def count(self, action):
        with self.lock:
            return sum(each[0] == action for each in self.asked)

    # ---- one request

    def _handler(cloud):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):  # checkip's
                seen = self.client_address[0].encode() + b"\n"
                self.send_response(200)
                self.send_header("Content-Length", str(len(seen)))
                self.end_headers()
                self.wfile.write(seen)

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = cloud._answer(self.path, dict(self.headers.items()), body)
                if answer is None:
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, kind, sent = answer
                with contextlib.suppress(OSError):  # who asked may be dead
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(sent)))
                    self.end_headers()
                    self.wfile.write(sent)

            def log_message(self, *_):
                pass

        return Handler

    def _answer(self, path, headers, body):
        """(status, content type, bytes); None: the connection ends."""
        target = headers.get("X-Amz-Target", "").partition(".")[2]
        form = dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True)) if not target else {}
        action = target or form.get("Action", "?")
        service = "?"
        with self.lock:
            try:
                service, key = self._check_signature(path, headers, body)
                lost = self._take_fault(action)
                if lost == "drop":
                    self.asked.append((action, form, "drop"))
                    return None
                answer = self._serve(service, action, form, headers, body, key)
                code = re.search(rb"<Code>([^<]*)</Code>", answer[2]) if answer[0] >= 400 else None
                self.asked.append((action, form, code[1].decode() if code else ""))
                return None if lost == "lose" else answer
            except Refused as refused:
                self.asked.append((action, form, refused.code))
                return self._refusal(service, refused)

    def _refusal(self, service, refused):
        if service in ("ssm", "pricing"):
            return refused.status, "application/x-amz-json-1.1", json.dumps(
                {"__type": refused.code, "message": refused.message}).encode()
        message = refused.message.replace("&", "&amp;").replace("<", "&lt;")
        error = f"<Error><Code>{refused.code}</Code><Message>{message}</Message></Error>"
        text = (f"<ErrorResponse>{error}<RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>" if service in ("sts", "iam")
                else f"<Response><Errors>{error}</Errors><RequestID>{uuid.uuid4()}</RequestID></Response>")
        return refused.status, "text/xml;charset=UTF-8", text.encode()

    def _check_signature(self, path, headers, body):
        """The service that it is for, and by which key."""
        import botocore.auth
        import botocore.awsrequest
        import botocore.credentials
        said = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, "
                            r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})", headers.get("Authorization") or "")
        if not said:
            raise Refused("MissingAuthenticationToken", "The request must contain a signature.", 403)
        key, _, region, service, signed, signature = said.groups()
        if key not in self.keys:
            raise Refused("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
        low = {name.lower(): value for name, value in headers.items()}
        if key in self.sessions and (low.get("x-amz-security-token") != self.sessions[key][0]
                                     or "x-amz-security-token" not in signed.split(";")):
            raise Refused("InvalidClientTokenId" if service != "ec2" else "AuthFailure", "The security token is invalid.", 403)
        when = datetime.datetime.strptime(low["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(datetime.datetime.now(datetime.timezone.utc) - when) > SKEW:
            raise Refused("RequestExpired", f"Request has expired. Timestamp date is {when}", 400)
        request = botocore.awsrequest.AWSRequest(
            "POST", f"http://{low['host']}{path}", {name: low[name] for name in signed.split(";") if name != "host"}, body)
        request.context["timestamp"] = low["x-amz-date"]
        signer = botocore.auth.SigV4Auth(botocore.credentials.Credentials(key, self.keys[key]), service, region)
        canonical = signer.canonical_request(request)
        if signer.signature(signer.string_to_sign(request, canonical), request) != signature:
            raise Refused("SignatureDoesNotMatch" if service != "ec2" else "AuthFailure",
                          "The request signature we calculated does not match.\n" + canonical, 403)
        if region != ("us-east-1" if service in ("iam", "pricing") else REGION):
            self.problems.append(f"region {region} for {service}")
        return service, key

    def _take_fault(self, action):
        for fault in self._faults:
            if fault[0] in ("*", action) and fault[3] > 0:
                fault[3] -= 1
            elif fault[0] in ("*", action) and fault[2] > 0:
                fault[2] -= 1
                if fault[1] in ("lose", "drop"):
                    return fault[1]
                raise {"throttle": Refused("RequestLimitExceeded", "Request limit exceeded.", 503),
                       "busy": Refused("InternalError", "An internal error has occurred", 500)}.get(
                           fault[1], Refused(fault[1], "as the test says"))
        return None

    def _may(self, key, service, action, parameters):
        if key not in self.sessions:
            return
        role = self.sessions[key][1]
        self.by_role.append((role, action))
        if why := aws_roles.refusal(self, role, service, action, parameters):
            raise Refused("UnauthorizedOperation" if service == "ec2" else "AccessDenied", why, 403)

    def _serve(self, service, action, form, headers, body, key):
        parameters = self._checked(service, action, form) if service in self.models else {}
        self._may(key, service, action, parameters)
        if service == "ssm":
            name = json.loads(body).get("Name")
            value = self.parameters.get(name) or (self.image if name in (DLAMI, UBUNTU) else None)
            if action == "GetParameter" and value:
                return 200, "application/x-amz-json-1.1", json.dumps(
                    {"Parameter": {"Name": name, "Type": "String", "Value": value, "Version": 1}}).encode()
        if service == "pricing":
            return self._price(json.loads(body))
        if action == "RemoveRoleFromInstanceProfile":
            aws_roles.check_removal(parameters)
        if service != "ec2":
            return self._moto(headers, body)
        form, early = copy.copy(form), None
        if action == "RunInstances":
            early = self._before_run(form, parameters)
        elif action in ("CreatePlacementGroup", "DeletePlacementGroup", "DescribePlacementGroups"):
            early = self._placement_groups(action, parameters)
        elif "InstanceIds" in parameters or action == "DescribeInstances":
            self._before_ids(action, form, parameters)
        elif action == "DescribeSpotPriceHistory" and self.spot_prices:
            early = self._spot_prices(parameters)
        elif action == "ModifyInstanceAttribute" and "UserData" in parameters:
            early = self._modify_user_data(parameters)
        if early:
            return early
        answer = self._moto(headers, urllib.parse.urlencode(form).encode())
        if answer[0] >= 300:
            return answer
        if action == "RunInstances":
            self._after_run(form, parameters, answer)
        elif action == "DescribeInstances":
            answer = (*answer[:2], self._hide_unknown(answer[2]))
        elif action == "AssociateIamInstanceProfile":
            self.on_associate(parameters["InstanceId"])
        elif action in ("TerminateInstances", "StopInstances", "StartInstances"):
            for each in parameters["InstanceIds"]:
                if action == "TerminateInstances":
                    self.on_terminate(each)
                elif action == "StopInstances":
                    self._stopped(each)
                elif each not in self._as_before:
                    if self.hold_pending:
                        self._set_state(each, "pending", 0)
                    self.backend.get_instance(each).launch_time = datetime.datetime.now(datetime.timezone.utc)
                    self.on_start(each)
        return answer

    def _moto(self, headers, body):
        from werkzeug.test import Client
        kept = {name: value for name, value in headers.items() if name.lower() not in ("content-length", "connection")}
        answer = Client(self.moto).post("/", base_url=self.url, data=body, headers=kept)
        return answer.status_code, answer.headers.get("Content-Type", "text/xml"), answer.data

    # ---- what no client of AWS's would send

    def _checked(self, service, action, form):
        """The parameters by the model's names."""
        from botocore.serialize import create_serializer
        from botocore.validate import ParamValidator
        from moto.core.parse import PROTOCOL_PARSERS
        from werkzeug.datastructures import MultiDict
        model = self.models[service]
        if action not in model.operation_names or form.get("Version") != model.api_version:
            raise Refused("InvalidAction", f"The action {action} is not valid for this web service.")
        operation, protocol = model.operation_model(action), {"ec2": "ec2", "iam": "query"}[service]
        parameters = PROTOCOL_PARSERS[protocol](operation).parse({
            "body": b"", "headers": {}, "method": "POST", "url_params": {}, "url_path": "/", "values": MultiDict(form)})
        parameters = parameters or {}
        again = create_serializer(protocol, False).serialize_to_request(parameters, operation)["body"]
        unknown = sorted(set(form) - set(again))
        wrong = ParamValidator().validate(parameters, operation.input_shape).generate_report()
        if unknown or wrong:
            self.problems.append(f"{action}: {', '.join(unknown)} {wrong}".strip())
            raise Refused("UnknownParameter" if unknown else "InvalidParameterValue",
                          f"The parameter {unknown[0]} is not recognized" if unknown else wrong)
        return parameters

    # ---- RunInstances

    def _before_run(self, form, parameters):
        data = base64.b64decode(parameters.get("UserData") or "", validate=True)
        if len(data) > MOST_USER_DATA:
            raise Refused("InvalidParameterValue", "User data is limited to 16384 bytes")
        least, most = parameters["MinCount"], parameters["MaxCount"]
        if least > most or least < 1:
            raise Refused("InvalidParameterCombination",
                          f"The minimum instance count ({least}) must not exceed the maximum instance count ({most})")
        token = parameters.get("ClientToken")
        if token and len(token) > 64:
            raise Refused("InvalidParameterValue", "The client token is longer than 64 characters")
        if token in self._tokens:
            then, ids, answer = self._tokens[token]
            if then != parameters:
                raise Refused("IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with "
                              "arguments used in previous request(s).")
            if all(self.backend.get_instance(each).state == "terminated" for each in ids):
                raise Refused("IdempotentInstanceTerminated", "The token has already been used, and the instance that was "
                              "launched is terminated.")
            return answer
        if (form.get("ImageId") or "").startswith("resolve:ssm:"):  # moto does not
            name = form["ImageId"].removeprefix("resolve:ssm:")
            if name not in self.parameters:
                raise Refused("InvalidParameterValue", f"The parameter {name} does not exist")
            form["ImageId"] = self.parameters[name]
        group = (parameters.get("Placement") or {}).get("GroupName")
        if group and group not in self._groups:
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
        kind = parameters.get("InstanceType", "m1.small")
        self._check_quota(kind, most)
        zone = self._zone_of(parameters)
        zones = [zone] if zone else [each.name for each in self.backend.describe_availability_zones()]
        spot = ("spot",) if (parameters.get("InstanceMarketOptions") or {}).get("MarketType") == "spot" else ()
        for each in zones:
            left = self.capacity.get((each, kind, *spot))
            if left is None or left >= least:
                if not zone:
                    form["Placement.AvailabilityZone"] = each
                if left is not None:
                    form["MaxCount"] = str(min(most, left))
                    self.capacity[each, kind, *spot] = left - min(most, left)
                return None
        where = f"in the Availability Zone you requested ({zone})" if zone else "in any Availability Zone"
        raise Refused("InsufficientInstanceCapacity",
                      f"We currently do not have sufficient {kind} capacity {where}. Our system will be working on "
                      "provisioning additional capacity.", 500)

    def _check_quota(self, kind, count):
        from moto.ec2.models.instance_types import INSTANCE_TYPES
        if self.vcpus is None or kind not in INSTANCE_TYPES:
            return
        each = INSTANCE_TYPES[kind]["VCpuInfo"]["DefaultVCpus"]
        used = sum(INSTANCE_TYPES[instance.instance_type]["VCpuInfo"]["DefaultVCpus"]
                   for instance in self.backend.all_instances() if instance.state in ("running", "pending"))
        if used + each * count > self.vcpus:
            raise Refused("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of "
                          f"{self.vcpus} allows for the instance bucket that the specified instance type belongs to.")

    def _zone_of(self, parameters):
        subnets = [parameters.get("SubnetId")] + [each.get("SubnetId") for each in parameters.get("NetworkInterfaces") or []]
        for subnet in filter(None, subnets):
            with contextlib.suppress(Exception):  # moto says that there is none
                return self.backend.get_subnet(subnet).availability_zone
        return (parameters.get("Placement") or {}).get("AvailabilityZone")

    def _after_run(self, form, parameters, answer):
        ids = [each.text for each in ET.fromstring(answer[2]).findall(".//{*}instanceId")]
        for each in ids:  # moto gives it to the first alone
            self.backend.get_instance(each).iam_instance_profile = self.backend.get_instance(ids[0]).iam_instance_profile
        if parameters.get("ClientToken"):
            self._tokens[parameters["ClientToken"]] = (parameters, ids, answer)
        for each in ids:
            if self.unknown_for:
                self._unknown[each] = self.unknown_for
            self._set_state(each, "pending", 0)
            if "NetworkInterface.2.DeviceIndex" in form:
                self.backend.get_instance(each).nics[0].public_ip = None  # as AWS, of several
            self.on_launch(self.backend.get_instance(each), base64.b64decode(parameters.get("UserData") or ""))
            if not self.hold_pending:
                self._set_state(each, "running", 16)

    def _set_state(self, instance_id, name, code):
        state = self.backend.get_instance(instance_id)._state
        state.name, state.code = name, code

    # ---- instances that are asked about

    def _before_ids(self, action, form, parameters):
        self._as_before = set()
        for each in parameters.get("InstanceIds") or []:
            if self._unknown.get(each, 0) > 0:
                self._unknown[each] -= 1
                raise Refused("InvalidInstanceID.NotFound", f"The instance ID '{each}' does not exist")
            if action in ("StopInstances", "StartInstances"):
                self._check_state(action, self.backend.get_instance(each))
        if action == "StartInstances":
            self._take_room([self.backend.get_instance(each) for each in parameters["InstanceIds"] if each not in self._as_before])
        # moto does not know this filter.
        for number, wanted in enumerate(parameters.get("Filters") or [], 1):
            if wanted.get("Name") == "client-token":
                ids = [each for token in wanted["Values"] for each in self._tokens.get(token, ((), ()))[1]] or ["i-none"]
                for name in [name for name in form if name.startswith(f"Filter.{number}.")]:
                    del form[name]
                form[f"Filter.{number}.Name"] = "instance-id"
                form.update({f"Filter.{number}.Value.{place}": each for place, each in enumerate(ids, 1)})

    def _check_state(self, action, instance):
        """As AWS, where moto takes all."""
        good, as_before = {"StartInstances": (("stopped",), ("pending", "running")),
                           "StopInstances": (("running", "pending"), ("stopping", "stopped"))}[action]
        if instance.state in as_before:
            self._as_before.add(instance.id)
        elif instance.state not in good:
            raise Refused("IncorrectInstanceState", f"The instance '{instance.id}' is not in a state from which it can be "
                          f"{'started' if action == 'StartInstances' else 'stopped'}.")
        if action == "StopInstances" and instance.lifecycle == "spot":
            raise Refused("UnsupportedOperation", f"You can't stop the Spot Instance '{instance.id}' because it is associated "
                          "with a one-time Spot Instance request.")

    def _take_room(self, instances):
        wanted = {}
        for instance in instances:
            key = instance._placement.zone, instance.instance_type
            wanted[key] = wanted.get(key, 0) + 1
        for (zone, kind), count in wanted.items():
            if (left := self.capacity.get((zone, kind))) is not None and left < count:
                raise Refused("InsufficientInstanceCapacity", f"We currently do not have sufficient {kind} capacity in the "
                              f"Availability Zone you requested ({zone}).", 500)

    def _stopped(self, instance_id):
        if instance_id in self._as_before:
            return
        if self.hold_stopping:
            self._set_state(instance_id, "stopping", 64)
        self.on_stop(instance_id)

    def _modify_user_data(self, parameters):
        instance = self.backend.get_instance(parameters["InstanceId"])
        data = parameters["UserData"]["Value"]
        data = data if isinstance(data, bytes) else base64.b64decode(data, validate=True)
        if instance.state != "stopped":
            raise Refused("IncorrectInstanceState", f"The instance '{instance.id}' is not in the 'stopped' state.")
        if len(data) > MOST_USER_DATA:
            raise Refused("InvalidParameterValue", "User data is limited to 16384 bytes")
        self.on_modify(instance.id, data)
        inside = "<requestId>1</requestId><return>true</return>"
        return (200, "text/xml;charset=UTF-8",
                f'<ModifyInstanceAttributeResponse xmlns="{EC2}">{inside}</ModifyInstanceAttributeResponse>'.encode())

    def _hide_unknown(self, body):
        hidden = [each for each, left in self._unknown.items() if left > 0]
        if not hidden:
            return body
        root = ET.fromstring(body)
        if root.tag.startswith("{"):
            ET.register_namespace("", root.tag[1:].partition("}")[0])
        for each in hidden:
            self._unknown[each] -= 1
        for reservations in root.findall(".//{*}reservationSet"):
            for reservation in list(reservations):
                instances = reservation.find("{*}instancesSet")
                for instance in list(instances):
                    if instance.findtext("{*}instanceId") in hidden:
                        instances.remove(instance)
                if not len(instances):
                    reservations.remove(reservation)
        return ET.tostring(root)

    # ---- what moto does not have

    def _price(self, asked):
        if self.prices is None:
            raise Refused("AccessDeniedException", "User is not authorized to perform: pricing:GetProducts", 400)
        fields = {each["Field"]: each["Value"] for each in asked["Filters"]}
        if fields.get("regionCode") != REGION:
            self.problems.append(f"a price of {fields}")
        price = self.prices.get(fields.get("instanceType") or fields.get("volumeApiName"))
        products = [json.dumps({"terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {
            "USD": f"{price:.10f}"}}}}}}})] if price else []
        return 200, "application/x-amz-json-1.1", json.dumps({"FormatVersion": "aws_v1", "PriceList": products}).encode()

    def _spot_prices(self, asked):
        inside = "".join(
            f"<item><instanceType>{kind}</instanceType><spotPrice>{price:.6f}</spotPrice><availabilityZone>{zone}"
            "</availabilityZone></item>" for (zone, kind), price in self.spot_prices.items()
            if kind in asked["InstanceTypes"] and asked.get("AvailabilityZone") in (None, zone))
        return (200, "text/xml;charset=UTF-8", f'<DescribeSpotPriceHistoryResponse xmlns="{EC2}"><spotPriceHistorySet>{inside}'
                "</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>".encode())

    def _placement_groups(self, action, parameters):
        name = parameters.get("GroupName")
        inside = "<return>true</return>"
        if action == "CreatePlacementGroup":
            if name in self._groups:
                raise Refused("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
            tags = {each["Key"]: each["Value"] for said in parameters.get("TagSpecifications") or [] for each in said["Tags"]}
            self._groups[name] = parameters.get("Strategy", "cluster"), tags
        elif action == "DeletePlacementGroup":
            if self._groups.pop(name, None) is None:
                raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        else:
            found = parameters.get("GroupNames") or [
                each for each, (_, tags) in self._groups.items()
                if all(tags.get(wanted["Name"].removeprefix("tag:")) in wanted["Values"] for wanted in parameters.get("Filters") or [])]
            for each in found:
                if each not in self._groups:
                    raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{each}' is unknown.")
            inside = "<placementGroupSet>" + "".join(
                f"<item><groupName>{each}</groupName><strategy>{self._groups[each][0]}</strategy><state>available</state></item>"
                for each in found) + "</placementGroupSet>"
        return 200, "text/xml;charset=UTF-8", f'<{action}Response xmlns="{EC2}">{inside}</{action}Response>'.encode()

    def _add_types(self):
        from moto.ec2.models import instance_types
        like = instance_types.INSTANCE_TYPES["p3dn.24xlarge"]
        for name, (vcpus, gpus, memory) in P3.items():
            made = copy.deepcopy(like)
            made["InstanceType"] = name
            made["VCpuInfo"].update(DefaultVCpus=vcpus, DefaultCores=vcpus // 2)
            made["MemoryInfo"]["SizeInMiB"] = memory
            made["GpuInfo"]["Gpus"][0].update(Count=gpus, MemoryInfo={"SizeInMiB": 16384})
            made["GpuInfo"]["TotalGpuMemoryInMiB"] = 16384 * gpus
            is_new = name not in instance_types.INSTANCE_TYPES
            instance_types.INSTANCE_TYPES[name] = made
            if is_new:
                instance_types.InstanceTypeBackend.instance_types.append(instance_types.InstanceType(name))
            for place in ("a", "b", "c"):
                offers = instance_types.INSTANCE_TYPE_OFFERINGS["availability-zone"][REGION]
                if not any(each["InstanceType"] == name and each["Location"] == REGION + place for each in offers):
                    offers.append({"InstanceType": name, "Location": REGION + place, "LocationType": "availability-zone"})
            offers = instance_types.INSTANCE_TYPE_OFFERINGS["region"][REGION]
            if not any(each["InstanceType"] == name for each in offers):
                offers.append({"InstanceType": name, "Location": REGION, "LocationType": "region"})
