"""Pods that are recorded as copies of a template, and created when they are first read."""

from hypothesis import given
from hypothesis import strategies as st

from asched.framework.pod_info import PodInfo
from asched.model.meta import ObjectMeta
from asched.model.pod import Pod, PodSpec
from asched.state.templates import Templates

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))
READ = ("label_set", "labels", "pod", "namespace", "shape", "priority")


def pod(name: str, labels: dict[str, str], node: str = "") -> Pod:
    meta = ObjectMeta(name=name, namespace="default", uid=name, labels=labels)
    return Pod(metadata=meta, spec=PodSpec(node_name=node, priority=3))


@given(LABELS, LABELS, st.sampled_from(["", "n1"]), st.permutations(READ))
def test_copy_reads_as_its_pod_in_any_order(
    template_labels: dict[str, str], labels: dict[str, str], node: str, order: list[str]
) -> None:
    templates, first, copy = Templates(), pod("t", template_labels), pod("copy", labels, node)
    number = templates.new_number(first)
    templates.add(number, PodInfo(first))
    assert templates.find(copy) == number
    info = templates.pod_of(templates.record_of(number, copy))
    for name in order:
        assert getattr(info, name) == getattr(PodInfo(copy), name), name
    assert (info.key, info.uid, info.pod) == ("default/copy", "copy", copy)
