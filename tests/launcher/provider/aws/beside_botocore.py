"""launcher/provider/aws beside botocore and moto: the same signatures, forms, endpoints and credentials as
botocore's, and requests that moto's server, which checks signatures, understands.

  python3 beside_botocore.py [TEST...]     with DTRAIN_AWS_TOOL, the built aws_tool
"""

import contextlib
import datetime
import hashlib
import http.server
import json
import os
import random
import re
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import unittest.mock
import urllib.parse
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(SOURCE / "tests" / "support"))
import aws_lab  # noqa: E402

TOOL = os.environ["DTRAIN_AWS_TOOL"]
DEADLINE = 120


def tool(*words, given=None, env=None, code=0):
    """The tool's answer."""
    result = subprocess.run([TOOL, *words], input="" if given is None else json.dumps(given), text=True,
                            capture_output=True, timeout=DEADLINE, check=False,
                            env={"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "PATH": os.environ["PATH"],
                                 **(env or {})})
    if result.returncode != code:
        raise AssertionError(f"{words} ended with {result.returncode}: {result.stdout}{result.stderr}")
    return json.loads(result.stdout)


@contextlib.contextmanager
def serving(answer, certificate=None):
    """`answer(handler, method, path, body)` gives (status, fields, bytes); yields the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def any(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, fields, sent = answer(self, self.command, self.path, body)
            self.send_response(status)
            for name, value in {"Content-Length": len(sent), **fields}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PUT = any

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


class Model(unittest.TestCase):
    def test_the_table_is_botocores(self):
        said = subprocess.run([sys.executable, SOURCE / "scripts/ec2_model", "--check"], text=True,
                              stderr=subprocess.PIPE, check=False)
        self.assertEqual((said.returncode, said.stderr), (0, ""))

    def test_forms_are_botocores(self):
        import botocore.session
        from botocore.serialize import create_serializer
        model = botocore.session.Session().get_service_model("ec2")
        operation = model.operation_model("RunInstances")
        chance = random.Random(14)

        def value(shape, depth):
            if shape.type_name == "structure":
                names = list(shape.members)
                chosen = names if depth == 0 else chance.sample(names, chance.randint(1, len(names)))
                return {name: value(shape.members[name], depth + 1) for name in chosen}
            if shape.type_name == "list":
                return [value(shape.member, depth + 1) for _ in range(chance.randint(1, 3))]
            if shape.type_name == "boolean":
                return chance.random() < 0.5
            if shape.type_name in ("integer", "long"):
                return chance.randint(0, 1 << 30)
            if shape.type_name == "timestamp":
                return "2026-11-24T11:02:15Z"
            return "".join(chance.choice("aZ09 +&=%/ü~*\n") for _ in range(chance.randint(1, 12)))

        for _ in range(20):
            given = value(operation.input_shape, 0)
            wanted = create_serializer("ec2", False).serialize_to_request(given, operation)["body"]
            sent = dict(map(tuple, tool("form", "RunInstancesRequest", given=given)))
            self.assertEqual({**sent, "Action": "RunInstances", "Version": "2016-11-15"},
                             {name: str(text) for name, text in wanted.items()})


class Signature(unittest.TestCase):
    def test_it_is_botocores(self):
        import botocore.auth
        import botocore.awsrequest
        import botocore.credentials
        chance = random.Random(4)
        for number in range(40):
            body = "".join(chance.choice("aZ09&=%+/ü\n") for _ in range(chance.choice([0, 1, 50, 20000])))
            token = chance.choice(["", "t/" * 50 + "=="])
            fields = [["Content-Type", "application/x-www-form-urlencoded; charset=utf-8"],
                      ["X-Amz-Target", f"A.B {number}  c "]][:chance.randint(0, 2)]
            url = chance.choice(["https://ec2.us-west-2.amazonaws.com", "http://127.0.0.1:5000/", "https://h:443/a/b",
                                 "http://localhost:80/a%20b/c~d", "https://vpce-1.ec2.amazonaws.com:8443"])
            secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
            when = datetime.datetime(2026, 11, 24, 11, 2, chance.randint(0, 59), tzinfo=datetime.timezone.utc)
            given = {"url": url, "body": body, "fields": fields, "region": "us-west-2", "service": "ec2",
                     "access_key": "AKIDEXAMPLE", "secret_key": secret, "token": token,
                     "time": when.strftime("%Y-%m-%dT%H:%M:%S.000Z")}
            ours = dict(map(tuple, tool("sign", given=given)))
            request = botocore.awsrequest.AWSRequest("POST", url, dict(map(tuple, fields)), body.encode())
            request.context["timestamp"] = when.strftime("%Y%m%dT%H%M%SZ")
            signer = botocore.auth.SigV4Auth(botocore.credentials.Credentials("AKIDEXAMPLE", secret, token or None),
                                             "ec2", "us-west-2")
            with unittest.mock.patch("botocore.auth.get_current_datetime", lambda *_, **__: when):
                signer.add_auth(request)
            self.assertEqual(ours["Authorization"], request.headers["Authorization"], given)
            self.assertEqual(ours["X-Amz-Date"], request.headers["X-Amz-Date"])
            self.assertEqual(ours.get("X-Amz-Security-Token"), request.headers.get("X-Amz-Security-Token"))


class Endpoints(unittest.TestCase):
    def test_they_are_botocores(self):
        import botocore.session
        from botocore.endpoint_provider import EndpointProvider
        from botocore.exceptions import EndpointProviderError
        session = botocore.session.Session()
        loader = session.get_component("data_loader")
        partitions = loader.load_data("partitions")
        regions = [region for partition in session.get_available_partitions()
                   for region in session.get_available_regions("ec2", partition)]
        self.assertGreater(len(regions), 30)
        wrong, compared = [], 0
        for fips, dual in ((False, False), (True, False), (False, True), (True, True)):
            variables = {"AWS_USE_FIPS_ENDPOINT": str(fips).lower(), "AWS_USE_DUALSTACK_ENDPOINT": str(dual).lower()}
            services = ["ec2", "sts", "ssm"] + (["iam", "sso"] if not (fips or dual) else [])
            asked = [[service, region] for service in services for region in regions]
            ours = tool("endpoints", given=asked, env=variables)
            for (service, region), (url, signing) in zip(asked, ours, strict=True):
                rules = EndpointProvider(loader.load_service_model(service, "endpoint-rule-set-1"), partitions)
                try:
                    wanted = rules.resolve_endpoint(Region=region, UseFIPS=fips, UseDualStack=dual)
                except EndpointProviderError:  # there is none
                    continue
                compared += 1
                scheme = (wanted.properties.get("authSchemes") or [{}])[0]
                if (url, signing) != (wanted.url, scheme.get("signingRegion", region)):
                    wrong.append((service, region, variables, url, signing, wanted.url, scheme))
        self.assertGreater(compared, 400)
        self.assertEqual(wrong, [], "\n".join(map(str, wrong)))


# What botocore finds in this environment, in the tool's form; the name of its error where it finds none.
BOTOCORE = """
import botocore.exceptions, botocore.session, json
try:
    found = botocore.session.Session().get_credentials()
    frozen = found and found.get_frozen_credentials()
    print(json.dumps(found and [frozen.access_key, frozen.secret_key, frozen.token or ""]))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""
