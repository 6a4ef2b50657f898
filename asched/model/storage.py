"""PersistentVolumes, claims, storage classes and CSI objects."""

from __future__ import annotations

import msgspec

from asched.model.meta import ApiStruct, Int32, Object
from asched.model.pod import AzureDisk, CinderVolumeSource, PortworxVolumeSource
from asched.model.quantity import QuantityText
from asched.model.selectors import LabelSelector, NodeSelector


class VolumeNodeAffinity(ApiStruct):
    required: NodeSelector | None = None


class ObjectReference(ApiStruct):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class CSIPersistentVolumeSource(ApiStruct):
    driver: str = ""
    volume_handle: str = ""


class GCEPersistentDiskVolume(ApiStruct):
    pd_name: str = ""


class AWSElasticBlockStoreVolume(ApiStruct):
    volume_id: str = msgspec.field(default="", name="volumeID")


class PersistentVolumeSpec(ApiStruct):
    """``spec`` of a PersistentVolume."""

    capacity: dict[str, QuantityText] = {}
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str | None = None
    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIPersistentVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolume | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolume | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None


class PersistentVolumeStatus(ApiStruct):
    phase: str = ""


class PersistentVolume(Object, tag_field="kind", tag="PersistentVolume"):
    """A PersistentVolume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    @property
    def storage_class(self) -> str:
        """The class; the beta annotation has precedence (``GetPersistentVolumeClass``)."""
        annotated = self.metadata.annotations.storage_class
        return annotated if annotated is not None else self.spec.storage_class_name


class VolumeResourceRequirements(ApiStruct):
    requests: dict[str, QuantityText] = {}


class PersistentVolumeClaimSpec(ApiStruct):
    """``spec`` of a PersistentVolumeClaim."""

    access_modes: tuple[str, ...] = ()
    storage_class_name: str | None = None
    volume_name: str = ""
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str | None = None
    selector: LabelSelector | None = None
    resources: VolumeResourceRequirements = VolumeResourceRequirements()


class PersistentVolumeClaimStatus(ApiStruct):
    phase: str = ""


class PersistentVolumeClaim(Object, tag_field="kind", tag="PersistentVolumeClaim"):
    """A PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def storage_class(self) -> str:
        """The class; the beta annotation has precedence (``GetPersistentVolumeClaimClass``)."""
        annotated = self.metadata.annotations.storage_class
        return annotated if annotated is not None else self.spec.storage_class_name or ""

    @property
    def fully_bound(self) -> bool:
        """Whether the volume controller has finished the binding (``isPVCFullyBound``)."""
        return bool(self.spec.volume_name) and self.metadata.annotations.bind_completed is not None


class TopologySelectorLabelRequirement(ApiStruct):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(ApiStruct):
    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object, tag_field="kind", tag="StorageClass"):
    """How volumes are provisioned, and when claims are bound."""

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class CSINodeAllocatable(ApiStruct):
    count: Int32 | None = None


class CSINodeDriver(ApiStruct):
    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(ApiStruct):
    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Object, tag_field="kind", tag="CSINode"):
    """The CSI drivers of a node, with their attach limits."""

    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(ApiStruct):
    storage_capacity: bool = False


class CSIDriver(Object, tag_field="kind", tag="CSIDriver"):
    """Properties of a CSI driver."""

    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object, tag_field="kind", tag="CSIStorageCapacity"):
    """Free capacity of a storage class on some nodes."""

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: QuantityText | None = None
    maximum_volume_size: QuantityText | None = None


class VolumeAttachmentSource(ApiStruct):
    persistent_volume_name: str = ""


class VolumeAttachmentSpec(ApiStruct):
    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Object, tag_field="kind", tag="VolumeAttachment"):
    """A volume that is attached to a node or is being attached."""

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
