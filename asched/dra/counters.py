"""Shared counters during the search for one node, with the bookkeeping of kube-scheduler 1.36.

The tables are keyed by the name of a pool alone: pools of different drivers with one name share
them, and the pool that is examined first provides the available amounts. A device that fits is
booked before other conditions are checked, and stays booked if one of those turns it down.
"""

from __future__ import annotations

from asched.dra.devices import PooledDevice
from asched.dra.pools import Counters, PoolView
from asched.dra.usage import Usage


class CounterBooks:
    """Available and booked amounts, by pool name."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._available: dict[str, Counters] = {}
        self._booked: dict[str, Counters] = {}

    def book(self, device: PooledDevice, pool: PoolView) -> bool:
        """Book a device, unless any counter of the pool would be overdrawn."""
        name = pool.pool_id.pool
        available = self._available.get(name)
        if available is None:
            available = self._available[name] = available_counters(pool, self._usage)
        booked = self._booked.setdefault(name, {})
        _add(booked, device, 1)
        for counter, amount in available.items():
            if amount < booked.get(counter, 0):
                _add(booked, device, -1)
                return False
        return True

    def release(self, device: PooledDevice) -> None:
        """Undo :meth:`book`."""
        _add(self._booked.setdefault(device.pool_id.pool, {}), device, -1)


def available_counters(pool: PoolView, usage: Usage) -> Counters:
    """The counters of a pool minus what its allocated devices consume."""
    available = dict(pool.counters)
    for device in pool.consumers:
        if not usage.of(device.pool_id, device.name).is_empty:
            for counter_set, counter, amount in device.counters:
                available[counter_set, counter] -= amount
    return available


def _add(booked: Counters, device: PooledDevice, sign: int) -> None:
    for counter_set, counter, amount in device.counters:
        key = (counter_set, counter)
        booked[key] = booked.get(key, 0) + sign * amount