SOON = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
PAST = "2020-01-01T00:00:00Z"


def keys(name, expires=SOON):
    return {"AccessKeyId": f"AKIA-{name}", "SecretAccessKey": f"secret-of-{name}", "Token": f"token-of-{name}",
            "Expiration": expires}


def services(handler, method, path, body):
    """STS, SSO, a container's host and an instance's in one; what they hand out says who asked for what."""
    form = dict(urllib.parse.parse_qsl(body.decode()))
    if "Action" in form:
        action = form["Action"]
        by = re.search(r"Credential=(.*)/\d{8}/", handler.headers.get("Authorization") or "")
        name = f"{form['RoleArn']}-by-{by[1] if by else form['WebIdentityToken']}-{form.get('ExternalId')}"
        given = keys(name)
        parts = f"<AccessKeyId>{given['AccessKeyId']}</AccessKeyId><SecretAccessKey>{given['SecretAccessKey']}" \
                f"</SecretAccessKey><SessionToken>{given['Token']}</SessionToken><Expiration>{SOON}</Expiration>"
        return 200, {}, (f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
                         f"<Credentials>{parts}</Credentials></{action}Result></{action}Response>").encode()
    if path.startswith("/federation/credentials"):
        asked = dict(urllib.parse.parse_qsl(path.partition("?")[2]))
        if handler.headers["x-amz-sso_bearer_token"] != "sso-token":
            return 401, {"x-amzn-ErrorType": "UnauthorizedException"}, b'{"message": "Session token not found or invalid"}'
        name = f"{asked['role_name']}@{asked['account_id']}"
        return 200, {}, json.dumps({"roleCredentials": {
            "accessKeyId": name, "secretAccessKey": f"secret-of-{name}", "sessionToken": "t",
            "expiration": 4_000_000_000_000}}).encode()
    if path == "/container":
        if handler.headers["Authorization"] != "container-token":
            return 403, {}, b"no"
        return 200, {}, json.dumps(keys("container")).encode()
    if path == "/latest/api/token":
        return (200, {}, b"imds-token") if method == "PUT" else (405, {}, b"")
    if handler.headers["x-aws-ec2-metadata-token"] != "imds-token":
        return 401, {}, b""
    role = "/latest/meta-data/iam/security-credentials/"
    if path == role:
        return 200, {}, b"a-role"
    return (200, {}, json.dumps({"Code": "Success", **keys("instance")}).encode()) if path == role + "a-role" else (404, {}, b"")


