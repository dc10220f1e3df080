"""Roles of the instances of an aws_cloud.Cloud: the temporary credentials that their metadata service hands out, and
what their inline policies let them do, conditions included."""

import fnmatch
import json

REGION, ACCOUNT = "us-west-2", "123456789012"
KINDS = {"i": "instance", "vol": "volume", "sg": "security-group", "eni": "network-interface", "subnet": "subnet"}


class Refused(Exception):
    def __init__(self, code, message, status=400):
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def iam():
    from moto.iam import iam_backends
    return iam_backends[ACCOUNT]["aws"]


def make_role(name, path="/", action=None):
    """And an instance profile of that name. `action`: what it may do, of all."""
    iam().create_role(name, '{"Version": "2012-10-17"}', path, None, "", [], "3600")
    if action:
        policy = {"Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}
        iam().get_role(name).put_policy("dtrain", json.dumps(policy))
    iam().create_instance_profile(name, path, [name])


def metadata_of(cloud, instance):
    """What the service says of an instance's role; without one, or with a profile that has none, nothing."""
    from moto.sts import sts_backends
    with cloud.lock:
        arn = (instance.iam_instance_profile or {}).get("Arn")
        roles = iam().get_instance_profile_by_arn(arn).roles if arn else []
        if not roles:
            return {}
        session = sts_backends[ACCOUNT]["aws"].assume_role(
            region_name=REGION, role_session_name=instance.id, role_arn=roles[0].arn, policy=None, duration=6 * 3600,
            external_id=None)
        cloud.keys[session.access_key_id] = session.secret_access_key
        cloud.sessions[session.access_key_id] = (session.session_token, roles[0].name)
        at = "latest/meta-data/iam/"
        time = "%Y-%m-%dT%H:%M:%SZ"
        return {at + "info": json.dumps({"Code": "Success", "InstanceProfileArn": arn}),
                f"{at}security-credentials/{roles[0].name}": json.dumps({
                    "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": session.access_key_id,
                    "SecretAccessKey": session.secret_access_key, "Token": session.session_token,
                    "Expiration": session.expiration.strftime(time)})}


def check_removal(parameters):
    """As AWS, where moto fails."""
    from moto.iam.exceptions import NotFoundException
    try:
        profile = iam().get_instance_profile(parameters["InstanceProfileName"])
    except NotFoundException:
        return  # moto says so
    if parameters["RoleName"] not in [role.name for role in profile.roles]:
        raise Refused("NoSuchEntity", "The role is not in the instance profile.", 404)


def refusal(cloud, role, service, action, parameters):
    """Why a role may not do this; None: it may."""
    if (service, action) == ("sts", "GetCallerIdentity"):
        return None
    statements = [statement for policy in iam().get_role(role).policies.values()
                  for statement in json.loads(policy)["Statement"]]
    for needed, resource, context in _needs(cloud, service, action, parameters):
        if not any(_grants(statement, needed, resource, context) for statement in statements):
            return f"User: {role} is not authorized to perform: {needed} on resource: {resource}"
    return None


def _needs(cloud, service, action, parameters):
    """[(action, resource, condition keys)], all of which must be allowed."""
    asked = f"{service}:{action}"
    if service != "ec2":
        return [(asked, "*", {})]
    arn = lambda kind, name="*": f"arn:aws:ec2:{REGION}:{'' if kind == 'image' else ACCOUNT}:{kind}/{name}"
    if action in ("TerminateInstances", "StopInstances", "StartInstances", "ModifyInstanceAttribute"):
        tags = lambda name: {tag["key"]: tag["value"] for tag in cloud.backend.get_instance(name).get_tags()}
        return [(asked, arn("instance", each), {f"ec2:ResourceTag/{key}": value for key, value in tags(each).items()})
                for each in parameters.get("InstanceIds") or [parameters["InstanceId"]]]
    if action == "CreateTags":
        return [(asked, arn(KINDS[each.partition("-")[0]], each), {}) for each in parameters["Resources"]]
    if action != "RunInstances":
        return [(asked, "*", {})]
    said = {each["ResourceType"]: {tag["Key"]: tag["Value"] for tag in each.get("Tags") or []}
            for each in parameters.get("TagSpecifications") or []}
    needs = [(asked, arn(kind), {f"aws:RequestTag/{key}": value for key, value in said.get(kind, {}).items()})
             for kind in ("instance", "volume", "network-interface", "security-group", "subnet")]
    needs.append((asked, arn("image", parameters.get("ImageId", "*")), {}))
    needs += [("ec2:CreateTags", arn(kind), {"ec2:CreateAction": action}) for kind in said]
    profile = parameters.get("IamInstanceProfile") or {}
    if profile:
        found = (iam().get_instance_profile(profile["Name"]) if "Name" in profile
                 else iam().get_instance_profile_by_arn(profile["Arn"]))
        needs += [("iam:PassRole", each.arn, {"iam:PassedToService": "ec2.amazonaws.com"}) for each in found.roles]
    return needs


def _grants(statement, action, resource, context):
    many = lambda value: value if isinstance(value, list) else [value]
    among = lambda text, patterns: any(fnmatch.fnmatchcase(text, each) for each in many(patterns))
    assert statement["Effect"] == "Allow" and set(statement.get("Condition", {})) <= {"StringEquals"}, statement
    here = (among(resource, statement["Resource"]) if "Resource" in statement
            else not among(resource, statement["NotResource"]))
    return among(action, statement["Action"]) and here and all(
        context.get(key) in many(wanted) for key, wanted in statement.get("Condition", {}).get("StringEquals", {}).items())
