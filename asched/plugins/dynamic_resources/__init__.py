"""DynamicResources: allocates devices for the ResourceClaims of pods."""

from asched.plugins.dynamic_resources.plugin import DynamicResources as DynamicResources