class Credentials(unittest.TestCase):
    def setUp(self):
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.port = self.enterContext(serving(services))
        url = f"http://127.0.0.1:{self.port}"
        self.env = {"HOME": str(self.home), "AWS_ENDPOINT_URL_STS": url, "AWS_ENDPOINT_URL_SSO": url,
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "AWS_EC2_METADATA_DISABLED": "false",
                    "PATH": os.environ["PATH"], "AWS_DEFAULT_REGION": "us-west-2"}

    def write(self, name, text):
        path = self.home / ".aws" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def both(self, **env):
        """What both find; the tool's answer."""
        env = {**self.env, **env}
        theirs = json.loads(subprocess.run([sys.executable, "-c", BOTOCORE], env=env, text=True, capture_output=True,
                                           timeout=DEADLINE, check=True).stdout)
        ours = subprocess.run([TOOL, "credentials", "us-west-2"], input="", env=env, text=True, capture_output=True,
                              timeout=DEADLINE, check=False)
        answer = json.loads(ours.stdout)
        if isinstance(theirs, list):
            self.assertEqual([answer.get("access_key"), answer.get("secret_key"), answer.get("token")], theirs, answer)
        else:
            self.assertIn("error", answer, theirs)
        for hidden in ("secret-of", "token-of", "sso-token", "container-token"):
            if "error" in answer:
                self.assertNotIn(hidden, ours.stdout)
        return answer

    def test_the_environment_comes_first(self):
        self.write("credentials", "[default]\naws_access_key_id=AKIA-file\naws_secret_access_key=s\n")
        key = {"AWS_ACCESS_KEY_ID": "AKIA-env", "AWS_SECRET_ACCESS_KEY": "secret-of-env"}
        self.assertEqual(self.both(**key)["from"], "the environment")
        self.assertEqual(self.both(**key, AWS_SESSION_TOKEN="one")["token"], "one")
        self.both(**key, AWS_SESSION_TOKEN="one", AWS_SECURITY_TOKEN="two", AWS_PROFILE="default")
        self.assertIn("AWS_SECRET_ACCESS_KEY is not", self.both(AWS_ACCESS_KEY_ID="AKIA-env")["error"])
        self.assertIn("expired", self.both(**key, AWS_CREDENTIAL_EXPIRATION=PAST)["error"])
        self.assertEqual(self.both(**key, AWS_CREDENTIAL_EXPIRATION=SOON)["access_key"], "AKIA-env")

    def test_both_files_and_their_form(self):
        self.write("config", """
            # a comment
            [default]
            region = eu-west-1
            aws_access_key_id = AKIA-config
            aws_secret_access_key = secret-of-config
            s3 =
              max_concurrent_requests = 20
              addressing_style = path

            [profile "with space"]
            aws_access_key_id: AKIA-space
            AWS_Secret_Access_Key : secret-of = space ; all of it
            aws_session_token = a
            [profile both]
            aws_access_key_id = AKIA-config-both
            aws_secret_access_key = secret-of-config-both
            [neither]
            aws_access_key_id = AKIA-no-profile
            aws_secret_access_key = secret-of
            """)
        self.assertIn("default", self.both()["from"])
        self.assertEqual(self.both(AWS_PROFILE="with space")["access_key"], "AKIA-space")
        self.assertIn("config", self.both(AWS_PROFILE="both")["from"])
        found = self.both(AWS_PROFILE="neither")
        self.assertEqual(found["code"], "not_found")
        self.write("credentials", """
            [both]
            aws_access_key_id = AKIA-both
            aws_secret_access_key = secret-of-both
            [half]
            aws_access_key_id = AKIA-half
            """)
        self.assertIn("credentials", self.both(AWS_PROFILE="both")["from"])
        self.assertEqual(self.both(AWS_DEFAULT_PROFILE="both", AWS_PROFILE="x y")["access_key"], "AKIA-both")
        half = self.both(AWS_PROFILE="half")
        self.assertIn("profile half", half["error"])
        self.assertEqual(half["at"], str(self.home / ".aws/credentials") + ":6")
        other = self.write("elsewhere", "[default]\naws_access_key_id=AKIA-else\naws_secret_access_key=secret-of-else\n")
        self.assertEqual(self.both(AWS_SHARED_CREDENTIALS_FILE=str(other))["access_key"], "AKIA-else")
        self.assertEqual(self.both(AWS_SHARED_CREDENTIALS_FILE="~/.aws/elsewhere")["access_key"], "AKIA-else")
        self.assertEqual(self.both(AWS_CONFIG_FILE="/nonexistent", AWS_SHARED_CREDENTIALS_FILE="/nonexistent")["access_key"],
                         "AKIA-instance")

    def test_files_that_are_none(self):
        for text, line in (("[default]\nnonsense\n", 2), ("key = 1\n", 1), ("[default]\na = 1\na = 2\n", 3),
                           ("[default]\n[other]\n[default]\n", 3), ("[default\n", 1)):
            self.write("config", text)
            self.assertEqual(self.both()["at"], f"{self.home}/.aws/config:{line}", text)

    def test_roles(self):
        self.write("config", """
            [profile direct]
            role_arn = arn:aws:iam::123456789012:role/1
            source_profile = base
            external_id = xy
            role_session_name = me
            [profile chained]
            role_arn = arn:aws:iam::123456789012:role/2
            source_profile = direct
            [profile itself]
            role_arn = arn:aws:iam::123456789012:role/3
            source_profile = itself
            aws_access_key_id = AKIA-itself
            aws_secret_access_key = secret-of-itself
            [profile round]
            role_arn = arn:aws:iam::123456789012:role/4
            source_profile = about
            [profile about]
            role_arn = arn:aws:iam::123456789012:role/5
            source_profile = round
            [profile environment]
            role_arn = arn:aws:iam::123456789012:role/6
            credential_source = Environment
            [profile instance]
            role_arn = arn:aws:iam::123456789012:role/7
            credential_source = Ec2InstanceMetadata
            [profile lost]
            role_arn = arn:aws:iam::123456789012:role/8
            source_profile = nobody
            [profile neither]
            role_arn = arn:aws:iam::123456789012:role/9
            [profile two]
            role_arn = arn:aws:iam::123456789012:role/10
            source_profile = base
            credential_source = Environment
            [profile other]
            role_arn = arn:aws:iam::123456789012:role/11
            credential_source = Somewhere
            """)
        self.write("credentials", "[base]\naws_access_key_id=AKIA-base\naws_secret_access_key=secret-of-base\n")
        self.assertEqual(self.both(AWS_PROFILE="direct")["access_key"], "AKIA-arn:aws:iam::123456789012:role/1-by-AKIA-base-xy")
        self.assertEqual(self.both(AWS_PROFILE="chained")["access_key"], "AKIA-arn:aws:iam::123456789012:role/2-by-AKIA-arn:aws:iam::123456789012:role/1-by-AKIA-base-xy-None")
        self.assertEqual(self.both(AWS_PROFILE="itself")["access_key"], "AKIA-arn:aws:iam::123456789012:role/3-by-AKIA-itself-None")
        self.assertIn("circle", self.both(AWS_PROFILE="round")["error"])
        self.assertEqual(self.both(AWS_PROFILE="instance")["access_key"], "AKIA-arn:aws:iam::123456789012:role/7-by-AKIA-instance-None")
        self.assertIn("no credentials", self.both(AWS_PROFILE="environment")["error"])
        lost = self.both(AWS_PROFILE="lost")
        self.assertIn("source_profile nobody of profile lost does not exist", lost["error"])
        self.assertEqual(lost["at"], str(self.home / ".aws/config") + ":29")
        self.assertIn("neither source_profile nor", self.both(AWS_PROFILE="neither")["error"])
        self.assertIn("both source_profile and", self.both(AWS_PROFILE="two")["error"])
        self.assertIn("Somewhere", self.both(AWS_PROFILE="other")["error"])

    def test_web_identity(self):
        token = self.write("token", "web-token")
        self.assertEqual(self.both(AWS_WEB_IDENTITY_TOKEN_FILE=str(token), AWS_ROLE_ARN="arn:aws:iam::123456789012:role/w")["access_key"],
                         "AKIA-arn:aws:iam::123456789012:role/w-by-web-token-None")
        self.assertIn("AWS_ROLE_ARN", self.both(AWS_WEB_IDENTITY_TOKEN_FILE=str(token))["error"])
        self.write("config", f"[profile w]\nrole_arn = arn:aws:iam::123456789012:role/p\nweb_identity_token_file = {token}\n")
        self.assertEqual(self.both(AWS_PROFILE="w")["access_key"], "AKIA-arn:aws:iam::123456789012:role/p-by-web-token-None")
        token.unlink()
        self.assertIn(str(token), self.both(AWS_PROFILE="w")["error"])

    def test_sso(self):
        self.write("config", """
            [sso-session s]
            sso_start_url = https://start
            sso_region = eu-west-1
            [profile new]
            sso_session = s
            sso_account_id = 123
            sso_role_name = admin
            [profile old]
            sso_start_url = https://old
            sso_region = eu-west-1
            sso_account_id = 456
            sso_role_name = dev
            [profile half]
            sso_account_id = 456
            sso_role_name = dev
            [profile gone]
            sso_session = t
            sso_account_id = 123
            sso_role_name = admin
            """)
        new = self.both(AWS_PROFILE="new")
        self.assertEqual(new["hint"], "aws sso login --sso-session s")
        for name, key, profile in (("s", "admin@123", "new"), ("https://old", "dev@456", "old")):
            file = f"sso/cache/{hashlib.sha1(name.encode()).hexdigest()}.json"
            self.write(file, json.dumps({"accessToken": "sso-token", "expiresAt": SOON}))
            self.assertEqual(self.both(AWS_PROFILE=profile)["access_key"], key)
            self.write(file, json.dumps({"accessToken": "sso-token", "expiresAt": PAST}))
            self.assertIn("expired", self.both(AWS_PROFILE=profile)["error"])
            self.write(file, json.dumps({"accessToken": "another", "expiresAt": SOON}))
            self.assertEqual(self.both(AWS_PROFILE=profile)["code"], "denied")
        self.assertIn("has no sso_start_url", self.both(AWS_PROFILE="half")["error"])
        self.assertIn("[sso-session t]", self.both(AWS_PROFILE="gone")["error"])

    def test_a_program(self):
        program = self.write("program", f"""\
            #!/bin/sh
            [ "$1" = "a b" ] || {{ echo "what is $1?" >&2; exit 3; }}
            echo '{{"Version": 1, "AccessKeyId": "AKIA-program", "SecretAccessKey": "secret-of-program", "Expiration": "{SOON}"}}'
            """)
        program.chmod(0o755)
        self.write("config", f"""
            [profile good]
            credential_process = "{program}" 'a b'
            [profile bad]
            credential_process = {program} a\\ c
            [profile missing]
            credential_process = /nonexistent/program
            [profile other]
            credential_process = echo '{{"Version": 2}}'
            [profile text]
            credential_process = echo secret-of-nobody
            [profile endless]
            credential_process = echo "a
            """)
        self.assertEqual(self.both(AWS_PROFILE="good")["access_key"], "AKIA-program")
        self.assertIn("ended with exit code 3: what is a c?", self.both(AWS_PROFILE="bad")["error"])
        for name in ("missing", "other", "text", "endless"):
            self.assertIn(f"credential_process of profile {name}", self.both(AWS_PROFILE=name)["error"])

    def test_a_login(self):
        self.write("config", "[profile l]\nlogin_session = arn:me\nregion = us-west-2\n")
        self.assertEqual(self.both(AWS_PROFILE="l")["hint"], "aws login --profile l")
        file = f"login/cache/{hashlib.sha256(b'arn:me').hexdigest()}.json"
        token = {"accessKeyId": "AKIA-login", "secretAccessKey": "secret-of-login", "sessionToken": "t", "accountId": "1"}
        more = {"refreshToken": "r", "clientId": "c", "dpopKey": "k"}
        self.write(file, json.dumps({"accessToken": {**token, "expiresAt": SOON}, **more}))
        # botocore wants its C library for these.
        self.assertEqual(tool("credentials", "us-west-2", env={**self.env, "AWS_PROFILE": "l"})["access_key"], "AKIA-login")
        self.write(file, json.dumps({"accessToken": {**token, "expiresAt": PAST}, **more}))
        self.assertIn("expired", tool("credentials", "us-west-2", env={**self.env, "AWS_PROFILE": "l"}, code=1)["error"])

    def test_a_container_and_an_instance(self):
        self.assertEqual(self.both()["from"], "the instance's role a-role")
        self.assertEqual(self.both(AWS_EC2_METADATA_DISABLED="true")["code"], "denied")
        container = f"http://127.0.0.1:{self.port}/container"
        token = self.write("container-token-file", "container-token")
        self.assertEqual(self.both(AWS_CONTAINER_CREDENTIALS_FULL_URI=container,
                                   AWS_CONTAINER_AUTHORIZATION_TOKEN="container-token")["access_key"], "AKIA-container")
        self.both(AWS_CONTAINER_CREDENTIALS_FULL_URI=container, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token))
        self.assertEqual(self.both(AWS_CONTAINER_CREDENTIALS_FULL_URI=container)["code"], "denied")
        self.assertIn("neither https nor", self.both(AWS_CONTAINER_CREDENTIALS_FULL_URI="http://192.0.2.1/x")["error"])
        # A token of several lines is no header.
        token.write_text("container-token\nX-Other: 1")
        self.both(AWS_CONTAINER_CREDENTIALS_FULL_URI=container, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token))


