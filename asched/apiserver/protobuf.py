"""Decoding of Kubernetes' protobuf requests, which ``kubectl create`` and ``drain`` send.

kubectl's typed clients do not fall back to JSON. The messages below are excerpts of the
``generated.proto`` files of k8s.io/api. A request with another kind, or with a value in a field
that the excerpts lack, gets 415: to drop the field would create another object.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from asched.apiserver.errors import Object, StatusError, bad_request

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\0"
_MESSAGES = """
Unknown: TypeMeta typeMeta 1, bytes raw 2
TypeMeta: string apiVersion 1, string kind 2
Empty:
ObjectMeta: string name 1, string generateName 2, string namespace 3, string uid 5,
  string resourceVersion 6, map labels 11, map annotations 12, repeated string finalizers 14
Quantity: string string 1
IntOrString: int64 type 1, int32 intVal 2, string strVal 3
LabelSelectorRequirement: string key 1, string operator 2, repeated string values 3
LabelSelector: map matchLabels 1, repeated LabelSelectorRequirement matchExpressions 2
Preconditions: string uid 1, string resourceVersion 2
DeleteOptions: int64 gracePeriodSeconds 1, Preconditions preconditions 2,
  string propagationPolicy 4, repeated string dryRun 5
Namespace: ObjectMeta metadata 1
ServiceAccount: ObjectMeta metadata 1
ConfigMap: ObjectMeta metadata 1, map data 2, map:bytes binaryData 3
Secret: ObjectMeta metadata 1, map:bytes data 2, string type 3, map stringData 4
ResourceQuotaSpec: map:Quantity hard 1, repeated string scopes 2
ResourceQuota: ObjectMeta metadata 1, ResourceQuotaSpec spec 2
ServicePort: string name 1, string protocol 2, int32 port 3, IntOrString targetPort 4
ServiceSpec: repeated ServicePort ports 1, map selector 2, string clusterIP 3, string type 4
Service: ObjectMeta metadata 1, ServiceSpec spec 2
PriorityClass: ObjectMeta metadata 1, int32 value 2, bool globalDefault 3, string description 4,
  string preemptionPolicy 5
PodDisruptionBudgetSpec: IntOrString minAvailable 1, LabelSelector selector 2,
  IntOrString maxUnavailable 3
PodDisruptionBudget: ObjectMeta metadata 1, PodDisruptionBudgetSpec spec 2
ObjectReference: string kind 1, string namespace 2, string name 3, string uid 4,
  string apiVersion 5
Binding: ObjectMeta metadata 1, ObjectReference target 2
Eviction: ObjectMeta metadata 1, DeleteOptions deleteOptions 2
ContainerPort: string name 1, int32 hostPort 2, int32 containerPort 3, string protocol 4
ResourceRequirements: map:Quantity limits 1, map:Quantity requests 2
Container: string name 1, string image 2, repeated string command 3, repeated string args 4,
  repeated ContainerPort ports 6, ResourceRequirements resources 8
PodSpec: repeated Container containers 2, string restartPolicy 3
PodTemplateSpec: ObjectMeta metadata 1, PodSpec spec 2
DeploymentSpec: int32 replicas 1, LabelSelector selector 2, PodTemplateSpec template 3
Deployment: ObjectMeta metadata 1, DeploymentSpec spec 2
JobSpec: int32 parallelism 1, int32 completions 2, PodTemplateSpec template 6
Job: ObjectMeta metadata 1, JobSpec spec 2
"""
_KINDS = (
    "Namespace ServiceAccount ConfigMap Secret ResourceQuota Service PriorityClass Deployment Job "
    "PodDisruptionBudget Binding Eviction DeleteOptions"
)
_FIELD = re.compile(r"(?:(repeated) |(map)(?::(\w+))? )?(?:(\w+) )?(\w+) (\d+)")


def _field(message: Any, label: int, kind: str, name: str, number: int) -> Any:
    field = message.field.add(name=name, number=number, label=label)
    scalar = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}", None)
    if scalar is None:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".k8s.{kind}"
    else:
        field.type = scalar
    return field


def _build_pool() -> DescriptorPool:
    optional, repeated = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    file = FileDescriptorProto(name="k8s.proto", package="k8s", syntax="proto2")
    for declaration in re.split(r"\n(?=\w)", _MESSAGES.strip()):
        name, fields = declaration.split(":", 1)
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(",")):
            match = _FIELD.fullmatch(text.strip())
            assert match, text
            is_list, is_map, values, kind, field, number = match.groups()
            label = repeated if is_list or is_map else optional
            if is_map:
                kind = f"{name}.{field}Entry"
                entry = message.nested_type.add(name=f"{field}Entry")
                entry.options.map_entry = True
                _field(entry, optional, "string", "key", 1)
                _field(entry, optional, values or "string", "value", 2)
            _field(message, label, kind, field, int(number))
    pool = DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _build_pool()


def _message(kind: str, data: bytes) -> Message:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"k8s.{kind}")).FromString(data)


def _unknown(message: Message) -> list[Any]:
    """The fields of a message that its excerpt lacks, with ``field_number`` and ``data``."""
    fields = UnknownFieldSet(message)
    return [fields[index] for index in range(len(fields))]


def _is_set(value: Any) -> bool:
    """Whether an unknown field has a value. Go encodes empty structs, of empty fields in turn."""
    if not isinstance(value, bytes):
        return bool(value)
    try:
        return any(_is_set(field.data) for field in _unknown(_message("Empty", value)))
    except DecodeError:
        return True


def _json(value: Any) -> Any:
    """A field value as JSON; None for an empty one, which JSON omits."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if not isinstance(value, Message):
        return None if value == "" or value is False else value
    match value.DESCRIPTOR.name:
        case "Quantity":
            return value.string  # type: ignore[attr-defined]
        case "IntOrString":
            return value.strVal if value.type == 1 else value.intVal  # type: ignore[attr-defined]
    found: Object = {}
    for unknown in _unknown(value):
        if _is_set(unknown.data):
            what = f"field {unknown.field_number} of {value.DESCRIPTOR.name}"
            raise _unsupported(f"a value in {what}")
    for field, content in value.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = {key: _json(item) or "" for key, item in content.items()}
        elif field.is_repeated:
            found[field.name] = [_json(item) for item in content]
        elif (made := _json(content)) is not None:
            found[field.name] = made
    return found or None


def _unsupported(what: str) -> StatusError:
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"this API server does not read {what} in protobuf; send application/json",
    )


def decode(body: bytes) -> Object:
    """The object in a request. Raises StatusError 400 for an invalid message, 415 for a kind or
    a field that is read in JSON only."""
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix")
    try:
        envelope: Any = _message("Unknown", body[len(_MAGIC) :])
        kind, version = envelope.typeMeta.kind, envelope.typeMeta.apiVersion
        if kind not in _KINDS.split():
            raise _unsupported(f"a {kind or 'message without a kind'}")
        content = _json(_message(kind, envelope.raw)) or {}
    except (DecodeError, UnicodeDecodeError) as error:
        raise bad_request("unable to decode the protobuf message: unexpected EOF") from error
    return {"kind": kind, "apiVersion": version, **content}
