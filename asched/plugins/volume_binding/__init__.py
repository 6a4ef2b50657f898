"""VolumeBinding: binds or provisions the volumes of a pod's claims on the selected node."""

from asched.plugins.volume_binding.plugin import VolumeBinding as VolumeBinding