class Moto(unittest.TestCase):
    """What moto, which checks signatures, keys, types and images, makes of requests."""

    @classmethod
    def setUpClass(cls):
        url = cls.enterClassContext(aws_lab.server())
        cls.env = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "AKIA-first", "AWS_SECRET_ACCESS_KEY": "not-checked-yet"}
        cls.iam("CreateUser", ["UserName", "me"])
        key = cls.iam("CreateAccessKey", ["UserName", "me"])
        cls.iam("PutUserPolicy", ["UserName", "me"], ["PolicyName", "all"], ["PolicyDocument", json.dumps({
            "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})])
        find = lambda name: next(element["text"] for element in every(key) if element["name"] == name)
        cls.env.update(AWS_ACCESS_KEY_ID=find("AccessKeyId"), AWS_SECRET_ACCESS_KEY=find("SecretAccessKey"))

    @classmethod
    def iam(cls, action, *form):
        return tool("iam", "us-west-2", action, given=form, env=cls.env)

    def ec2(self, action, *form, code=0, **env):
        return tool("ec2", "us-west-2", action, given=form, env={**self.env, **env}, code=code)

    def test_signatures_are_checked(self):
        self.assertEqual(tool("sts", "us-west-2", "GetCallerIdentity", given=[], env=self.env)["name"],
                         "GetCallerIdentityResponse")
        self.ec2("DescribeRegions", ["Filter.1.Name", "region-name"], ["Filter.1.Value.1", "us-west-2"])
        wrong = self.ec2("DescribeRegions", code=1, AWS_SECRET_ACCESS_KEY="another-secret")
        self.assertEqual((wrong["aws_code"], wrong["code"]), ("AuthFailure", "denied"))
        self.assertNotIn("another-secret", json.dumps(wrong))
        unknown = self.ec2("DescribeRegions", code=1, AWS_ACCESS_KEY_ID="AKIA-nobody")
        self.assertEqual(unknown["aws_code"], "AuthFailure")

    def test_refusals_by_their_names(self):
        for action, form, aws_code, code in (
                ("DescribeInstances", [["InstanceId.1", "i-0123456789abcdef0"]], "InvalidInstanceID.NotFound", "not_found"),
                ("RunInstances", [["ImageId", "ami-nope"], ["MinCount", "1"], ["MaxCount", "1"]], "InvalidAMIID.NotFound", "not_found"),
                ("DescribeKeyPairs", [["KeyName.1", "nobody"]], "InvalidKeyPair.NotFound", "not_found")):
            said = self.ec2(action, *form, code=1)
            self.assertEqual((said["aws_code"], said["code"]), (aws_code, code))
            self.assertIn(f"EC2 {action} is refused: {aws_code}: ", said["error"])
        self.assertEqual(tool("ssm", "us-west-2", "GetParameter", given={"Name": "/nope"}, env=self.env, code=1)["aws_code"],
                         "ParameterNotFound")
        self.assertEqual(tool("iam", "us-west-2", "GetRole", given=[["RoleName", "nobody"]], env=self.env, code=1)["code"],
                         "not_found")

    def test_json(self):
        path = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
        found = tool("ssm", "us-west-2", "GetParameter", given={"Name": path}, env=self.env)
        self.assertTrue(found["Parameter"]["Value"].startswith("ami-"))

    def test_all_pages(self):
        image = next(element["text"] for element in every(self.ec2("DescribeImages", ["Owner.1", "amazon"]))
                     if element["name"] == "imageId")
        form = tool("form", "RunInstancesRequest", given={
            "ImageId": image, "InstanceType": "p3dn.24xlarge", "MinCount": 1, "MaxCount": 1, "TagSpecifications": [
                {"ResourceType": "instance", "Tags": [{"Key": "lab", "Value": "pages & more"}]}]})
        for _ in range(7):
            self.ec2("RunInstances", *form)
        pages = tool("pages", "us-west-2", "DescribeInstances", env=self.env,
                     given=[["Filter.1.Name", "tag:lab"], ["Filter.1.Value.1", "pages & more"], ["MaxResults", "5"]])
        self.assertEqual(len(pages), 2)
        self.assertEqual(len({element["text"] for page in pages for element in every(page)
                              if element["name"] == "instanceId"}), 7)


def every(element):
    yield element
    for child in element["children"]:
        yield from every(child)


class Connections(unittest.TestCase):
    """TLS, and proxies on the way."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", cls.folder / "key", "-out", cls.folder / "certificate", "-days", "1", "-subj", "/CN=lab",
                        "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
        cls.trusted = str(cls.folder / "certificate")
        cls.port = cls.enterClassContext(serving(lambda *_: (200, {"X-Said": "yes"}, b"hello"),
                                                 (cls.folder / "certificate", cls.folder / "key")))

    def get(self, host="localhost", port=None, code=0, **env):
        return tool("get", f"https://{host}:{port or self.port}/secret-path?secret=1", env=env, code=code)

    def test_which_certificates_are_trusted(self):
        for name in ("SSL_CERT_FILE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
            found = self.get(**{name: self.trusted})
            self.assertEqual((found["status"], found["body"]), (200, "hello"), name)
            self.assertIn(["x-said", "yes"], found["fields"])
        (self.folder / "config").write_text(f"[default]\nca_bundle = {self.trusted}\n")
        self.get(AWS_CONFIG_FILE=str(self.folder / "config"))
        for refused in (self.get(code=1),  # those of the system
                        self.get("127.0.0.1", code=1, SSL_CERT_FILE=self.trusted),  # another name
                        self.get(code=1, AWS_CA_BUNDLE="/nonexistent")):
            self.assertEqual(refused["code"], "unreachable")
            self.assertIn("AWS_CA_BUNDLE", refused["hint"])
            self.assertNotIn("secret", json.dumps(refused))

    def test_proxies(self):
        seen = []

        class Proxy(http.server.BaseHTTPRequestHandler):
            def do_CONNECT(self):
                seen.append((self.path, self.headers.get("Proxy-Authorization")))
                host, _, port = self.path.partition(":")
                with socket.create_connection((host, int(port))) as there:
                    self.send_response(200)
                    self.end_headers()
                    ends = {self.connection: there, there: self.connection}
                    while True:
                        for end in select.select(list(ends), [], [])[0]:
                            data = end.recv(65536)
                            if not data:
                                return
                            ends[end].sendall(data)

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            proxy = f"http://me:pass-word@127.0.0.1:{server.server_address[1]}"
            for name in ("HTTPS_PROXY", "https_proxy"):
                self.get(**{name: proxy}, SSL_CERT_FILE=self.trusted)
            self.assertEqual(seen, [(f"localhost:{self.port}", "Basic bWU6cGFzcy13b3Jk")] * 2)
            for name in ("NO_PROXY", "no_proxy"):
                self.get(**{name: "example.org,localhost"}, HTTPS_PROXY=proxy, SSL_CERT_FILE=self.trusted)
            self.assertEqual(len(seen), 2)
            server.shutdown()
        gone = self.get(code=1, HTTPS_PROXY=proxy, SSL_CERT_FILE=self.trusted)
        self.assertEqual(gone["code"], "unreachable")
        self.assertNotIn("pass-word", json.dumps(gone))
        # An instance's own service is never asked by a proxy.
        with serving(services) as port:
            self.assertEqual(tool("credentials", "us-west-2", env={
                "AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}",
                "http_proxy": proxy, "ALL_PROXY": proxy})["access_key"], "AKIA-instance")


if __name__ == "__main__":
    aws_lab.enter()
    unittest.main(verbosity=2)
