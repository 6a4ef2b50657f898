"""KubeSchedulerConfiguration: defaults and validation of kube-scheduler."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asched.config.kube_scheduler import (
    Extender,
    KubeSchedulerConfiguration,
    LeaderElection,
    ManagedResource,
)
from asched.framework.runtime.strict import ConfigurationError
from tests.framework.decoding import decode_configuration

HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def errors(**fields: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        decode_configuration({**HEAD, **fields})
    return [str(problem) for problem in caught.value.problems]


def test_defaults() -> None:
    config = decode_configuration(HEAD)
    assert config == KubeSchedulerConfiguration()
    assert config.leader_election.lease_duration == timedelta(seconds=15)
    assert (config.client_connection.qps, config.client_connection.burst) == (0.0, 100)
    assert (config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds) == (1, 10)
    assert config.parallelism == 16


def test_zero_or_empty_values_select_kubernetes_defaults() -> None:
    config = decode_configuration(
        {
            **HEAD,
            "clientConnection": {"qps": 0, "burst": 0, "contentType": "", "kubeconfig": "/k"},
            "leaderElection": {"leaderElect": False, "leaseDuration": "0s", "resourceName": ""},
        }
    )
    assert (config.client_connection.qps, config.client_connection.burst) == (0.0, 100)
    assert config.client_connection.kubeconfig == "/k"
    assert config.leader_election == LeaderElection(leader_elect=False)


def test_complete_document_decodes() -> None:
    config = decode_configuration(
        {
            **HEAD,
            "parallelism": 4,
            "leaderElection": {
                "leaderElect": True,
                "leaseDuration": "30s",
                "renewDeadline": "20s",
                "retryPeriod": "5s",
                "resourceLock": "leases",
                "resourceName": "asched",
                "resourceNamespace": "sched",
            },
            "enableProfiling": False,
            "enableContentionProfiling": False,
            "delayCacheUntilActive": True,
            "extenders": [
                {
                    "urlPrefix": "http://127.0.0.1:8888/",
                    "filterVerb": "filter",
                    "prioritizeVerb": "prioritize",
                    "weight": 5,
                    "enableHTTPS": True,
                    "tlsConfig": {"insecure": True, "caData": "YWJj"},
                    "httpTimeout": "200ms",
                    "managedResources": [{"name": "example.com/fpga"}],
                }
            ],
        }
    )
    assert config.leader_election.renew_deadline == timedelta(seconds=20)
    (extender,) = config.extenders
    assert extender.enable_https
    assert extender.http_timeout == timedelta(milliseconds=200)
    assert extender.tls_config is not None
    assert extender.tls_config.ca_data == b"abc"
    assert extender.managed_resources == (ManagedResource("example.com/fpga"),)
    assert Extender("x").http_timeout == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
            [
                (
                    "apiVersion: expected kubescheduler.config.k8s.io/v1, got"
                    ' "kubescheduler.config.k8s.io/v1beta3"'
                )
            ],
        ),
        ({"parallelism": 0}, ["parallelism: must be greater than 0, got 0"]),
        (
            {"percentageOfNodesToScore": 101},
            ["percentageOfNodesToScore: must be at most 100, got 101"],
        ),
        (
            {"podInitialBackoffSeconds": 0},
            ["podInitialBackoffSeconds: must be greater than 0, got 0"],
        ),
        (
            {"podInitialBackoffSeconds": 11},
            ["podMaxBackoffSeconds: must be at least podInitialBackoffSeconds (11), got 10"],
        ),
        (
            {"leaderElection": {"leaseDuration": "10s"}},
            ["leaderElection.leaseDuration: must be greater than renewDeadline"],
        ),
        (
            {"leaderElection": {"retryPeriod": "9s", "resourceLock": "endpoints"}},
            [
                "leaderElection.renewDeadline: must be greater than 1.2 times retryPeriod",
                'leaderElection.resourceLock: expected leases, got "endpoints"',
            ],
        ),
        ({"clientConnection": {"qps": -1}}, ["clientConnection.qps: must be at least 0, got -1"]),
        (
            {
                "extenders": [
                    {"urlPrefix": "a", "prioritizeVerb": "p", "bindVerb": "b"},
                    {"urlPrefix": "b", "bindVerb": "b", "managedResources": [{"name": "cpu"}]},
                    {"weight": 1},
                ]
            },
            ["extenders[2].urlPrefix: required"],
        ),
        (
            {
                "extenders": [
                    {"urlPrefix": "http://a", "prioritizeVerb": "p", "bindVerb": "b"},
                    {
                        "urlPrefix": "https://b:1/c",
                        "bindVerb": "b",
                        "managedResources": [{"name": "cpu"}],
                    },
                    {"urlPrefix": "b:80/filter", "weight": 2**31},
                    {"urlPrefix": "http://b:x"},
                ]
            },
            [
                "extenders[0].weight: must be greater than 0 with prioritizeVerb",
                'extenders[1].managedResources[0].name: "cpu" is not an extended resource\'s name',
                'extenders[2].urlPrefix: expected an http or https URL, got "b:80/filter"',
                "extenders[2].weight: must be at most 2147483647, got 2147483648",
                'extenders[3].urlPrefix: expected an http or https URL, got "http://b:x"',
                "extenders[1].bindVerb: only one extender can bind, and extenders[0] does",
            ],
        ),
        (
            {"profiles": [{"plugins": {"score": {"enabled": [{"name": "A", "weight": -1}]}}}]},
            ["profiles[0].plugins.score.enabled[0].weight: must be at least 0, got -1"],
        ),
    ],
)
def test_invalid_configuration_is_rejected(fields: dict[str, Any], expected: list[str]) -> None:
    assert errors(**fields) == expected


def test_leader_election_is_validated_only_if_enabled() -> None:
    config = decode_configuration(
        {**HEAD, "leaderElection": {"leaderElect": False, "leaseDuration": "1s"}}
    )
    assert not config.leader_election.leader_elect
